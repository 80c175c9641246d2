"""Tables of results: rows in, one of five file formats out, whole records only, resumable.

| form | holds in memory | Ctrl-C or an error leaves | a kill leaves |
|---|---|---|---|
| tsv, json, jsonl | a second's rows or 1 MiB | all whole records | all but the last second's |
| parquet | at most 65,536 rows | all whole records | what the run before left |
| npz | one piece; columns lie in unnamed files | all whole records | what the run before left |
"""

from .partial import Settings
from .writer import FORMS, TableWriter

__all__ = ["FORMS", "Settings", "TableWriter"]
