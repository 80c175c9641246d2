"""A run that is planned and not made: whatever takes a model takes a `DryRun` of it as well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import planner
from .model import Model
from .network import Floats, Ids
from .online import ahead_for
from .state import State


class DryRun(Model):
    """A loaded model that checks and plans its calls, and computes nothing: results are zeros.

    The calls are those of the run itself, with its windows, its groups and its refusals, because
    the same code makes them. It is for whole sequences and what follows one state (`score`, `embed`
    and variants), not for sequences that go on token by token.

    It shares the model's place for transforms, where it notes those that the run would keep. So it
    is a context: at its end they are dropped, and until then the model itself must not compute.

    largest: the plan of the call that takes most; without rows before the first call.
    """

    def __init__(self, model: Model) -> None:
        vars(self).update(vars(model))  # the weights are not loaded again
        self.largest = self._checked = planner.Plan(())

    # ---- in the place of what is computed

    def _check_memory(self, length: int, batch: int = 1, **what: Any) -> None:
        self._checked = planner.plan(self, length, batch, **what)
        super()._check_memory(length, batch, **what)

    def _rows(
        self,
        pieces: list[Ids],
        states: list[State] | None = None,
        *,
        depth: int | None = None,
        keep: bool = True,  # noqa: ARG002
        ahead: int | None = None,  # noqa: ARG002
        prefix: int = 0,
    ) -> Floats:
        self.largest = max(self.largest, self._checked, key=lambda plan: plan.total)
        lengths = [len(piece) for piece in pieces]
        self._expect_spectra(lengths, states[0].position if states else 0, depth, prefix)
        return _zeros(sum(lengths), self.config.d_model)

    def _normed(self, x: Floats) -> Floats:
        return x

    def _logits_of(self, h: Floats) -> Floats:
        # Without a head there is an error to be raised.
        return super()._logits_of(h) if self._head is None else _zeros(len(h), self.logits_width)

    def _logprobs_of(self, x: Floats) -> NDArray[np.float64]:
        return np.broadcast_to(np.float64(0), self._logits_of(x).shape)

    def _expect_spectra(
        self, lengths: list[int], start: int, depth: int | None, prefix: int
    ) -> None:
        """Tells every convolution which transforms a call goes through, each once: layers that use
        one several times in a call (H3 of wide heads, LongConv of several sequences) keep a large
        one from that call on, not from the next.

        start: where the sequences go on from one state; what goes on by a recurrence needs no
        transform there.
        """
        together = [lengths[:1], lengths[1:]] if prefix else [lengths]
        for taps in (taps for block in self.blocks[:depth] for taps in block.mixer.taps):
            if start and not taps.stepped:
                continue
            if start and taps.reach:
                history, new = min(start, taps.reach), ahead_for(max(lengths))
                taps.bank.expect([(new, history + new)])
            for run in together:
                taps.bank.expect((n, n) for n in run)


def _zeros(rows: int, width: int) -> Floats:
    """float32 [rows, width] that take no memory."""
    return np.broadcast_to(np.float32(0), (rows, width))
