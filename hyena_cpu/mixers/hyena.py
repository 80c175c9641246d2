"""Hyena operator of any order: short convolution, gates and N - 1 long convolutions.

Poli et al. 2023, definition 3.1; gate order as in HyenaDNA (Nguyen et al. 2023):

    x_0, .., x_{N-1}, v = short_conv(in_proj(u))
    for o = 0 .. N-2:   v = long_conv(h_o, v * x_{N-1-o}) + skip_o * (v * x_{N-1-o})
    y = out_proj(v * x_0)

An order of 2 has the shape of attention: x_0 asks, x_1 and v are what is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config import HyenaConfig
from ..context import Context
from ..errors import ModelError
from ..filters import build_filter
from ..linear import Linear
from ..online import OnlineConv
from ..online_taps import Convolutions, OnlineTaps
from ..spectra import LANES, FilterBank
from ..state import ConvState, ConvTail

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]


class Hyena:
    """One Hyena layer. Tensors are named as in docs/formats.md, without the layer prefix."""

    def __init__(
        self, config: HyenaConfig, tensors: Tensors, d_model: int, convolutions: Convolutions
    ) -> None:
        steps = config.order - 1
        self.config = config
        self.d_model = d_model
        self.causal = not config.bidirectional
        self.in_proj = Linear.from_tensors(tensors, "in_proj")
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        self.short_taps = np.ascontiguousarray(tensors["short_conv.weight"].T)  # [K, (N+1) D]
        self.short_bias = tensors.get("short_conv.bias")
        self.skips = (
            [pad_lanes(s) for s in tensors["skip"]] if "skip" in tensors else [None] * steps
        )
        filter_tensors = {
            name.removeprefix("filter."): t
            for name, t in tensors.items()
            if name.startswith("filter.")
        }
        self.taps: list[OnlineTaps] = []
        if steps:
            source = build_filter(config.filter, filter_tensors, steps * d_model)
            self.taps = [convolutions.add(source, o * d_model, d_model) for o in range(steps)]

    def new_state(self) -> ConvState:
        """Tail of the short convolution, and every long one."""
        return ConvState([OnlineConv(taps) for taps in self.taps], self._tail(None))

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, ctx: Context, residual: Floats
    ) -> None:
        """Appends rows x [T, D] to their sequences and adds its output to residual [T, D].

        Without states every sequence starts empty and nothing is remembered.
        """
        if ctx.alone:
            self._extend_one(None if states is None else states[0], x, ctx, residual)
            return
        projected = self.in_proj(x, ctx.threads)  # many short pieces share the products
        for b, first, last in ctx.segments():
            state = None if states is None else states[b]
            parts = self._short_conv(projected[first:last], self._tail(state), ctx.threads)
            mixed = self._mix(state, parts, ctx)
            kernels.tiles_to_rows(mixed, self.d_model, out=x[first:last], threads=ctx.threads)
        self.out_proj.add_to(residual, x, ctx.threads)

    def _extend_one(
        self, state: ConvState | None, x: Floats, ctx: Context, residual: Floats
    ) -> None:
        """One sequence, whose projection and mixer output are never in memory as a whole."""
        parts = kernels.project_conv(
            x,
            self.in_proj.packed,
            self.in_proj.bias,
            self.short_taps,
            self.short_bias,
            self._tail(state).rows,
            self.config.order + 1,
            threads=ctx.threads,
        )
        mixed = self._mix(state, parts, ctx)
        kernels.add_tiles(
            residual, mixed, self.out_proj.packed, self.out_proj.bias, threads=ctx.threads
        )

    def whole(self, x: Floats, ctx: Context, residual: Floats) -> None:
        """`extend` of complete sequences; the only form a bidirectional layer has."""
        if not self.causal and len(self.taps) != 1:
            raise ModelError("a bidirectional Hyena layer is supported at order 2 only")
        self.extend(None, x, ctx, residual)

    def _mix(self, state: ConvState | None, parts: Floats, ctx: Context) -> Floats:
        """x_0 .. x_{N-1}, v as tiles [N + 1, G, n, 16] -> v * x_0 after the convolutions.

        `parts` is scratch: a convolution may write over the v it has read, or keep it.
        """
        order = self.config.order
        v = parts[order]
        if not self.taps:
            return kernels.multiply_tiles(v, parts[0], out=v, threads=ctx.threads)
        for o, (taps, skip) in enumerate(zip(self.taps, self.skips, strict=True)):
            gate = parts[order - 1 - o]
            post = parts[0] if o == order - 2 else None
            if not self.causal:
                v = delayed_convolve(taps.bank, v, gate, skip, post, ctx.threads)
            elif state is None:
                v = taps.bank.convolve(v, 0, ctx.threads, skip=skip, pre=gate, post=post, out=v)
            else:
                v = state.convs[o].extend(v, ctx.threads, skip=skip, pre=gate, post=post)
        return v

    def _short_conv(self, p: Floats, tail: ConvTail, threads: int) -> Floats:
        """Projected rows p [n, (N+1) D] -> x_0 .. x_{N-1}, v as tiles [N + 1, G, n, 16]."""
        parts = self.config.order + 1
        tiles = kernels.short_conv(
            p, self.short_taps, self.short_bias, tail.rows, parts, threads=threads
        )
        tail.push(p)
        return tiles

    def _tail(self, state: ConvState | None) -> ConvTail:
        """That of the state, or a fresh one where nothing is remembered."""
        if state is not None and state.tail is not None:
            return state.tail
        return ConvTail(self.config.short_taps, (self.config.order + 1) * self.d_model)

    def buffers(self, length: int) -> list[tuple[str, int]]:
        """(name, bytes) of what one call on `length` rows holds at its peak, filters apart."""
        groups = -(-self.d_model // LANES)
        # A state keeps the gated inputs of a chunk beside the chunk itself.
        return [("gates and values", 4 * LANES * groups * length * (self.config.order + 2))]

    def state_bytes(self, length: int) -> int:
        """Bytes of one state after `length` tokens that grows on."""
        tail = 4 * (self.config.short_taps - 1) * (self.config.order + 1) * self.d_model
        return tail + sum(taps.state_bytes(length) for taps in self.taps)


def pad_lanes(values: Floats) -> Floats:
    """[D] -> [ceil(D / 16), 16], missing lanes zero."""
    padded = np.zeros(-(-len(values) // 16) * 16, np.float32)
    padded[: len(values)] = values
    return padded.reshape(-1, 16)


def delayed_convolve(
    bank: FilterBank,
    v: Floats,
    gate: Floats,
    skip: Floats | None,
    post: Floats | None,
    threads: int,
) -> Floats:
    """The bidirectional form (of HyenaDNA's code): v * gate delayed by floor(L / 2) and
    convolved on a circle of 2 L; the skip and the gates are not delayed.

    With f the linear convolution of length 2 L, the output is f[(t - floor(L / 2)) mod 2 L].
    """
    z = kernels.multiply_tiles(v, gate, threads=threads)
    groups, length, lanes = z.shape
    padded = np.zeros((groups, 2 * length, lanes), np.float32)
    padded[:, :length] = z
    size = kernels.transform_size(2 * length)
    f = bank.transform_convolve(padded, 0, size, min(length, bank.source.taps), threads)
    y = f[:, (np.arange(length) - length // 2) % (2 * length)]
    if skip is not None:
        y += skip[:, None] * z
    return y if post is None else y * post
