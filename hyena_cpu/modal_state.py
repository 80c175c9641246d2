"""A recurrence of complex modes over a sequence, and what it remembers: as much at any length.

It is the convolution with `filters.ModalFilter`, token by token. Modes are kept in float64: with
poles rounded to float32 the outputs of a slow channel drift by 2e-5 of its largest in 4,096 steps.

Shapes: H channels in P parts, G = ceil(H / 16), S modes, W width of a row, K rows before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .context import Context
from .filters import ModalFilter
from .parts import Parts
from .scan_state import MARK_STEP, ScanState, copied
from .spectra import LANES

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
# Rows [K + n, W] as they were taken in -> z and pre [P G, n, 16] of the last n of them.
Inputs = Callable[[Floats, int], tuple[Floats, Floats | None]]


class Recurrence:
    """The modes of a filter as the kernel wants them; see `kernels.modal_scan`.

    skip: [G, 16].
    """

    def __init__(self, filter: ModalFilter, skip: Floats, parts: int = 1) -> None:
        self.parts = parts
        self.skip = skip
        self.poles, self.residues = _packed(filter.poles), _packed(filter.residues)

    def zeros(self) -> Doubles:
        """The modes before the first token, [P P, G, S, 2, 16]."""
        return np.zeros((self.parts**2, *self.poles.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of the modes of one sequence."""
        return self.parts**2 * self.poles.nbytes

    def scan(
        self,
        modes: Sequence[Doubles],
        spans: Sequence[tuple[int, int]],
        z: Floats,
        pre: Floats | None,
        post: Floats | None,
        out: Floats | None,
        threads: int,
    ) -> Floats:
        """Rows `spans` of z, pre and post [P G, T, 16] change the modes of their sequences."""
        return kernels.modal_scan(
            modes,
            spans,
            self.poles,
            self.residues,
            self.skip,
            z,
            pre,
            post,
            parts=self.parts,
            out=out,
            threads=threads,
        )


class ModalState(ScanState):
    """One sequence in a recurrence, whose modes are the numbers: they are never lacking."""

    def __init__(self, recurrence: Recurrence, width: int, before: int, inputs: Inputs) -> None:
        super().__init__(recurrence.zeros(), width, before)
        self._recurrence = recurrence
        self._inputs = inputs

    @property
    def modes(self) -> Doubles:
        """At `position`."""
        assert self.now is not None
        return self.now

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on, with the bits that the modes had there."""
        super().rewind(position)
        self._replay()

    def _replay(self) -> None:
        """The modes here from those of the last mark."""
        self.now, rows = copied(self.marks[-1]), self.since_mark
        n = len(rows) - self._before
        if n:
            z, pre = self._inputs(rows, n)
            self._recurrence.scan([self.modes], [(0, n)], z, pre, None, None, 1)

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file: the modes follow from it."""
        marks = [
            {"position": self.first + i * MARK_STEP, "modes": modes}
            for i, modes in enumerate(self.marks)
        ]
        return {"position": self.position, "marks": marks, "rows": self._since(self.first)}

    def restore(self, parts: Parts, threads: int) -> None:  # noqa: ARG002
        """Makes a new state what `parts` were taken of."""
        self.position = parts.whole("position")
        newest = self.position // MARK_STEP * MARK_STEP
        marks = parts.each("marks")
        found = [mark.whole("position") for mark in marks]
        if found not in ([newest], [newest - MARK_STEP, newest]):
            raise parts.refuse(f"has marks at {found} for position {self.position}")
        self.first = found[0]
        self.marks = [copied(mark.doubles("modes", *self.modes.shape)) for mark in marks]
        needed = self._before + self.position - self.first
        self._hold(parts.floats("rows", needed, self._rows.shape[1]))
        self._replay()


def extend_each(
    recurrence: Recurrence,
    states: Sequence[ModalState],
    z: Floats,
    pre: Floats | None,
    post: Floats | None,
    ctx: Context,
    whole: Callable[[], Floats],
) -> Floats:
    """Outputs [P G, T, 16] of rows that follow their states, which take them in if ctx.keep.

    The first rows of a sequence, if they are several, get the bits that they have without a state:
    `whole` makes the outputs of sequences that all begin here. The caller has given the rows to
    `ScanState.take`.
    """
    begun = [
        slice(first, last)
        for b, first, last in ctx.segments()
        if states[b].position == 0 and last - first > 1
    ]
    out = np.empty((len(z), z.shape[1], LANES), np.float32)
    if ctx.keep:
        _take_in(recurrence, states, z, pre, post, ctx, out)
    else:
        for b, first, last in ctx.segments():
            modes = [copied(states[b].modes)]
            recurrence.scan(modes, [(first, last)], z, pre, post, out, ctx.threads)
    if begun:
        found = whole()
        for rows in begun:
            out[:, rows] = found[:, rows]
    return out


def _take_in(
    recurrence: Recurrence,
    states: Sequence[ModalState],
    z: Floats,
    pre: Floats | None,
    post: Floats | None,
    ctx: Context,
    out: Floats,
) -> None:
    """The outputs by the recurrence into `out`; the modes of the states change."""
    segments = list(ctx.segments())
    cuts = [states[b].cuts(last - first) for b, first, last in segments]
    for k in range(max(map(len, cuts))):
        # The k-th piece of every sequence that has so many: one call for a step of them all.
        turn = [
            (states[b], first + cut[k][0], first + cut[k][1])
            for (b, first, _), cut in zip(segments, cuts, strict=True)
            if k < len(cut)
        ]
        modes = [state.modes for state, _, _ in turn]
        spans = [(first, last) for _, first, last in turn]
        recurrence.scan(modes, spans, z, pre, post, out, ctx.threads)
        for state, first, last in turn:
            state.advance(last - first)


def _packed(values: NDArray[np.complex128]) -> Doubles:
    """[H, S] -> [G, S, 2, 16], missing channels zero."""
    channels, modes = values.shape
    groups = -(-channels // LANES)
    packed = np.zeros((groups, modes, 2, LANES))
    for c in range(channels):
        packed[c // LANES, :, 0, c % LANES] = values[c].real
        packed[c // LANES, :, 1, c % LANES] = values[c].imag
    return copied(packed)
