"""The filters of one convolution as token-by-token steps need them, and how far steps plan ahead.

Shapes: G groups of 16 channels, P rows of history.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .filters import LongFilter
from .parts import Parts
from .spectra import BLOCK_BYTES, LANES, FilterBank
from .spectra_cache import SpectraCache
from .step_plan import (
    DIRECT_PERIOD,
    FOR_EVER,
    SURE_REWIND,
    Decode,
    StepPlan,
    period_for,
    step_plan,
)

Floats = NDArray[np.float32]
ROW = 4 * LANES  # bytes of one row of one group
FORMER_HORIZON = 1 << 17  # the longest that files hold
ALIGNED = -1  # number of a first unit whose tiles, and those of all others, are due together
LOOK_AHEAD = 32  # steps between which a growing filter is evaluated further


class OnlineTaps:
    """The filters of a FilterBank as steps need them: grown on demand, shared by all sequences.

    first_unit: number of the bank's first group among those of the model (see OnlineConv).
    longest: rows that a sequence can have at most (None: any number).
    decode: how steps are computed, see `StepPlan`; auto is exact.
    stepped: False where only the first rows of a sequence are convolved, and it goes on by a
        recurrence.
    """

    def __init__(
        self,
        bank: FilterBank,
        first_unit: int = 0,
        longest: int | None = None,
        stepped: bool = True,
        decode: Decode = "auto",
    ) -> None:
        self.bank = bank
        self.decode = decode
        self.stepped = stepped
        self.first_unit = first_unit
        self.longest = longest
        self._lock = threading.Lock()
        self._filter: kernels.OnlineFilter | None = None

    @property
    def reach(self) -> int:
        """Rows before an output that it can depend on."""
        return self.bank.source.taps - 1

    @property
    def nbytes(self) -> int:
        """Bytes that are held now."""
        return 0 if self._filter is None else self._filter.nbytes

    def plan(self, position: int, wanted: int | None) -> StepPlan:
        """How a state that begins at `position` goes on, for `wanted` steps (None: unknown)."""
        return step_plan(position, self.bank.source.taps, wanted, self.longest, self.decode)

    def filter(self, taps: int, threads: int) -> kernels.OnlineFilter:
        """The filter, of which so many taps are known at least, or all there are."""
        bank = self.bank
        taps = min(max(taps, kernels.head_taps), bank.source.taps)
        with self._lock:
            if self._filter is None:
                self._filter = kernels.OnlineFilter(bank.groups, bank.source.taps)
            known = self._filter.known
            if known < taps:
                self._filter.append(bank.tiles(0, bank.groups, known, taps, threads))
                bank.release()
            return self._filter

    def begin(
        self,
        plan: StepPlan,
        base: int,
        chunks: Sequence[Floats],
        threads: int,
        *,
        drop: bool = False,
        aligned: bool = False,
    ) -> kernels.OnlineState:
        """A state that begins at `base` and follows the rows of chunks [G, P_i, 16], end to end;
        drop: it must not need them, for `plan.horizon` steps. aligned: see OnlineConv.
        """
        if drop or not plan.goes_back:
            future = self.future(chunks, plan.horizon, threads)
            return self._state(plan, base, future, [], threads, aligned)
        state = self._state(plan, base, None, chunks, threads, aligned)
        state.begin(threads=threads)
        return state

    def _state(
        self,
        plan: StepPlan,
        base: int,
        future: Floats | None,
        past: Sequence[Floats],
        threads: int,
        aligned: bool,
    ) -> kernels.OnlineState:
        unit = ALIGNED if aligned else self.first_unit
        if plan.goes_back:
            state = kernels.OnlineState.rolling_on(
                self.filter(1, threads),
                unit,
                plan.period,
                plan.longest,
                plan.horizon,
                base,
                past,
                future,
                SURE_REWIND,
            )
            prepared = self.filter(state.taps_for(LOOK_AHEAD), threads)
            if plan.kind == "rolling":
                prepared.prepare(min(plan.period, prepared.known), threads=threads)
            return state
        taps = plan.period if plan.kind == "closed" else 2 * plan.period
        prepared = self.filter(taps, threads)
        prepared.prepare(min(taps // 2, prepared.known), threads=threads)
        return kernels.OnlineState(prepared, plan.horizon, unit, future, SURE_REWIND)

    def look_ahead(self, state: kernels.OnlineState, position: int, threads: int) -> int:
        """Knows the taps that the next steps of a state, now at `position` of its sequence, need;
        returns how many steps.

        Longer periods need many taps more at once: those are evaluated before, step by step too.
        """
        known = state.filter.known
        if known == self.bank.source.taps:
            return FOR_EVER
        soon = state.taps_for(looked_ahead(position))
        self.filter(max(state.taps_for(LOOK_AHEAD), min(known + 2 * LOOK_AHEAD, soon)), threads)
        return LOOK_AHEAD

    def future(self, chunks: Sequence[Floats], horizon: int, threads: int) -> Floats | None:
        """What the rows of chunks [G, P_i, 16], end to end, add to the next `horizon` outputs."""
        history = sum(chunk.shape[1] for chunk in chunks)
        rows = min(horizon, self.reach)
        if history == 0 or rows == 0:
            return None
        groups = self.bank.groups
        out = np.zeros((groups, rows, LANES), np.float32)
        lags = min(history + rows, self.bank.source.taps)
        block = groups_at_once(lags)
        for g0 in range(0, groups, block):
            g1 = min(g0 + block, groups)
            taps = self.bank.tiles(g0, g1, 0, lags, threads)
            ahead = 0
            for chunk in reversed(chunks):
                kernels.future_fill(chunk[g0:g1], taps, out[g0:g1], ahead, threads=threads)
                ahead += chunk.shape[1]
        self.bank.release()
        return out

    def restored(
        self, steps: Parts, base: int, chunks: Sequence[Floats], threads: int, *, aligned: bool
    ) -> kernels.OnlineState:
        """The state that begins at `base` and was saved as `steps`. InputError if none could.

        chunks [G, P_i, 16]: the rows before it, as far as they are still there.
        """
        groups, taps = self.bank.groups, self.reach + 1
        horizon = steps.whole("horizon", 1, FOR_EVER)
        period = steps.whole("period", 0) if steps.has("period") else 0
        first = steps.whole("first")
        inputs = steps.floats("inputs", groups, None, LANES)
        future = steps.maybe_floats("future", groups, None, LANES)
        if period == 0:
            rounded, found, endless = kernels.tile_plan(min(horizon, FORMER_HORIZON), taps)
            plan = StepPlan("endless" if endless else "closed", rounded, found, found)
            fits = endless or rounded == horizon
        else:
            longest = max(period, period_for(taps))
            plan = StepPlan("rolling", horizon, period, longest)
            if period == DIRECT_PERIOD:
                plan = StepPlan("direct", horizon, period, period)
            fits = plan.fits
        behind = plan.longest + max(plan.longest, self.reach)
        enough = first == 0 or (plan.kind != "closed" and inputs.shape[1] >= behind)
        rows = min(plan.horizon, self.reach)
        short = inputs.shape[1] <= plan.horizon - first
        short = short and (future is None or future.shape[1] <= rows)
        if not (fits and enough and short):
            raise steps.refuse(f"does not fit a filter of {taps} taps")
        past = chunks if plan.goes_back and future is None else []
        state = self._state(plan, base, future, past, threads, aligned)
        if inputs.shape[1]:
            self.filter(state.taps_for(first + inputs.shape[1]), threads)
            state.resume(first, inputs)
        return state


def groups_at_once(lags: int) -> int:
    """Groups of which `OnlineTaps.future` makes so many taps at once."""
    return max(1, BLOCK_BYTES // (lags * ROW))


def looked_ahead(position: int) -> int:
    """Steps for which taps are evaluated ahead of a rolling plan at this position."""
    return period_for(position // 2) + 2 * LOOK_AHEAD


class Convolutions:
    """Makes a model's long convolutions: they share a budget, and every group has a number."""

    def __init__(self, budget: int, longest: int | None = None, decode: Decode = "auto") -> None:
        self.cache = SpectraCache(budget)
        self.longest = longest
        self.decode = decode
        self._units = 0

    def add(
        self, source: LongFilter, first: int, channels: int, stepped: bool = True
    ) -> OnlineTaps:
        """The convolution with channels first .. first + channels of a filter."""
        bank = FilterBank(source, first, channels, self.cache)
        taps = OnlineTaps(bank, self._units, self.longest, stepped, self.decode)
        self._units += bank.groups
        return taps
