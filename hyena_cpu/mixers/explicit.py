"""safari's layers with explicit filters: LongConv and H3Conv (safari spec, section 4).

The originals cut a filter to the transform, not to the input, so that on inputs shorter than the
filter its tail wraps around and the future leaks into the past. Here taps act on the past only;
`compat=("wrap_filter",)` brings the leak back for weights that rely on it, whole sequences only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config import FilterConfig, H3ConvConfig, LongConvConfig
from ..context import Context
from ..errors import ModelError
from ..filters import build_filter
from ..linear import Linear
from ..spectra import FilterBank, SpectraCache
from ..state import ConvHistory, ConvState
from .hyena import history_bytes, pad_lanes

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]

WRAP = "wrap_filter"


class LongConv:
    """y = GLU(out_proj(GELU(conv(k_c, u) + skip_c u))) over the copies c of each channel."""

    causal = True

    def __init__(
        self, config: LongConvConfig, tensors: Tensors, d_model: int, cache: SpectraCache
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.banks = _banks(config.filter, tensors["filter.taps"], config.channels, d_model, cache)
        self.skips = [pad_lanes(row) for row in tensors["skip"]]
        self.out_proj = Linear.from_tensors(tensors, "out_proj")

    def new_state(self) -> ConvState:
        """One history of the input; all copies of a channel read it."""
        return ConvState([ConvHistory(self.d_model, self.config.filter.taps - 1)])

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, ctx: Context, residual: Floats
    ) -> None:
        """Appends rows x [T, D] to their sequences and adds its output to residual [T, D]."""
        copies = len(self.banks)
        mixed = np.empty((len(x), copies * self.d_model), np.float32)
        for b, first, last in ctx.segments():
            u = kernels.rows_to_tiles(x[first:last], threads=ctx.threads)
            z = u if states is None else _remember(states[b].histories[0], u)
            for c, (bank, skip) in enumerate(zip(self.banks, self.skips, strict=True)):
                y = _convolve(bank, z, u.shape[1], skip, None, ctx, alone=states is None)
                columns = slice(c * self.d_model, (c + 1) * self.d_model)
                mixed[first:last, columns] = kernels.tiles_to_rows(
                    y, self.d_model, threads=ctx.threads
                )
        kernels.gelu_erf(mixed, out=mixed, threads=ctx.threads)
        residual += kernels.glu(self.out_proj(mixed, ctx.threads), threads=ctx.threads)

    def whole(self, x: Floats, ctx: Context, residual: Floats) -> None:
        """`extend` of complete sequences."""
        self.extend(None, x, ctx, residual)

    def buffers(self, length: int) -> list[tuple[str, int]]:
        """(name, bytes) of what one call on `length` rows holds at its peak, filters apart."""
        row = 4 * self.d_model * length
        copies = len(self.banks)
        return [
            ("convolutions", (2 + copies) * row),
            ("mixer output", 3 * row),
        ]

    def state_bytes(self, length: int, new: int) -> int:
        """Bytes of one state after `length` tokens, the last `new` in one call, that grows on."""
        return history_bytes(self.banks[0], length, new)


class H3Conv:
    """y = out_proj(q * conv(K2, v * conv(K1, k))), each convolution with its skip; head size 1."""

    causal = True

    def __init__(
        self, config: H3ConvConfig, tensors: Tensors, d_model: int, cache: SpectraCache
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.projections = [Linear.from_tensors(tensors, f"{name}_proj") for name in "qkv"]
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        names = ("shift_filter.taps", "filter.taps")
        self.banks = [_banks(config.filter, tensors[n], 1, d_model, cache)[0] for n in names]
        self.skips = [pad_lanes(tensors["shift_skip"]), pad_lanes(tensors["skip"])]

    def new_state(self) -> ConvState:
        """Histories of the inputs of both convolutions."""
        reach = self.config.filter.taps - 1
        return ConvState([ConvHistory(self.d_model, reach), ConvHistory(self.d_model, reach)])

    def extend(
        self, states: Sequence[ConvState] | None, x: Floats, ctx: Context, residual: Floats
    ) -> None:
        """Appends rows x [T, D] to their sequences and adds its output to residual [T, D]."""
        q, k, v = (project(x, ctx.threads) for project in self.projections)
        alone = states is None
        for b, first, last in ctx.segments():
            n = last - first
            qt, kt, vt = (
                kernels.rows_to_tiles(rows[first:last], threads=ctx.threads) for rows in (q, k, v)
            )
            z = kt if states is None else _remember(states[b].histories[0], kt)
            s = _convolve(self.banks[0], z, n, self.skips[0], vt, ctx, alone=alone)
            z = s if states is None else _remember(states[b].histories[1], s)
            mixed = _convolve(self.banks[1], z, n, self.skips[1], qt, ctx, alone=alone)
            kernels.tiles_to_rows(mixed, self.d_model, out=x[first:last], threads=ctx.threads)
        self.out_proj.add_to(residual, x, ctx.threads)

    def whole(self, x: Floats, ctx: Context, residual: Floats) -> None:
        """`extend` of complete sequences."""
        self.extend(None, x, ctx, residual)

    def buffers(self, length: int) -> list[tuple[str, int]]:
        """(name, bytes) of what one call on `length` rows holds at its peak, filters apart."""
        row = 4 * self.d_model * length
        return [
            ("projections", 3 * row),
            ("convolutions", 5 * row),
            ("mixer output", 2 * row),
        ]

    def state_bytes(self, length: int, new: int) -> int:
        """Bytes of one state after `length` tokens, the last `new` in one call, that grows on."""
        return sum(history_bytes(bank, length, new) for bank in self.banks)


def _banks(
    config: FilterConfig, taps: Floats, copies: int, d_model: int, cache: SpectraCache
) -> list[FilterBank]:
    source = build_filter(config, {"taps": taps}, copies * d_model)
    return [FilterBank(source, c * d_model, d_model, cache) for c in range(copies)]


def _remember(history: ConvHistory, u: Floats) -> Floats:
    """Appends tiles u to the history and returns all that the newest rows can see."""
    n = u.shape[1]
    history.append(n)[...] = u
    return history.window(n)


def _convolve(
    bank: FilterBank,
    z: Floats,
    n: int,
    skip: Floats,
    post: Floats | None,
    ctx: Context,
    *,
    alone: bool,
) -> Floats:
    """The newest n rows of the convolution of z, causal or as the originals wrap it."""
    if WRAP not in ctx.compat:
        return bank.convolve(z, z.shape[1] - n, ctx.threads, skip=skip, post=post)
    if not alone:
        raise ModelError(
            "compat 'wrap_filter' lets the future into the past, so there is no state to keep: "
            "use it on whole sequences only (logits, hidden), or drop it"
        )
    return _wrapped(bank, z, skip, post, ctx.threads)


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
