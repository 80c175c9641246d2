"""Long filters made by an MLP with one hidden layer of ReLUs (Zoology's implicit BaseConv).

    h[c, t] = relu(z[t] W_0^T + b_0) W_1[c]^T + b_1[c]

No window, no normalisation. Letters as in `filters`: C channels, L taps, P width, E features.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from . import kernels

Array = NDArray[np.float32]

_TILE = 16  # times in one tile of hidden units
_PIECE = 1 << 15  # times computed at once, a multiple of _TILE; bounds the hidden units


class ReluFilter:
    """A `filters.LongFilter`: the hidden layer in float64, the last one in float32."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._features = tensors["features"]  # [L, E]
        self._weight = tensors["linear.0.weight"].astype(np.float64)  # [P, E]
        self._bias = tensors["linear.0.bias"].astype(np.float64)  # [P]
        last = tensors["linear.1.weight"], tensors["linear.1.bias"][:, None]
        self._last = np.concatenate(last, axis=1)  # [C, P + 1], for a hidden unit more that is 1

    @property
    def channels(self) -> int:
        """C."""
        return len(self._last)

    @property
    def taps(self) -> int:
        """L."""
        return len(self._features)

    def prepare(self, length: int, threads: int) -> None:
        """Nothing is kept: the hidden layer costs little beside the last one."""

    def block(self, c0: int, c1: int, t0: int, t1: int, threads: int = 1) -> Array:
        """See LongFilter."""
        out = np.zeros((c1 - c0, t1 - t0), np.float32)
        for first in range(t0, min(t1, self.taps), _PIECE):
            n = min(t1, self.taps, first + _PIECE) - first
            out[:, first - t0 : first - t0 + n] = kernels.filter_block(
                self._hidden(first, n), self._last[c0:c1], None, None, 0.0, 0, n, threads
            )
        return out

    def _hidden(self, first: int, n: int) -> Array:
        """Hidden units of n times as tiles [ceil(n / 16), P + 1, 16], sums in one fixed order."""
        z = self._features[first : first + n].astype(np.float64)
        width = len(self._bias)
        tiles = np.zeros((-(-n // _TILE), width + 1, _TILE), np.float32)
        unit = np.zeros((len(tiles), _TILE))
        for p in range(width):
            total = np.full(n, self._bias[p])
            for e in range(z.shape[1]):
                total += self._weight[p, e] * z[:, e]
            unit.reshape(-1)[:n] = np.maximum(total, 0)
            tiles[:, p] = unit
        tiles[:, width] = 1
        return tiles

    def nbytes(self, length: int) -> int:  # noqa: ARG002
        """See LongFilter."""
        return 0

    def working_bytes(self, length: int) -> int:
        """See LongFilter. Features, sums and hidden units of a piece."""
        return 4 * (self._last.shape[1] + 2 * self._features.shape[1] + 8) * min(length, _PIECE)

    def release(self, limit: int) -> None:
        """Nothing is kept."""
