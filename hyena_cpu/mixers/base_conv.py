"""Zoology's BaseConv (Arora et al. 2023, arXiv 2312.04927, and its code).

    y = conv(u) * (W u + b) + u

conv is a short convolution with a bias, or a long one with a skip of 1. With `activation` both
factors go through SiLU. The u that is added is the normed one; the residual stream comes on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels, online_bytes
from ..config import BaseConvConfig
from ..context import Context
from ..conv_state import ConvState, ConvTail, tail_bytes
from ..filters import build_filter
from ..linear import Linear, under
from ..norm import Norm
from ..online import OnlineConv
from ..online_taps import Convolutions, OnlineTaps
from ..spectra import LANES
from .explicit import WRAP, convolve
from .hyena import append_each, pad_lanes

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]


class BaseConv:
    """One BaseConv layer. Tensors are named as in docs/formats.md, without the layer prefix."""

    causal = True

    def __init__(
        self, config: BaseConvConfig, tensors: Tensors, d_model: int, convolutions: Convolutions
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.projection = Linear.from_tensors(tensors, "projection")
        self.taps: list[OnlineTaps] = []
        if config.filter is None:
            self.short_taps = np.ascontiguousarray(tensors["short_conv.weight"].T)  # [K, D]
            self.short_bias = tensors["short_conv.bias"]
            return
        source = build_filter(config.filter, under(tensors, "filter."), d_model)
        self.taps = [convolutions.add(source, 0, d_model)]
        self.explicit = config.filter.kind == "explicit"
        self.skip = pad_lanes(np.ones(d_model, np.float32))

    def new_state(self) -> ConvState:
        """The end of what the short convolution was given, or the long one."""
        if self.config.filter is None:
            return ConvState([], ConvTail(self.config.short_taps, self.d_model, self.d_model))
        return ConvState([OnlineConv(taps) for taps in self.taps])

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        u = norm(x, ctx.threads)
        if self.config.filter is None:
            conv = self._short(states, x, u, norm, ctx)
        else:
            conv = self._long(states, u, ctx)
        act = "silu" if self.config.activation else "none"
        y = self.projection(u, ctx.threads, act)
        if self.config.activation:
            kernels.silu(conv, out=conv, threads=ctx.threads)
        y *= conv
        y += u
        x += y

    def _short(
        self, states: Sequence[ConvState] | None, x: Floats, u: Floats, norm: Norm, ctx: Context
    ) -> Floats:
        """conv(u) [T, D] of u = norm(x)."""
        out = np.empty_like(u)
        before = np.zeros((self.config.short_taps - 1, self.d_model), np.float32)
        for b, first, last in ctx.segments():
            tail = None if states is None else states[b].tail
            if tail is not None:
                before = tail.known_rows(lambda rows: norm(rows, ctx.threads))
            tiles = kernels.short_conv(
                u[first:last], self.short_taps, self.short_bias, before, 1, threads=ctx.threads
            )
            kernels.tiles_to_rows(tiles[0], self.d_model, out=out[first:last], threads=ctx.threads)
            if tail is not None and ctx.keep:
                newest = u[max(first, last - len(before)) : last]
                tail.take_in(x[first:last], np.concatenate([before[len(newest) :], newest]))
        return out

    def _long(self, states: Sequence[ConvState] | None, u: Floats, ctx: Context) -> Floats:
        """conv(u) [T, D]; the originals wrap explicit filters alone."""
        taps, z = self.taps[0], kernels.rows_to_tiles(u, threads=ctx.threads)
        convs = None if states is None else [state.convs[0] for state in states]
        if WRAP in ctx.compat and self.explicit:
            for b, first, last in ctx.segments():
                own, rows = None if convs is None else convs[b], slice(first, last)
                z[:, rows] = convolve(taps, own, z[:, rows], self.skip, None, ctx)
        elif convs is None:
            z = taps.bank.convolve_each(z, ctx.offsets, ctx.threads, skip=self.skip)
        else:
            z = append_each(convs, z, ctx, self.skip, None, None)
        return kernels.tiles_to_rows(z, self.d_model, threads=ctx.threads)

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:
        """See Mixer."""
        row, tile = 4 * self.d_model * rows, 4 * LANES * -(-self.d_model // LANES) * rows
        # A convolution works in place unless its input is kept, or is that of several sequences.
        # With a state, what came before a chunk is put in front of it.
        more = 0 if self.config.filter is None else 2 if kept else 0 if alone else 1
        return [
            ("normalised rows", row),
            ("convolutions", (1 + more) * tile + row),
            ("projections", row),
        ]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:
        """See Mixer."""
        if self.config.filter is None:
            return tail_bytes(self.config.short_taps, self.d_model, self.d_model)
        return sum(online_bytes.state(taps, length, ahead) for taps in self.taps)
