"""Tables of results: rows in, one of six file formats out, whole records only, resumable.

| form | holds in memory | Ctrl-C or an error leaves | a kill leaves |
|---|---|---|---|
| tsv, json, jsonl | a second's rows or 1 MiB | all whole records | all but the last second's |
| npy | a piece | all whole records | all but the last second's |
| parquet | 65,536 rows, or 16 MiB of vectors | all whole records | what was there before |
| npz | one piece; columns lie in unnamed files | all whole records | what was there before |
"""

from .members import Members
from .partial import Settings
from .rows import Kind, Vector
from .writer import FORMS, TableWriter

__all__ = ["FORMS", "Kind", "Members", "Settings", "TableWriter", "Vector"]
