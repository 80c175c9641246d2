"""Associative recall in text: how much of the difference between two models is recall.

A token is a hit if its bigram occurred earlier in the sequence and was rare in the training text.
The definition is that of arXiv 2312.04927, section 3, of which no code is published; what it leaves
open is stated where it is decided.
"""

from .counts import THRESHOLD, Counts, count
from .hits import LARGEST_BIN, bins, distances, span
from .report import Line, Report, Tally, report, tally

__all__ = [
    "LARGEST_BIN",
    "THRESHOLD",
    "Counts",
    "Line",
    "Report",
    "Tally",
    "bins",
    "count",
    "distances",
    "report",
    "span",
    "tally",
]
