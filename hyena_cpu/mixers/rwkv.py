"""RWKV-v4 (arXiv 2305.13048): time mixing and channel mixing.

Both see mixtures of a row and the one before it, x_m = u * m + shift(u) * (1 - m):

    time      y = out_proj(sigmoid(r_proj x_r) * wkv(k_proj x_k, v_proj x_v))
    channel   y = sigmoid(r_proj x_r) * v_proj(relu(k_proj x_k)^2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config_recurrent import RwkvChannelConfig, RwkvTimeConfig
from ..linear import Linear
from ..spectra import LANES
from .hyena import pad_lanes
from .recurrent import Rows

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

LEAST_EXPONENT = -1e30  # of a sum of nothing; and of a decay, which is zero long before


class RwkvTime:
    """One layer of time mixing. Numbers of a sequence: its last row [D], then [G, 4, 16] as in
    `kernels.wkv_scan`.
    """

    def __init__(
        self,
        config: RwkvTimeConfig,  # noqa: ARG002 (every operator is made alike)
        tensors: Tensors,
        d_model: int,
    ) -> None:
        self.d_model = d_model
        self.mixes = {name: tensors[f"mix_{name}"] for name in "kvr"}
        self.projections = {name: Linear.from_tensors(tensors, f"{name}_proj") for name in "kvr"}
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        with np.errstate(over="ignore"):
            rate = -np.exp(tensors["time_decay"].astype(np.float64))
        self.decay = pad_lanes(np.maximum(rate, LEAST_EXPONENT).astype(np.float32))
        self.bonus = pad_lanes(tensors["time_first"])

    def start(self) -> Floats:
        """A row of zeros, and sums of nothing."""
        sums = np.zeros((len(self.decay), 4, LANES), np.float32)
        sums[:, 2] = LEAST_EXPONENT
        return np.concatenate([np.zeros(self.d_model, np.float32), sums.ravel()])

    def add_to(self, x: Floats, rows: Rows, numbers: Sequence[Floats]) -> None:
        """x [T, D] += outputs of the rows; advances the numbers in place."""
        D, threads = self.d_model, rows.threads
        before = _shift(rows, numbers)
        k, v = (
            self.projections[name](_mixture(rows.h, before, self.mixes[name]), threads)
            for name in "kv"
        )
        both = np.empty((len(x), 2 * D), np.float32)
        self.projections["r"](_mixture(rows.h, before, self.mixes["r"]), threads, out=both[:, D:])
        for own, (first, last) in zip(numbers, rows.spans, strict=True):
            kernels.wkv_scan(
                k[first:last],
                v[first:last],
                self.decay,
                self.bonus,
                own[D:].reshape(-1, 4, LANES),
                both[first:last, :D],
                threads=threads,
            )
        self.out_proj.add_to(x, kernels.glu(both, threads=threads), threads)

    def buffers(self) -> list[tuple[str, int]]:
        """(name, floats of a row) of what `add_to` holds at its peak."""
        D = self.d_model
        return [("shifted and mixed rows", 3 * D), ("projections", 2 * D), ("gated rows", 3 * D)]


class RwkvChannel:
    """One layer of channel mixing. Numbers of a sequence: its last row [D]."""

    def __init__(self, config: RwkvChannelConfig, tensors: Tensors, d_model: int) -> None:
        self.d_model, self.width = d_model, config.width
        self.mixes = {name: tensors[f"mix_{name}"] for name in "kr"}
        self.projections = {name: Linear.from_tensors(tensors, f"{name}_proj") for name in "kvr"}

    def start(self) -> Floats:
        """A row of zeros."""
        return np.zeros(self.d_model, np.float32)

    def add_to(self, x: Floats, rows: Rows, numbers: Sequence[Floats]) -> None:
        """x [T, D] += outputs of the rows; advances the numbers in place."""
        D, threads = self.d_model, rows.threads
        before = _shift(rows, numbers)
        k = self.projections["k"](_mixture(rows.h, before, self.mixes["k"]), threads)
        np.maximum(k, 0.0, out=k)
        k *= k
        both = np.empty((len(x), 2 * D), np.float32)
        self.projections["v"](k, threads, out=both[:, :D])
        self.projections["r"](_mixture(rows.h, before, self.mixes["r"]), threads, out=both[:, D:])
        x += kernels.glu(both, threads=threads)

    def buffers(self) -> list[tuple[str, int]]:
        """(name, floats of a row) of what `add_to` holds at its peak."""
        D = self.d_model
        return [("shifted and mixed rows", 3 * D), ("keys", self.width), ("gated rows", 3 * D)]


def _shift(rows: Rows, numbers: Sequence[Floats]) -> Floats:
    """[T, D], the row before each; the last of every sequence becomes the first of its numbers."""
    D = rows.h.shape[1]
    before = np.empty_like(rows.h)
    before[1:] = rows.h[:-1]
    for own, (first, last) in zip(numbers, rows.spans, strict=True):
        before[first] = own[:D]
        own[:D] = rows.h[last - 1]
    return before


def _mixture(h: Floats, before: Floats, m: Floats) -> Floats:
    """h * m + before * (1 - m) [T, D]."""
    mixed = h * m
    mixed += before * (1.0 - m)
    return mixed
