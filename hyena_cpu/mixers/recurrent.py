"""Layers whose memory of a sequence is a fixed count of numbers, advanced token by token.

An operator (linear attention, RWKV, Mamba) knows the numbers of a sequence as one array, which it
advances in place; `Recurrent` makes a mixer of it: which numbers belong to which rows, and what
has to be kept to go back. However a sequence is cut, the numbers have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ..context import Context
from ..norm import Norm
from ..online_taps import Convolutions, OnlineTaps
from ..scan_state import ScanState, copied, scan_bytes

Floats = NDArray[np.float32]
Tensors = Mapping[str, Floats]


@dataclass(frozen=True)
class Rows:
    """Normalised rows h [T, D] of sequences end to end; an operator may write to them.

    positions: int64 [T], in their own sequence. spans: (first row, row after the last) of each
    sequence.
    """

    h: Floats
    positions: NDArray[np.int64]
    spans: list[tuple[int, int]]
    threads: int


class Operator(Protocol):
    """The mathematics of a layer."""

    def start(self) -> Floats:
        """float32 [M]: what is remembered of a sequence that has not begun."""

    def add_to(self, x: Floats, rows: Rows, numbers: Sequence[Floats]) -> None:
        """x [T, D] += outputs of the rows; advances the numbers [M] of every sequence in place."""

    def buffers(self) -> list[tuple[str, int]]:
        """(name, floats of a row) of what `add_to` holds at its peak."""


class Recurrent:
    """A recurrent layer: a mixer (see `mixers`) of an operator."""

    causal = True
    taps: ClassVar[list[OnlineTaps]] = []

    def __init__(
        self,
        operator: Callable[[Any, Tensors, int], Operator],
        config: Any,
        tensors: Tensors,
        d_model: int,
        convolutions: Convolutions,  # noqa: ARG002 (every mixer is made alike)
    ) -> None:
        self.operator = operator(config, tensors, d_model)
        self.d_model = d_model
        self._start = self.operator.start()

    def new_state(self) -> ScanState:
        """The numbers before the first token."""
        return ScanState(self._start, self.d_model)

    def extend(
        self, states: Sequence[ScanState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        spans = [(first, last) for _, first, last in ctx.segments()]
        if states is None:
            numbers = [self._start.copy() for _ in spans]
            self._mix(x, norm, ctx.positions, spans, ctx.threads, numbers)
        elif not ctx.keep:
            numbers = [self._now(state, norm, ctx.threads).copy() for state in states]
            self._mix(x, norm, ctx.positions, spans, ctx.threads, numbers)
        elif len(spans) == len(x):  # a row each
            numbers = [self._now(state, norm, ctx.threads) for state in states]
            for b, state in enumerate(states):
                state.take(x[b : b + 1])
            self._mix(x, norm, ctx.positions, spans, ctx.threads, numbers)
            for state in states:
                state.advance(1)
        else:
            for state, (first, last) in zip(states, spans, strict=True):
                self._append(state, x[first:last], norm, ctx.threads)

    def _mix(
        self,
        x: Floats,
        norm: Norm,
        positions: NDArray[np.int64],
        spans: list[tuple[int, int]],
        threads: int,
        numbers: Sequence[Floats],
    ) -> None:
        rows = Rows(norm(x, threads), positions, spans, threads)
        self.operator.add_to(x, rows, numbers)

    def _append(self, state: ScanState, x: Floats, norm: Norm, threads: int) -> None:
        """The rows of one sequence, cut where its state is to be marked."""
        now = self._now(state, norm, threads)
        state.take(x)
        for first, last in state.cuts(len(x)):
            self._run(now, x[first:last], state.position, norm, threads)
            state.advance(last - first)

    def _run(self, now: Floats, x: Floats, position: int, norm: Norm, threads: int) -> None:
        """Adds the outputs of one sequence's next rows to them."""
        positions = np.arange(position, position + len(x), dtype=np.int64)
        self._mix(x, norm, positions, [(0, len(x))], threads, [now])

    def _now(self, state: ScanState, norm: Norm, threads: int) -> Floats:
        """[M] at the state's position; made again after a rewind."""
        if state.now is None:
            state.now = copied(state.marks[-1])
            rows = state.since_mark.copy()
            if len(rows):
                self._run(state.now, rows, state.position - len(rows), norm, threads)
        return state.now

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:  # noqa: ARG002
        """See Mixer."""
        found = [("normalised rows", self.d_model), *self.operator.buffers()]
        return [(name, 4 * size * rows) for name, size in found]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:  # noqa: ARG002
        """See Mixer."""
        return scan_bytes(len(self._start), self.d_model)
