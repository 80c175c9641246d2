"""S4D, a diagonal state space for every channel (Gu et al. 2022, arXiv 2206.11893).

    y = out_proj(gelu(conv(filter, u) + skip u))

The filter is K[t] = C A^t B with A, B the discretised parameters, and the same
numbers are x[t] = A x[t - 1] + B u[t], y[t] = C x[t], by which sequences are continued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config import diagonal_filter
from ..config_ssm import S4DConfig
from ..context import Context
from ..filters import ModalFilter, build_filter
from ..linear import Linear, under
from ..modal_state import ModalState, Recurrence, extend_each
from ..norm import Norm
from ..online_taps import Convolutions
from ..scan_state import scan_bytes
from ..spectra import LANES
from .hyena import pad_lanes

Floats = NDArray[np.float32]


class S4D:
    """One S4D layer. Tensors are named as in docs/formats.md, without the layer prefix."""

    causal = True

    def __init__(
        self,
        config: S4DConfig,
        tensors: Mapping[str, Floats],
        d_model: int,
        convolutions: Convolutions,
    ) -> None:
        self.d_model = d_model
        source = build_filter(diagonal_filter(config), under(tensors, "filter."), d_model)
        assert isinstance(source, ModalFilter)  # what every diagonal filter is
        self.taps = [convolutions.add(source, 0, d_model, stepped=False)]
        self.skip = pad_lanes(tensors["skip"])
        self.recurrence = Recurrence(source, self.skip)
        self.out_proj = Linear.from_tensors(tensors, "out_proj")

    def new_state(self) -> ModalState:
        """The modes of the recurrence, and the newest rows."""
        return ModalState(self.recurrence, self.d_model, 0, _inputs)

    def extend(
        self, states: Sequence[ModalState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        u = norm(x, ctx.threads)
        z = kernels.rows_to_tiles(u, threads=ctx.threads)

        def whole() -> Floats:
            bank = self.taps[0].bank
            return bank.convolve_each(z, ctx.offsets, ctx.threads, skip=self.skip)

        if states is None:
            y = whole()
        else:
            for b, first, last in ctx.segments() if ctx.keep else ():
                states[b].take(u[first:last])
            y = extend_each(self.recurrence, states, z, None, None, ctx, whole)
        h = kernels.tiles_to_rows(y, self.d_model, out=u, threads=ctx.threads)
        kernels.gelu_erf(h, out=h, threads=ctx.threads)
        self.out_proj.add_to(x, h, ctx.threads)

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:  # noqa: ARG002
        """See Mixer."""
        tiles = 4 * LANES * len(self.skip) * rows
        count = 3 if kept else 2
        return [("normalised rows", 4 * self.d_model * rows), ("convolutions", count * tiles)]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:  # noqa: ARG002
        """Bytes of one state, whatever its length."""
        return scan_bytes(self.recurrence.nbytes // 4, self.d_model)


def _inputs(rows: Floats, n: int) -> tuple[Floats, None]:
    """What the recurrence was given for the last n of these rows."""
    return kernels.rows_to_tiles(rows[len(rows) - n :]), None
