"""What a sequence in one long convolution takes in memory, told before it is taken: for `planner`.

Each function is asked about a convolution (`taps`), steps that begin after `length` rows and are
`wanted` for so many (None: unknown), of which so many have been `taken`.

Shapes: G groups of 16 channels, P rows of history.
"""

from __future__ import annotations

from . import kernels
from .online_taps import LOOK_AHEAD, ROW, OnlineTaps, groups_at_once, looked_ahead
from .spectra import LANES, TAPS_BYTES, tile_bytes
from .step_plan import SURE_REWIND, StepPlan


def history(taps: OnlineTaps, length: int) -> int:
    """Of the rows that an OnlineConv keeps of `length` that came at once."""
    needed = taps.reach + SURE_REWIND
    return tile_bytes(taps.bank.groups, length if length <= 2 * needed else needed)


def steps(taps: OnlineTaps, length: int, wanted: int | None = None, taken: int = 1) -> int:
    """Of an OnlineConv beside a history of all its rows."""
    plan = taps.plan(length, wanted)
    rows = plan.tile_rows(taps.bank.groups, length, taken) + 2 * LANES
    if plan.goes_back:
        # Of many groups a cell is half empty, and those that begin one soon are few.
        rows += min(plan.cell + 4 * plan.cell // taps.bank.groups, 2 * plan.cell)
        if length + taken > 2 * (taps.reach + SURE_REWIND):  # some of them are twice there
            rows += min(taken, plan.held_rows(taps.reach + 1))
        now = plan.periods_at(length, taken)[0] if plan.kind == "rolling" else plan.period
        if now > plan.period:  # where tiles of shorter periods were, not everything else fits in
            rows += now
    else:
        rows += plan.held_rows(taps.reach + 1)
    return taps.bank.groups * ROW * rows + future(taps, length, wanted)


def future(taps: OnlineTaps, length: int, wanted: int | None = None) -> int:
    """Of what a history of so many rows adds to steps, where that is summed up at once."""
    plan = taps.plan(length, wanted)
    return taps.bank.groups * ROW * _future_rows(taps, plan, length)


def state(taps: OnlineTaps, length: int, ahead: int | None = None) -> int:
    """Of an OnlineConv at most, once it steps on; `ahead`: for so many steps, having dropped its
    history.
    """
    if ahead is not None and taps.longest is not None:  # where those steps began, at the latest
        length = min(length, max(taps.longest - ahead, 0))
    plan = taps.plan(length, ahead)
    # Chunks are dropped whole, and one much longer than what is needed is cut.
    needed = taps.reach + SURE_REWIND
    rows, taken = min(length, 2 * needed + plan.held_rows(taps.reach + 1)), 1
    if ahead is not None and plan.kind != "endless":
        rows, taken = 0, ahead
        if plan.kind == "rolling":  # what the history adds, and the inputs to come
            rows = min(ahead, taps.reach) + ahead
    return taps.bank.groups * ROW * rows + steps(taps, length, ahead, taken)


def known(taps: OnlineTaps, length: int, wanted: int | None, taken: int) -> int:
    """Taps that steps know at most."""
    return _known(taps, taps.plan(length, wanted), length, taken)


def filters(taps: OnlineTaps, length: int, wanted: int | None = None, taken: int = 1) -> int:
    """Of the filters as steps need them, which sequences share."""
    plan = taps.plan(length, wanted)
    rows = _known(taps, plan, length, taken) + kernels.head_taps + LANES
    return taps.bank.groups * ROW * rows + _spectra(taps, plan, length, taken)


def starting(taps: OnlineTaps, length: int, wanted: int | None, threads: int) -> int:
    """Passing by when steps begin, beside what stays."""
    plan = taps.plan(length, wanted)
    making = _making(taps, _known(taps, plan, length, 1))
    if plan.goes_back:  # of each thread: parts of transforms, copies of what lies apart
        return max(making - _spectra(taps, plan, length, 1), threads * ROW * 7 * plan.period)
    rows = _future_rows(taps, plan, length)
    if rows == 0:
        return making
    lags = min(length + rows, taps.bank.source.taps)
    groups = min(groups_at_once(lags), taps.bank.groups)
    summing = filling(taps, length, wanted, threads) + taps.bank.network_bytes(lags)[1]
    made = taps.bank.groups * ROW * rows + groups * ROW * lags
    return made + max(_making(taps, lags), summing)


def filling(taps: OnlineTaps, length: int, wanted: int | None, threads: int) -> int:
    """Of what kernels work in while a history is summed up for steps."""
    rows = _future_rows(taps, taps.plan(length, wanted), length)
    if rows == 0:
        return 0
    points = kernels.transform_size(min(length + rows, 4 * rows))
    # Of each thread: a part of the sum, a padded block of the past, its spectrum, the product.
    return threads * ROW * (rows + 3 * points)


def _future_rows(taps: OnlineTaps, plan: StepPlan, length: int) -> int:
    """Outputs for which a history is summed up at once."""
    return 0 if plan.goes_back or length == 0 else min(plan.horizon, taps.reach)


def _making(taps: OnlineTaps, lags: int) -> int:
    """Passing by while so many taps are made."""
    channels = min(taps.bank.groups * ROW * lags, max(ROW * lags, TAPS_BYTES))
    return taps.bank.network_bytes(lags)[1] + taps.bank.source.working_bytes(lags) + channels


def _known(taps: OnlineTaps, plan: StepPlan, length: int, taken: int) -> int:
    """Taps that are known at most."""
    if not plan.goes_back:
        rows = plan.period if plan.kind == "closed" else 2 * plan.period
        return min(rows, taps.bank.source.taps)

    def needed(ahead: int) -> int:
        now, following = plan.periods_at(length, taken + ahead)
        return max(2 * following, length + taken + ahead + plan.period + now + following)

    soon = needed(looked_ahead(length + taken))  # approached by two taps a step
    return min(soon, needed(LOOK_AHEAD) + 2 * (taken + LOOK_AHEAD), taps.bank.source.taps)


def _spectra(taps: OnlineTaps, plan: StepPlan, length: int, taken: int) -> int:
    """Of the spectra of tiles."""
    rows = 2 * plan.period if plan.kind == "closed" else 4 * plan.period
    if plan.kind == "rolling":
        rows = 4 * max(plan.periods_at(length, taken))
    return taps.bank.groups * ROW * rows
