"""A recurrence of complex modes over a sequence, and what it remembers: as much at any length.

It is the convolution with `filters.ModalFilter`, token by token. Modes are kept in float64: with
poles rounded to float32 the outputs of a slow channel drift by 2e-5 of its largest in 4,096 steps.

Shapes: H channels in P parts, G = ceil(H / 16), S modes, W width of a row, K rows before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .context import Context
from .filters import ModalFilter
from .parts import Parts
from .spectra import LANES
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
# Rows [K + n, W] as they were taken in -> z and pre [P G, n, 16] of the last n of them.
Inputs = Callable[[Floats, int], tuple[Floats, Floats | None]]

MARK = SURE_REWIND  # positions between two marks


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
        return _zeros((self.parts**2, *self.poles.shape))

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


class ModalState:
    """One sequence in a recurrence.

    Modes are marked where the position is a multiple of MARK; the last two marks are kept, and the
    rows since the older one, from which the modes between them can be made again, bit for bit.
    """

    def __init__(self, recurrence: Recurrence, width: int, before: int, inputs: Inputs) -> None:
        self._recurrence = recurrence
        self._before = before
        self._inputs = inputs
        self.position = 0
        self.modes = recurrence.zeros()
        self._marks: list[tuple[int, Doubles]] = [(0, recurrence.zeros())]  # never written to
        # Room for MARK rows more than are needed, so that rows are moved down once in so many.
        self._buffer = np.zeros((before + 3 * MARK, width), np.float32)
        self._held = before  # rows in use; before the first token they are zero

    last = None  # a sequence may go on for ever

    @property
    def tail(self) -> Floats:
        """The newest K rows [K, W], zeros before the first; a view."""
        return self._buffer[self._held - self._before : self._held]

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return self._marks[0][0]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._buffer.nbytes + (1 + len(self._marks)) * self._recurrence.nbytes

    def cuts(self, n: int) -> list[tuple[int, int]]:
        """The next n rows, cut where a mark has to be made that will be kept: (first, last)."""
        newest = (self.position + n) // MARK * MARK - self.position
        ends = [end for end in (newest - MARK, newest) if 0 < end < n] + [n]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def advance(self, n: int) -> None:
        """Says that the modes have taken in n more rows, the end of one of `cuts`."""
        self.position += n
        if self.position % MARK == 0:
            self._marks = [*self._marks, (self.position, _copied(self.modes))][-2:]

    def take(self, rows: Floats) -> None:
        """Keeps what is needed of the rows [n, W] that the modes have taken in."""
        kept = self._before + self.position - self.oldest
        if self._held + len(rows) > len(self._buffer):
            old = max(0, kept - len(rows))
            self._buffer[:old] = self._buffer[self._held - old : self._held]
            self._held = old
            rows = rows[-kept:]
        self._buffer[self._held : self._held + len(rows)] = rows
        self._held += len(rows)

    def reserve(self, n: int) -> None:
        """Nothing: a state does not grow."""

    def drop_history(self, n: int, threads: int) -> None:
        """Nothing: it has none that it does not need."""

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on, with the bits that the modes had there."""
        self._held -= self.position - position
        self.position = position
        self._marks = [mark for mark in self._marks if mark[0] <= position]
        self._replay()

    def _replay(self) -> None:
        """The modes here from those of the last mark."""
        marked, modes = self._marks[-1]
        self.modes = _copied(modes)
        n = self.position - marked
        if n:
            z, pre = self._inputs(self._buffer[self._held - n - self._before : self._held], n)
            self._recurrence.scan([self.modes], [(0, n)], z, pre, None, None, 1)

    def fork(self) -> ModalState:
        """An independent copy; marks are shared."""
        twin = ModalState(self._recurrence, self._buffer.shape[1], self._before, self._inputs)
        twin.position, twin.modes = self.position, _copied(self.modes)
        twin._marks = list(self._marks)
        twin._held = self._held
        twin._buffer[: self._held] = self._buffer[: self._held]
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file: the modes follow from it."""
        needed = self._before + self.position - self.oldest
        marks = [{"position": position, "modes": modes} for position, modes in self._marks]
        rows = self._buffer[self._held - needed : self._held]
        return {"position": self.position, "marks": marks, "rows": rows}

    def restore(self, parts: Parts, threads: int) -> None:  # noqa: ARG002
        """Makes a new state what `parts` were taken of."""
        self.position = parts.whole("position")
        newest = self.position // MARK * MARK
        marks = parts.each("marks")
        found = [mark.whole("position") for mark in marks]
        if found not in ([newest], [newest - MARK, newest]):
            raise parts.refuse(f"has marks at {found} for position {self.position}")
        self._marks = [
            (position, _copied(mark.doubles("modes", *self.modes.shape)))
            for position, mark in zip(found, marks, strict=True)
        ]
        needed = self._before + self.position - self.oldest
        self._buffer[:needed] = parts.floats("rows", needed, self._buffer.shape[1])
        self._held = needed
        self._replay()


def state_bytes(recurrence: Recurrence, width: int, before: int) -> int:
    """Bytes of a ModalState at most."""
    return 3 * recurrence.nbytes + 4 * width * (before + 3 * MARK)


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
    `whole` makes the outputs of sequences that all begin here. The caller gives the rows to
    `ModalState.take` afterwards.
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
            modes = [_copied(states[b].modes)]
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
    packed = _zeros((groups, modes, 2, LANES))
    for c in range(channels):
        packed[c // LANES, :, 0, c % LANES] = values[c].real
        packed[c // LANES, :, 1, c % LANES] = values[c].imag
    return packed


def _copied(modes: Doubles) -> Doubles:
    copy = _zeros(modes.shape)
    copy[...] = modes
    return copy


def _zeros(shape: tuple[int, ...]) -> Doubles:
    """float64 zeros that begin on a cache line: the kernel takes half the time on such."""
    size = math.prod(shape)
    store = np.zeros(size + 7)
    first = -(store.ctypes.data // 8) % 8
    return store[first : first + size].reshape(shape)
