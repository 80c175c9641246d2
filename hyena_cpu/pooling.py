"""From the hidden states of a sequence to one vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

BLOCK_ROWS = 4096  # positions summed at a time: part of the definition of a mean, to the bit


def blocks_of(h: Floats) -> Iterator[Floats]:
    """h [T, D] cut where every pooling cuts it: views [<= BLOCK_ROWS, D], in order."""
    for t in range(0, len(h), BLOCK_ROWS):
        yield h[t : t + BLOCK_ROWS]


def total(blocks: Iterable[Floats]) -> tuple[NDArray[np.float64], int]:
    """Sum [D] over all rows of blocks cut as by `blocks_of`, and the number of rows.

    Each block is summed in float64 by itself and the sums are added in order, so the bits depend
    on the positions alone: neither on threads nor on what else was computed with them.
    """
    sums, rows = np.zeros(()), 0
    for block in blocks:
        sums = sums + block.astype(np.float64).sum(axis=0)
        rows += len(block)
    return sums, rows


def mean(blocks: Iterable[Floats]) -> Floats:
    """[D]: the mean over all rows, accumulated in float64; see `total`."""
    sums, rows = total(blocks)
    return (sums / rows).astype(np.float32)


def last(blocks: Iterable[Floats]) -> Floats:
    """[D]: the row of the last position."""
    for block in blocks:
        row = block[-1]
    return row.copy()


def pooled(h: Floats, ids: NDArray[np.int32], pool: str, pad: int | None) -> Floats:
    """h [T, D] -> [D] by a rule of `ClassifierConfig`; ids [T], pad the id of the pad token."""
    if pool == "mean":
        return mean(blocks_of(h))
    if pool == "sum":
        return total(blocks_of(h))[0].astype(np.float32)
    if pool == "first":
        return h[0]
    if pool == "last" or pad is None:
        return h[-1]
    pads = np.flatnonzero(ids == pad)
    return h[int(pads[0]) - 1] if len(pads) else h[-1]
