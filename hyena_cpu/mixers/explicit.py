"""safari's layers with explicit filters: LongConv and H3Conv (HazyResearch/safari).

The originals cut a filter to the transform, not to the input, so that on inputs shorter than the
filter its tail wraps around and the future leaks into the past. Here taps act on the past only;
`compat=("wrap_filter",)` brings the leak back for weights that rely on it, whole sequences only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels, online_bytes
from ..config import H3ConvConfig, LongConvConfig
from ..context import Context
from ..conv_state import ConvState
from ..errors import ModelError
from ..filters import build_filter
from ..linear import Linear
from ..norm import Norm
from ..online import OnlineConv
from ..online_taps import Convolutions, OnlineTaps
from ..spectra import LANES, FilterBank, tile_bytes
from .hyena import pad_lanes

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

WRAP = "wrap_filter"
_ROWS = 2048  # that go through the output layer of LongConv at a time


class LongConv:
    """y = GLU(out_proj(GELU(conv(k_c, u) + skip_c u))) over the copies c of each channel."""

    causal = True

    def __init__(
        self, config: LongConvConfig, tensors: Tensors, d_model: int, convolutions: Convolutions
    ) -> None:
        self.config = config
        self.d_model = d_model
        source = build_filter(
            config.filter, {"taps": tensors["filter.taps"]}, config.channels * d_model
        )
        self.taps = [convolutions.add(source, c * d_model, d_model) for c in range(config.channels)]
        self.skips = [pad_lanes(row) for row in tensors["skip"]]
        self.out_proj = Linear.from_tensors(tensors, "out_proj")

    def new_state(self) -> ConvState:
        """Every copy's convolution."""
        return ConvState([OnlineConv(taps) for taps in self.taps], alike=True)

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        mixed = self._mixed(states, x, norm, ctx)
        for first in range(0, len(x), _ROWS):
            rows = mixed[first : first + _ROWS]
            kernels.gelu_erf(rows, out=rows, threads=ctx.threads)
            out = kernels.glu(self.out_proj(rows, ctx.threads), threads=ctx.threads)
            x[first : first + _ROWS] += out

    def _mixed(
        self, states: Sequence[ConvState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> Floats:
        """The convolutions of norm(x), copy after copy: [T, copies D]."""
        mixed = np.empty((len(x), len(self.taps) * self.d_model), np.float32)
        for b, first, last in ctx.segments():
            u = kernels.rows_to_tiles(norm(x[first:last], ctx.threads), threads=ctx.threads)
            for c, (taps, skip) in enumerate(zip(self.taps, self.skips, strict=True)):
                conv = None if states is None else states[b].convs[c]
                y = convolve(taps, conv, u, skip, None, ctx)
                out = mixed[first:last, c * self.d_model : (c + 1) * self.d_model]
                kernels.tiles_to_rows(y, self.d_model, out=out, threads=ctx.threads)
                del y
            if states is not None:
                states[b].share()
        return mixed

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:
        """See Mixer."""
        row = 4 * self.d_model * rows
        tiles = tile_bytes(-(-self.d_model // LANES), rows if alone else -(-rows // 2))
        return [  # of several sequences, all as long as the longest, one at a time
            ("convolutions", len(self.taps) * row + (1 if kept else 2) * tiles),
            ("mixer output", 3 * 4 * self.d_model * min(rows, _ROWS)),
        ]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:
        """See Mixer."""
        each = [online_bytes.state(taps, length, ahead) for taps in self.taps]
        shared = (
            0 if ahead is not None else (len(each) - 1) * online_bytes.history(self.taps[0], length)
        )
        return sum(each) - shared


class H3Conv:
    """y = out_proj(q * conv(K2, v * conv(K1, k))), each convolution with its skip; head size 1."""

    causal = True

    def __init__(
        self, config: H3ConvConfig, tensors: Tensors, d_model: int, convolutions: Convolutions
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.projections = [Linear.from_tensors(tensors, f"{name}_proj") for name in "qkv"]
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        names = ("shift_filter.taps", "filter.taps")
        sources = [build_filter(config.filter, {"taps": tensors[n]}, d_model) for n in names]
        self.taps = [convolutions.add(source, 0, d_model) for source in sources]
        self.skips = [pad_lanes(tensors["shift_skip"]), pad_lanes(tensors["skip"])]

    def new_state(self) -> ConvState:
        """Both convolutions."""
        return ConvState([OnlineConv(taps) for taps in self.taps])

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        h = norm(x, ctx.threads)
        q, k, v = (project(h, ctx.threads) for project in self.projections)
        for b, first, last in ctx.segments():
            convs = [None, None] if states is None else states[b].convs
            qt, kt, vt = (
                kernels.rows_to_tiles(rows[first:last], threads=ctx.threads) for rows in (q, k, v)
            )
            s = convolve(self.taps[0], convs[0], kt, self.skips[0], vt, ctx)
            mixed = convolve(self.taps[1], convs[1], s, self.skips[1], qt, ctx)
            kernels.tiles_to_rows(mixed, self.d_model, out=h[first:last], threads=ctx.threads)
        self.out_proj.add_to(x, h, ctx.threads)

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:  # noqa: ARG002
        """See Mixer."""
        row = 4 * self.d_model * rows
        return [
            ("normalised rows", row),
            ("projections", 3 * row),
            ("convolutions", 5 * row),
            ("mixer output", 2 * row),
        ]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:
        """See Mixer."""
        return sum(online_bytes.state(taps, length, ahead) for taps in self.taps)


def convolve(
    taps: OnlineTaps,
    conv: OnlineConv | None,
    z: Floats,
    skip: Floats,
    post: Floats | None,
    ctx: Context,
) -> Floats:
    """Outputs of rows z [G, n, 16], causal or as the originals wrap them; conv None: all rows."""
    if WRAP not in ctx.compat:
        if conv is not None:
            if ctx.keep:
                return conv.extend(z, ctx.threads, skip=skip, post=post)
            whole = np.array([0, z.shape[1]])
            return conv.peek(z.copy(), whole, ctx.threads, skip=skip, post=post)
        return taps.bank.convolve(z, 0, ctx.threads, skip=skip, post=post)
    if conv is not None:
        raise ModelError(
            "compat 'wrap_filter' lets the future into the past, so there is no state to keep: "
            "use it on whole sequences only (logits, hidden), or drop it"
        )
    return _wrapped(taps.bank, z, skip, post, ctx.threads)


def _wrapped(
    bank: FilterBank, z: Floats, skip: Floats, post: Floats | None, threads: int
) -> Floats:
    """A circle of F = L + min(L, taps): y[t] = f[t] + f[t + F] with f the linear convolution."""
    groups, length, lanes = z.shape
    circle = length + min(length, bank.source.taps)
    reach = min(circle, bank.source.taps)
    padded = np.zeros((groups, circle + length, lanes), np.float32)
    padded[:, :length] = z
    size = kernels.transform_size(circle + length)
    f = bank.transform_convolve(padded, 0, size, reach, threads)
    y = f[:, :length] + f[:, circle:] + skip[:, None] * z
    return y if post is None else y * post
