"""Hyena operator of any order: short convolution, gates and N - 1 long convolutions.

Poli et al. 2023, definition 3.1; gate order as in HyenaDNA (Nguyen et al. 2023):

    x_0, .., x_{N-1}, v = short_conv(in_proj(u))
    for o = 0 .. N-2:   v = long_conv(h_o, v * x_{N-1-o}) + skip_o * (v * x_{N-1-o})
    y = out_proj(v * x_0)

An order of 2 has the shape of attention: x_0 asks, x_1 and v are what is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .. import kernels, online_bytes
from ..config import HyenaConfig
from ..context import Context
from ..conv_state import ConvState, ConvTail, rows_before, tail_bytes
from ..errors import ModelError
from ..filters import build_filter
from ..linear import Linear, under
from ..norm import Norm
from ..online import OnlineConv, extend_each
from ..online_taps import Convolutions, OnlineTaps
from ..spectra import LANES, FilterBank, tile_bytes

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

_BLOCK = 128  # tokens that a thread works on (csrc/tokenwise.cpp)


class Hyena:
    """One Hyena layer. Tensors are named as in docs/formats.md, without the layer prefix."""

    def __init__(
        self, config: HyenaConfig, tensors: Tensors, d_model: int, convolutions: Convolutions
    ) -> None:
        steps = config.order - 1
        self.config = config
        self.d_model = d_model
        self.causal = self.branches = not config.bidirectional
        self.in_proj = Linear.from_tensors(tensors, "in_proj", long=True)
        self.out_proj = Linear.from_tensors(tensors, "out_proj", long=True)
        self.short_taps = np.ascontiguousarray(tensors["short_conv.weight"].T)  # [K, (N+1) D]
        self.short_bias = tensors.get("short_conv.bias")
        self.skips = (
            [pad_lanes(s) for s in tensors["skip"]] if "skip" in tensors else [None] * steps
        )
        self.taps: list[OnlineTaps] = []
        if steps:
            own = under(tensors, "filter.")
            source = build_filter(config.filter, own, steps * d_model)
            self.taps = [convolutions.add(source, o * d_model, d_model) for o in range(steps)]

    def new_state(self) -> ConvState:
        """Tail of the short convolution, and every long one."""
        channels = (self.config.order + 1) * self.d_model
        tail = ConvTail(self.config.short_taps, channels, self.d_model)
        return ConvState([OnlineConv(taps) for taps in self.taps], tail)

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x.

        Without states every sequence starts empty and nothing is remembered. Normalised rows,
        projection and output are never in memory as a whole. A bidirectional layer has no states.
        """
        if not self.causal and len(self.taps) != 1:
            raise ModelError("a bidirectional Hyena layer is supported at order 2 only")
        tails = None
        project = partial(self.project, norm=norm, threads=ctx.threads)
        if states is not None:
            tails = np.array([self.tail(s).known_rows(project) for s in states])
        elif ctx.prefix:
            own = rows_before(x[: ctx.prefix], self.short_taps[1:].shape, project)
            tails = np.array([np.zeros_like(own), *[own] * (len(ctx.offsets) - 2)])
        # x_0 is not stored but made where it is needed, unless states take rows in: there it
        # takes no memory, as outputs go where it was, and a step stays one product.
        late = bool(self.taps) and (states is None or not ctx.keep)
        weight = self.in_proj.weight(ctx.long)
        as_single = weight is self.in_proj.packed  # with the bits of a row by itself
        source = (x, norm.weights, weight, self.in_proj.bias)
        short = (self.short_taps, self.short_bias, tails, ctx.offsets)
        out, threads = (self.out_proj.weight(ctx.long), self.out_proj.bias), ctx.threads
        gates, z = kernels.project_conv(
            *source,
            *short,
            self.config.order + 1,
            first=1 if late else 0,
            memory=ctx.memory,
            threads=threads,
        )
        if states is not None and tails is not None and ctx.keep:
            for b, first, last in ctx.segments():
                tail = self.tail(states[b])
                tail.take_in(x[first:last], tails[b] if as_single else None)
                tail.make_rows(project)
        z = self._mix(states, gates, z, ctx)
        if late:
            kernels.add_gated_tiles(*source, *short, z, *out, threads=threads)
        else:
            kernels.add_tiles(x, z, *out, threads=threads)

    def _mix(
        self, states: Sequence[ConvState] | None, gates: Floats, z: Floats, ctx: Context
    ) -> Floats:
        """The convolutions between z = v * x_{N-1} [G, T, 16] and v, or x_0 * v, which is returned.

        `gates` holds x_1 .. x_{N-2} [N - 2, G, T, 16], or x_0 before them: then v is multiplied by
        it. z is scratch, or kept by a state.
        """
        order = self.config.order
        for o, (taps, skip) in enumerate(zip(self.taps, self.skips, strict=True)):
            pre = None if o == 0 else gates[-o]
            post = gates[0] if o == order - 2 and len(gates) == order - 1 else None
            if not self.causal:
                delayed_convolve(taps.bank, z, ctx, skip)
            elif ctx.prefix:
                z = convolve_branches(taps.bank, z, ctx, skip, pre)
            elif states is None:
                z = taps.bank.convolve_each(
                    z, ctx.offsets, ctx.threads, skip=skip, pre=pre, post=post
                )
            else:
                z = append_each([s.convs[o] for s in states], z, ctx, skip, pre, post)
        return z

    def project(self, x: Floats, norm: Norm, threads: int) -> Floats:
        """What the short convolution is given for the layer's inputs x [n, D]: [n, C]."""
        return self.in_proj(norm(x, threads), threads)

    def tail(self, state: ConvState) -> ConvTail:
        """The tail of a state. ModelError if it is of another kind of layer."""
        if state.tail is None:
            raise ModelError("hyena: a state of another kind of layer")
        return state.tail

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:
        """See Mixer."""
        tiles = tile_bytes(-(-self.d_model // LANES), rows)
        if kept and alone:  # what the state does not hold; outputs go where gates were
            held = all(online_bytes.history(taps, rows) >= tiles for taps in self.taps)
            return [("gates and values", tiles * (self.config.order - held))]
        # A convolution works in place unless its input is that of several sequences.
        if kept:
            return [("gates and values", tiles * (self.config.order + 2))]
        before = 4 * self.d_model * (self.config.short_taps - 1) * (rows // _BLOCK)
        arrays = max(1, self.config.order - 1) + (0 if alone else 1)
        if not self.causal:  # and twice the rows of one sequence, which may be nearly all
            arrays = 3
        return [("gates and values", tiles * arrays), ("rows before blocks", before)]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:
        """See Mixer."""
        channels = (self.config.order + 1) * self.d_model
        tail = tail_bytes(self.config.short_taps, channels, self.d_model)
        return tail + sum(online_bytes.state(taps, length, ahead) for taps in self.taps)


def pad_lanes(values: Floats) -> Floats:
    """[D] -> [ceil(D / 16), 16], missing lanes zero."""
    padded = np.zeros(-(-len(values) // 16) * 16, np.float32)
    padded[: len(values)] = values
    return padded.reshape(-1, 16)


def append_each(
    convs: Sequence[OnlineConv],
    z: Floats,
    ctx: Context,
    skip: Floats | None,
    pre: Floats | None,
    post: Floats | None,
) -> Floats:
    """Appends the rows z [G, T, 16] of every sequence to its convolution; outputs [G, T, 16].

    Rows that are not kept all follow the same one.
    """
    if not ctx.keep:
        return convs[0].peek(z, ctx.offsets, ctx.threads, skip=skip, pre=pre, post=post)
    if len(convs) == 1:
        return convs[0].extend(z, ctx.threads, skip=skip, pre=pre, post=post, scratch=True)
    if len(convs) == z.shape[1]:
        return extend_each(convs, z, ctx.threads, skip=skip, pre=pre, post=post)
    out = np.empty_like(z)
    for b, first, last in ctx.segments():
        rows = slice(first, last)
        # A copy, because a state keeps its rows, and should not keep those of the others with them.
        out[:, rows] = convs[b].extend(
            z[:, rows].copy(),
            ctx.threads,
            skip=skip,
            pre=None if pre is None else pre[:, rows],
            post=None if post is None else post[:, rows],
        )
    return out


def convolve_branches(
    bank: FilterBank, z: Floats, ctx: Context, skip: Floats | None, pre: Floats | None
) -> Floats:
    """`convolve_each` where later sequences begin with `ctx.prefix` rows of the first, not in z.

    A convolution is linear: the outputs of a branch are those of the trunk, and what the difference
    of their rows adds to them. z is scratch.
    """
    trunk, prefix = int(ctx.offsets[1]), ctx.prefix
    if pre is not None:
        z = kernels.multiply_tiles(z, pre, z, threads=ctx.threads)
    for b, first, last in ctx.segments():
        if b:
            z[:, first:last] -= z[:, prefix : prefix + last - first]
    out = np.empty_like(z)
    whole, branches = ctx.offsets[:2], ctx.offsets[1:] - trunk
    bank.convolve_each(z[:, :trunk], whole, ctx.threads, out=out[:, :trunk], skip=skip)
    if len(branches) > 1:
        add, rest = out[:, prefix:trunk], out[:, trunk:]
        bank.convolve_each(z[:, trunk:], branches, ctx.threads, out=rest, skip=skip, add=add)
    return out


def delayed_convolve(bank: FilterBank, z: Floats, ctx: Context, skip: Floats | None) -> None:
    """The bidirectional form (of HyenaDNA's code), in place: z delayed by floor(L / 2) and
    convolved on a circle of 2 L; the skip is not delayed.

    With f the linear convolution of length 2 L, the output is f[(t - floor(L / 2)) mod 2 L].
    """
    for _, first, last in ctx.segments():
        own, length = z[:, first:last], last - first
        f = np.zeros((len(z), 2 * length, LANES), np.float32)
        f[:, :length] = own
        size = kernels.transform_size(2 * length)
        reach = min(length, bank.source.taps)
        bank.transform_convolve(f, 0, size, reach, ctx.threads, out=f)
        own *= 0.0 if skip is None else skip[:, None]
        half = length // 2
        own[:, half:] += f[:, : length - half]
        own[:, :half] += f[:, 2 * length - half :]
