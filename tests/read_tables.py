"""Tables read back as other programs read them: rows of Python values, None for what is missing."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read_table(path: Path, form: str, types: Mapping[str, type]) -> list[tuple[Any, ...]]:
    """The rows of a file, whose columns must be those of `types`, in order."""
    if form in ("tsv", "csv"):
        with path.open(encoding="utf-8", newline="") as file:
            quoted = csv.reader(file)
            plain = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            lines = list(quoted if form == "csv" else plain)
        assert lines[0] == list(types)
        return [
            tuple(
                None if cell == "NA" else kind(cell)
                for kind, cell in zip(types.values(), line, strict=True)
            )
            for line in lines[1:]
        ]
    if form in ("json", "jsonl"):
        text = path.read_text(encoding="utf-8")
        objects = json.loads(text) if form == "json" else list(map(json.loads, text.splitlines()))
        assert all(list(one) == list(types) for one in objects)
        return [tuple(one.values()) for one in objects]
    if form == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        assert table.column_names == list(types)
        return [tuple(one.values()) for one in table.to_pylist()]
    with np.load(path, allow_pickle=False) as arrays:
        assert list(arrays) == list(types)
        columns = [arrays[name].tolist() for name in types]
    return [tuple(None if v != v else v for v in row) for row in zip(*columns, strict=True)]
