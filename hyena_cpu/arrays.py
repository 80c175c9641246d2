"""Files of embeddings: one vector per record, or one per position, in five formats.

| | a vector per record | every position |
|---|---|---|
| tsv, csv | a row: index, id, length, status, v0 .. v(D-1) | |
| npy | float32 [R, D]; `NAME.ids.tsv` has index, id, length, status | one record: float32 [T, D] |
| npz | `vectors` float32 [R, D], `ids`, `lengths`, `status` | `0`, `1`, ... float32 [T, D]; also |
| parquet | index, id, length, status, vector | index, id, position, vector |

A record that failed has a row of NaN; of its positions there are none.

Shapes: R records, T tokens of one, D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .tables import Kind, Members, TableWriter, Vector

if TYPE_CHECKING:
    from .embed import Item

Floats = NDArray[np.float32]

FORMS = ("tsv", "csv", "npy", "npz", "parquet")


# Columns of tables, without those of the vectors.
ABOUT: dict[str, Kind] = {"index": int, "id": str, "length": int, "status": str}
PLACE: dict[str, Kind] = {"index": int, "id": str, "position": int}


def about(item: Item) -> dict[str, list[Any]]:
    """The columns ABOUT of an item, one row."""
    return {
        "index": [item.index],
        "id": [item.id],
        "length": [item.length],
        "status": [item.status],
    }


def places(item: Item, first: int, n: int) -> dict[str, Any]:
    """The columns PLACE of n tokens of an item, from token `first` on."""
    return {
        "index": np.full(n, item.index),
        "id": [item.id] * n,
        "position": item.first + item.step * np.arange(first, first + n),
    }


def row_of(blocks: Iterable[Floats], width: int) -> Floats:
    """The row [1, width] that is in the blocks; NaN where there is none."""
    return next(iter(blocks), np.full((1, width), np.nan, np.float32))


class Vectors(TableWriter):
    """A context to write one vector per item to, in any of FORMS."""

    def __init__(self, path: Path | None, form: str, width: int, **options: Any) -> None:
        self._form, self._width = form, width
        columns = {**ABOUT, "vector": Vector(width)}
        if form == "npz":
            columns = {"ids": str, "lengths": int, "status": str, "vectors": Vector(width)}
        elif form in ("tsv", "csv"):
            columns = {**ABOUT, **{f"v{d}": float for d in range(width)}}
        super().__init__(path, form, columns, **options)

    def skip(self, item: Item) -> None:
        """Passes over an item that an earlier run wrote."""

    def put(self, item: Item, blocks: Iterable[Floats]) -> None:
        """Writes an item; blocks hold one row [1, D], or none if it failed."""
        row = row_of(blocks, self._width)
        columns: list[Any] = list(about(item).values())
        if self._form == "npz":
            del columns[0]
        columns.extend(row.T if self._form in ("tsv", "csv") else [row])
        named = dict(zip(self.columns, columns, strict=True))
        self.write(named, failed=item.error is not None)


class Positions(TableWriter):
    """A context to write the vectors of all positions to: parquet, or npy of a single item."""

    def __init__(self, path: Path, form: str, width: int, **options: Any) -> None:
        self._width, self._named = width, form == "parquet"
        columns = {**(PLACE if self._named else {}), "vector": Vector(width)}
        super().__init__(path, form, columns, **options)

    def skip(self, item: Item) -> None:
        """Passes over an item that an earlier run wrote."""

    def put(self, item: Item, blocks: Iterable[Floats]) -> None:
        """Writes an item; blocks hold its T rows, or none if it failed."""
        if item.ids is None:
            self._piece(item, 0, np.zeros((0, self._width), np.float32), last=True)
            return
        first = 0
        for block in blocks:
            end = first + len(block)
            self._piece(item, first, block, last=end == item.n_tokens)
            first = end

    def _piece(self, item: Item, first: int, block: Floats, *, last: bool) -> None:
        named = places(item, first, len(block)) if self._named else {}
        failed = item.error is not None
        self.write({**named, "vector": block}, last=last, failed=failed)


class Matrices(Members):
    """A context to write one matrix [T, D] per item to: npz."""

    def skip(self, item: Item) -> None:
        """Passes over an item that an earlier run wrote: only its name is still needed."""
        self.name(item.id, item.length, item.status)

    def put(self, item: Item, blocks: Iterable[Floats]) -> None:
        """Writes an item; blocks hold its T rows, or none if it failed."""
        self.name(item.id, item.length, item.status)
        self.write(item.n_tokens, blocks, failed=item.error is not None)


Arrays = Vectors | Positions | Matrices


def open_arrays(
    path: Path | None, form: str, width: int, *, pooled: bool, **options: Any
) -> Arrays:
    """The file for vectors of `width` numbers, `pooled` to one per item or of every position.

    Options and errors are those of `TableWriter`: settings, resume.
    """
    if pooled:
        return Vectors(path, form, width, **options)
    if path is None or form in ("tsv", "csv"):
        raise InputError("vectors of all positions go to a file .npy, .npz or .parquet: give -o")
    return (
        Matrices(path, width, **options)
        if form == "npz"
        else Positions(path, form, width, **options)
    )
