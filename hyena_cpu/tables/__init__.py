"""Tables of results: rows in, one of seven file formats out, whole records only, resumable.

| form | holds in memory | Ctrl-C or an error leaves | a kill leaves |
|---|---|---|---|
| tsv, csv, json, jsonl | a second's rows or 1 MiB | all whole records | all but the last second's |
| npy | a piece | all whole records | all but the last second's |
| parquet | 65,536 rows, or 16 MiB of vectors | all whole records | what was there before |
| npz | one piece; columns lie in unnamed files | all whole records | what was there before |
"""

from .lines import Lines, csv_text
from .members import Members
from .parquet import arrow_table
from .partial import Settings
from .rows import Column, Kind, Vector
from .writer import FORMS, TableWriter

__all__ = [
    "FORMS",
    "Column",
    "Kind",
    "Lines",
    "Members",
    "Settings",
    "TableWriter",
    "Vector",
    "arrow_table",
    "csv_text",
]
