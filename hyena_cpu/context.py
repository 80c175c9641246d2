"""What a mixer needs to know about the rows it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels

Floats = NDArray[np.float32]

# Pieces of at most so many rows have the bits that they have row by row.
FEW_ROWS = 64


@dataclass(frozen=True)
class Context:
    """Where each sequence lies in x [T, D], which holds their rows one after another, no padding.

    offsets: int64 [B + 1]; sequence b owns rows offsets[b] .. offsets[b + 1].
    positions: int64 [T], the position of each row in its own sequence.
    ids: int32 [T], the token of each row, for mixers that choose by it.
    threads: how many threads a kernel may use; never changes a result.
    compat: names of the originals' behaviours asked for (`wrap_filter`).
    keep: whether states take the rows in; if not, they are read and stay as they are.
    prefix: rows of the first sequence that the others begin with; they bring what follows only.
    long: whether every piece, or the first where there is a prefix, has more than FEW_ROWS rows.
    memory: where the layers of one pass make their large arrays, one after another.
    """

    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    ids: NDArray[np.int32]
    threads: int
    compat: frozenset[str] = frozenset()
    keep: bool = True
    prefix: int = 0
    long: bool = False
    memory: kernels.Memory = field(default_factory=lambda: kernels.Memory())

    @property
    def alone(self) -> bool:
        """Whether there is one sequence only."""
        return len(self.offsets) == 2

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """(sequence, first row, row after the last) of every sequence."""
        rows = self.offsets.tolist()
        for b, (first, last) in enumerate(pairwise(rows)):
            yield b, first, last


def context(
    pieces: list[NDArray[np.int32]],
    starts: list[int],
    threads: int,
    compat: frozenset[str] = frozenset(),
    *,
    keep: bool = True,
    prefix: int = 0,
) -> Context:
    """A context for B sequences that append the ids of `pieces` from positions `starts` on."""
    lengths = [len(piece) for piece in pieces]
    offsets = np.cumsum([0, *lengths], dtype=np.int64)
    positions = np.concatenate(
        [np.arange(s, s + n, dtype=np.int64) for s, n in zip(starts, lengths, strict=True)]
    )
    ids = np.concatenate(pieces)
    long = min(lengths[:1] if prefix else lengths) > FEW_ROWS
    return Context(offsets, positions, ids, threads, compat, keep, prefix, long)


def split(rows: NDArray[Any], batch: list[NDArray[np.int32]]) -> list[NDArray[Any]]:
    """Rows end to end as those of each sequence."""
    return np.split(rows, np.cumsum([len(ids) for ids in batch]))[:-1]
