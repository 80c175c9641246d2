"""From the hidden states of a sequence to one vector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def pooled(h: Floats, ids: NDArray[np.int32], pool: str, pad: int | None) -> Floats:
    """h [T, D] -> [D] by a rule of `ClassifierConfig`; ids [T], pad the id of the pad token."""
    if pool in ("mean", "sum"):
        total = h.astype(np.float64).sum(axis=0)
        return (total / len(h) if pool == "mean" else total).astype(np.float32)
    if pool == "first":
        return h[0]
    if pool == "last" or pad is None:
        return h[-1]
    pads = np.flatnonzero(ids == pad)
    return h[int(pads[0]) - 1] if len(pads) else h[-1]
