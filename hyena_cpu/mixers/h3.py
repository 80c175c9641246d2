"""H3 (Fu et al. 2022, "Hungry Hungry Hippos", arXiv 2212.14052, and its code).

    s = conv(shift filter, k) + shift_skip k
    y_ij = conv(filter, s_i v_j) + skip s_i v_j,    out_j = sum_i q_i y_ij

q, k and v are linear; i and j count the `head_dim` dimensions of a head. Channel i H + h is
dimension i of head h of H, so that part i is H neighbouring channels, one of each head.

Whole sequences, and the first rows of those that go on, come from long convolutions. All others
come token by token: the shift filter is a short one, and the other a recurrence, so that a state
has one size for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config import diagonal_filter, shift_filter
from ..config_ssm import H3Config
from ..context import Context
from ..filters import ModalFilter, build_filter
from ..linear import Linear, under
from ..modal_state import ModalState, Recurrence, extend_each
from ..norm import Norm
from ..online_taps import Convolutions, OnlineTaps
from ..scan_state import scan_bytes
from ..spectra import LANES
from .hyena import pad_lanes

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]


class H3:
    """One H3 layer. Tensors are named as in docs/formats.md, without the layer prefix."""

    causal = True

    def __init__(
        self, config: H3Config, tensors: Tensors, d_model: int, convolutions: Convolutions
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.parts, self.heads = config.head_dim, d_model // config.head_dim
        self.projections = [Linear.from_tensors(tensors, f"{name}_proj") for name in "qkv"]
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        shift = build_filter(shift_filter(config), under(tensors, "shift_filter."), d_model)
        source = build_filter(diagonal_filter(config), under(tensors, "filter."), self.heads)
        assert isinstance(source, ModalFilter)  # what every diagonal filter is
        self.shifts = [
            convolutions.add(shift, i * self.heads, self.heads, stepped=False)
            for i in range(self.parts)
        ]
        self.shift_skips = [
            pad_lanes(part) for part in tensors["shift_skip"].reshape(self.parts, self.heads)
        ]
        self.long = convolutions.add(source, 0, self.heads, stepped=False)
        self.skip = pad_lanes(tensors["skip"])
        self.recurrence = Recurrence(source, self.skip, self.parts)
        # The shift filter with its skip as a short convolution [K, D], its last row the newest.
        short = shift.block(0, d_model, 0, config.d_state)
        short[:, 0] += tensors["shift_skip"]
        self.short_taps = np.ascontiguousarray(short[:, ::-1].T)

    @property
    def taps(self) -> list[OnlineTaps]:
        """Its long convolutions."""
        return [*self.shifts, self.long]

    def new_state(self) -> ModalState:
        """The newest keys and values, and the modes of the recurrence."""
        return ModalState(self.recurrence, 2 * self.d_model, self.config.d_state - 1, self._inputs)

    def extend(
        self, states: Sequence[ModalState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        h = norm(x, ctx.threads)
        q, k, v = (project(h, ctx.threads) for project in self.projections)
        gates, values = self._tiles(q, ctx.threads), self._tiles(v, ctx.threads)
        if states is None:
            y = self._whole(self._tiles(k, ctx.threads), values, gates, ctx)
        else:
            y = self._continued(states, k, v, values, gates, ctx)
        for j, columns in enumerate(self._columns()):
            part = y[self._part(j)]
            kernels.tiles_to_rows(part, self.heads, out=h[:, columns], threads=ctx.threads)
        self.out_proj.add_to(x, h, ctx.threads)

    def _whole(self, keys: Floats, values: Floats, gates: Floats, ctx: Context) -> Floats:
        """Sequences from their beginning: tiles [P G, T, 16] in, and out."""
        out = np.empty_like(values)
        for i in range(self.parts):
            part = self._part(i)
            keys[part] = self.shifts[i].bank.convolve_each(
                keys[part], ctx.offsets, ctx.threads, skip=self.shift_skips[i]
            )
        for j in range(self.parts):
            for i in range(self.parts):
                z = keys[self._part(i)]
                y = self.long.bank.convolve_each(
                    z if self.parts == 1 else z.copy(),  # scratch, where no other pair needs it
                    ctx.offsets,
                    ctx.threads,
                    pre=values[self._part(j)],
                    skip=self.skip,
                    post=gates[self._part(i)],
                )
                out[self._part(j)] = y if i == 0 else out[self._part(j)] + y
        return out

    def _continued(
        self,
        states: Sequence[ModalState],
        k: Floats,
        v: Floats,
        values: Floats,
        gates: Floats,
        ctx: Context,
    ) -> Floats:
        """Rows that follow their states: k, v [T, D], values, gates [P G, T, 16]."""
        keys = np.empty_like(values)
        for b, first, last in ctx.segments():
            tail = states[b].tail[:, : self.d_model]
            keys[:, first:last] = self._shifted(k[first:last], tail, ctx.threads)
            if ctx.keep:
                states[b].take(np.concatenate([k[first:last], v[first:last]], axis=1))

        def whole() -> Floats:
            return self._whole(self._tiles(k, ctx.threads), values, gates, ctx)

        return extend_each(self.recurrence, states, keys, values, gates, ctx, whole)

    def _shifted(self, k: Floats, tail: Floats, threads: int) -> Floats:
        """Tiles [P G, n, 16] of keys k [n, D], after the shift filter; tail [K - 1, D]."""
        tiles = kernels.short_conv(k, self.short_taps, None, tail, self.parts, threads=threads)
        return tiles.reshape(-1, *tiles.shape[2:])

    def _inputs(self, rows: Floats, n: int) -> tuple[Floats, Floats]:
        """What the recurrence was given for the last n of rows [K - 1 + n, 2 D]."""
        k, v = rows[:, : self.d_model], rows[:, self.d_model :]
        before = len(rows) - n
        keys = self._shifted(k[before:], k[:before], 1)
        return keys, self._tiles(v[before:], 1)

    def _tiles(self, rows: Floats, threads: int) -> Floats:
        """[T, D] -> [P G, T, 16], part after part."""
        parts = [
            kernels.rows_to_tiles(rows[:, columns], threads=threads) for columns in self._columns()
        ]
        return parts[0] if self.parts == 1 else np.concatenate(parts)

    def _columns(self) -> list[slice]:
        """The channels of every part."""
        return [slice(i * self.heads, (i + 1) * self.heads) for i in range(self.parts)]

    def _part(self, i: int) -> slice:
        """The tiles of part i."""
        groups = len(self.skip)
        return slice(i * groups, (i + 1) * groups)

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:  # noqa: ARG002
        """See Mixer."""
        row = 4 * self.d_model * rows
        tiles = 4 * LANES * self.parts * len(self.skip) * rows
        return [
            ("normalised rows", row),
            ("projections", 3 * row),
            ("gates and values", 3 * tiles),
            # Of a convolution and of the recurrence, and parts of what goes into the former.
            ("mixer output", 2 * row + (5 if kept else 3) * tiles),
        ]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:  # noqa: ARG002
        """Bytes of one state, whatever its length."""
        return scan_bytes(self.recurrence.nbytes // 4, 2 * self.d_model, self.config.d_state - 1)
