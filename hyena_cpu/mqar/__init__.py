"""Multi-query associative recall (MQAR): rows as the authors make them, and a model's accuracy."""

from .data import UNSCORED, Setting, generate
from .evaluate import COLUMNS, Slice, accuracy, evaluate, mixers

__all__ = [
    "COLUMNS",
    "UNSCORED",
    "Setting",
    "Slice",
    "accuracy",
    "evaluate",
    "generate",
    "mixers",
]
