"""What every form shares: the columns of a piece of a table, checked, and where whole records end.

Shapes: n rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Column = Sequence[Any] | NDArray[Any]
Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Vector:
    """The type of a column of vectors: arrays float32 [n, width]. Not for forms made of lines."""

    width: int

    @property
    def __name__(self) -> str:
        return f"float32[{self.width}]"


Kind = type | Vector
Types = Mapping[str, Kind]  # name -> int, float, str or Vector


def plain(types: Types) -> dict[str, type]:
    """The columns that are no vectors."""
    return {name: kind for name, kind in types.items() if isinstance(kind, type)}


@dataclass(frozen=True)
class Whole:
    """The whole records of a table: how many, how many of them failed, and where they end."""

    records: int = 0
    failed: int = 0
    size: int = 0  # bytes of the partial file


class Sink(Protocol):
    """A table on its way into a file or standard output. `whole` changes in one assignment, so
    an interrupt finds it as it was before a record or after it.
    """

    @property
    def whole(self) -> Whole: ...

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:
        """Appends n rows; `end` (its size is not used) says that they end a record."""

    def commit(self) -> Whole | None:
        """Brings whole records to the partial file if the form can; what is there then."""

    def keep(self) -> Whole:
        """Leaves the whole records in a partial file that is valid in its form."""

    def finish(self) -> None:
        """Puts the complete table in its place."""

    def close(self) -> None:
        """Lets go of files, and removes temporary ones. May be called twice."""


def checked(given: Columns, types: Types) -> tuple[dict[str, Column], int]:
    """The columns in the table's order, and how many rows they have; ValueError if they differ."""
    if given.keys() != types.keys():
        raise ValueError(f"columns {sorted(given)}, the table has {sorted(types)}")
    lengths = {len(column) for column in given.values()}
    if len(lengths) != 1:
        raise ValueError(f"columns of one record have different lengths: {sorted(lengths)}")
    return {name: given[name] for name in types}, lengths.pop()


def cells(column: Column) -> list[Any]:
    """The values as Python objects, None for whatever is missing (None or NaN)."""
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return [None if value is None or value != value else value for value in values]
