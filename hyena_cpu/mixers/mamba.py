"""Mamba's selective state space (arXiv 2312.00752, section 3.4 and algorithm 2):

    x, z = in_proj(u);  x = silu(short_conv(x));  r, B, C = x_proj(x);  dt = softplus(dt_proj(r))
    s = exp(dt A) s + dt B x,  A = -exp(A_log);   y = out_proj((C s + skip x) * silu(z))

A Mamba block is a layer of this mixer without an MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config_recurrent import MambaConfig
from ..linear import Linear
from .hyena import pad_lanes
from .recurrent import Rows

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

LEAST_RATE = -1e30  # of a decay, which is zero long before


class Mamba:
    """One Mamba layer. Numbers of a sequence: the last inputs of its short convolution [K - 1, I],
    then [G, N, 16] as in `kernels.selective_scan`.
    """

    def __init__(self, config: MambaConfig, tensors: Tensors, d_model: int) -> None:
        inner = config.inner
        self.config = config
        self.d_model = d_model
        self.x_in = Linear.from_tensors(tensors, "in_proj", slice(0, inner))
        self.z_in = Linear.from_tensors(tensors, "in_proj", slice(inner, None))
        self.taps = np.ascontiguousarray(tensors["short_conv.weight"].T)  # [K, I]
        self.conv_bias = tensors.get("short_conv.bias")
        self.x_proj = Linear.from_tensors(tensors, "x_proj")
        self.dt_proj = Linear.from_tensors(tensors, "dt_proj")
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        self.skip = pad_lanes(tensors["skip"])
        with np.errstate(over="ignore"):
            rates = -np.exp(tensors["A_log"].astype(np.float64))
        rates = np.maximum(rates, LEAST_RATE).astype(np.float32)
        self.rates = np.ascontiguousarray(
            np.stack([pad_lanes(rates[:, n]) for n in range(config.state)], axis=1)
        )  # [G, N, 16]

    @property
    def _tail(self) -> tuple[int, int]:
        return self.config.conv_taps - 1, self.config.inner

    def start(self) -> Floats:
        """Zeros."""
        before, inner = self._tail
        return np.zeros(before * inner + self.rates.size, np.float32)

    def add_to(self, x: Floats, rows: Rows, numbers: Sequence[Floats]) -> None:
        """x [T, D] += outputs of the rows; advances the numbers in place."""
        config, threads = self.config, rows.threads
        inner, R, N = config.inner, config.rank, config.state
        u = self.x_in(rows.h, threads)
        for own, (first, last) in zip(numbers, rows.spans, strict=True):
            self._convolve(u[first:last], own, threads)
        kernels.silu(u, u, threads=threads)
        p = self.x_proj(u, threads)
        dt = self.dt_proj(p[:, :R], threads)
        both = np.empty((len(x), 2 * inner), np.float32)
        self.z_in(rows.h, threads, out=both[:, :inner])
        for own, (first, last) in zip(numbers, rows.spans, strict=True):
            kernels.selective_scan(
                u[first:last],
                dt[first:last],
                p[first:last, R : R + N],
                p[first:last, R + N :],
                self.rates,
                self.skip,
                own[-self.rates.size :].reshape(self.rates.shape),
                both[first:last, inner:],
                threads=threads,
            )
        self.out_proj.add_to(x, kernels.swiglu(both, threads=threads), threads)

    def _convolve(self, u: Floats, own: Floats, threads: int) -> None:
        """The short convolution of one sequence's rows u [n, I], in place."""
        before, inner = self._tail
        tail = own[: before * inner].reshape(before, inner)
        newest = np.concatenate([tail, u[-before:] if before else u[:0]])
        tiles = kernels.short_conv(u, self.taps, self.conv_bias, tail, 1, threads=threads)
        kernels.tiles_to_rows(tiles[0], inner, u, threads=threads)
        tail[:] = newest[len(newest) - before :]

    def buffers(self) -> list[tuple[str, int]]:
        """(name, floats of a row) of what `add_to` holds at its peak."""
        inner = self.config.inner
        steps = self.config.rank + 2 * self.config.state
        return [("projections", 2 * inner + steps), ("gated rows", 3 * inner)]
