"""Linear attention: sums over the past of k^T v, from which every query reads.

Based (arXiv 2402.18668, section 4): q and k of a head go through the features of 1 + s + s^2 / 2,
s = q . k / sqrt(f); the output is divided by the sum of these weights.

RetNet (arXiv 2307.08621, section 2): the sums of head h decay by 1 - 2^(-5-h) a token, q and k turn
with their position, and heads are normalised one by one and gated:

    y = out_proj(silu(gate_proj u) * group_norm(retention(q_proj u, k_proj u / sqrt(hd), v_proj u)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config_recurrent import BasedConfig, RetNetConfig
from ..linear import Linear, packing_of
from ..spectra import LANES
from .recurrent import Rows

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

ROWS = 8  # of a state are worked on together (csrc/scan.hpp)


class Based:
    """One Based layer. Numbers of a sequence: [H, F, C], as in `kernels.linear_scan`."""

    def __init__(self, config: BasedConfig, tensors: Tensors, d_model: int) -> None:
        f = config.feature_width
        self.eps = config.eps
        self.d_model = d_model
        self.query_width = config.heads * f
        self.qkv = _beside(tensors)
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        features = 1 + f + f * (f + 1) // 2
        self.shape = _state_shape(config.heads, features, d_model // config.heads + 1)

    def start(self) -> Floats:
        """Zeros."""
        return np.zeros(int(np.prod(self.shape)), np.float32)

    def add_to(self, x: Floats, rows: Rows, numbers: Sequence[Floats]) -> None:
        """x [T, D] += outputs of the rows; advances the numbers in place."""
        qkv = self.qkv(rows.h, rows.threads)
        width = self.query_width
        q, k, v = qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :]
        for own, (first, last) in zip(numbers, rows.spans, strict=True):
            kernels.linear_scan(
                q[first:last],
                k[first:last],
                v[first:last],
                own.reshape(self.shape),
                out=rows.h[first:last],
                taylor=True,
                eps=self.eps,
                threads=rows.threads,
            )
        self.out_proj.add_to(x, rows.h, rows.threads)

    def buffers(self) -> list[tuple[str, int]]:
        """(name, floats of a row) of what `add_to` holds at its peak."""
        return [("projections", 2 * self.query_width + self.d_model)]


class RetNet:
    """One retention layer. Numbers of a sequence: [H, hd, C], as in `kernels.linear_scan`."""

    def __init__(self, config: RetNetConfig, tensors: Tensors, d_model: int) -> None:
        heads = config.heads
        self.config = config
        self.d_model = d_model
        self.qkv = _beside(tensors, scale=(d_model // heads) ** -0.5)
        self.gate_proj = Linear.from_tensors(tensors, "gate_proj")
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        self.decay = (1.0 - 2.0 ** (-5.0 - np.arange(heads))).astype(np.float32)
        self.shape = _state_shape(heads, d_model // heads, config.value_width // heads)
        self.ones = np.ones(config.value_width // heads, np.float32)

    def start(self) -> Floats:
        """Zeros."""
        return np.zeros(int(np.prod(self.shape)), np.float32)

    def add_to(self, x: Floats, rows: Rows, numbers: Sequence[Floats]) -> None:
        """x [T, D] += outputs of the rows; advances the numbers in place."""
        config, D, threads = self.config, self.d_model, rows.threads
        qkv = self.qkv(rows.h, threads)
        # q and k lie side by side: turned together, every angle is computed once.
        turned = qkv[:, : 2 * D]
        kernels.rotary(turned, rows.positions, 2 * config.heads, config.base, threads=threads)
        y = np.empty((len(x), config.value_width), np.float32)
        for own, (first, last) in zip(numbers, rows.spans, strict=True):
            kernels.linear_scan(
                qkv[first:last, :D],
                qkv[first:last, D : 2 * D],
                qkv[first:last, 2 * D :],
                own.reshape(self.shape),
                self.decay,
                y[first:last],
                position=int(rows.positions[first]),
                threads=threads,
            )
        heads = y.reshape(-1, len(self.ones))
        kernels.layer_norm(heads, self.ones, None, config.eps, heads, threads=threads)
        y *= self.gate_proj(rows.h, threads, "silu")
        self.out_proj.add_to(x, y, threads)

    def buffers(self) -> list[tuple[str, int]]:
        """(name, floats of a row) of what `add_to` holds at its peak."""
        V = self.config.value_width
        return [("projections", 2 * self.d_model + V), ("heads and gate", 2 * V)]


def _beside(tensors: Tensors, scale: float = 1.0) -> Linear:
    """One projection to q, k, v in the place of three; k times a number."""
    q, k, v = (tensors[f"{name}_proj.weight"] for name in "qkv")
    return Linear(np.concatenate([q, k * np.float32(scale), v]), None, packing_of(tensors))


def _state_shape(heads: int, features: int, columns: int) -> tuple[int, int, int]:
    """Whole blocks of rows and columns, as `kernels.linear_scan` wants them."""
    return heads, -(-features // ROWS) * ROWS, -(-columns // LANES) * LANES
