"""How token-by-token steps of a convolution are planned: for how many, how, in what memory.

Rows are those of one group of 16 channels. csrc/tileplan.hpp has the three ways.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from . import kernels

SHORTEST_HORIZON = 64
USUAL_HORIZON = 2048  # as many steps as nobody asked for are planned as if they had been
LONGEST_HORIZON = 1 << 14  # a step computes one tile of half so many rows at most
MOST_DROPPED = 1 << 16  # steps that can be planned at once where the history is dropped
SHORTEST_PERIOD, LONGEST_PERIOD = 1024, 8192  # of a rolling plan
PERIODS, BLOCKS = 8, 12  # of them what lies before one has, at the beginning and before they double
FOR_EVER = 1 << 48
SURE_REWIND = 128  # rows that a filter of any length can be rewound by, once so many were taken in


Decode = Literal["auto", "exact", "direct"]
DIRECT_PERIOD = 16  # steps whose sums over everything before are done together


class StepPlan(NamedTuple):
    """closed: room for `horizon` steps, what comes before is summed up at once. endless: the filter
    reaches over one `period` at most. rolling: what comes before is summed up a little in every
    step, for one period after the other; they double up to `longest`. direct: plain sums over
    everything before.
    """

    kind: Literal["closed", "endless", "rolling", "direct"]
    horizon: int
    period: int
    longest: int

    @property
    def goes_back(self) -> bool:
        """Whether what comes before is needed again and again."""
        return self.kind in ("rolling", "direct")

    @property
    def fits(self) -> bool:
        """Whether there are such plans of periods."""
        if self.kind == "direct":
            return self.period == DIRECT_PERIOD
        return SHORTEST_PERIOD <= self.period == power_of_two(self.period) <= LONGEST_PERIOD

    @property
    def cell(self) -> int:
        """Rows of inputs that memory is taken for at once (csrc/onlineconv.cpp)."""
        if self.kind == "direct":
            return 1024
        return self.longest if self.longest <= 128 else min(max(self.longest // 8, 128), 1024)

    def held_rows(self, taps: int) -> int:
        """Inputs that a state holds at most before it forgets older ones."""
        if self.kind == "closed":
            return self.horizon + self.cell
        reach = max(self.longest, taps - 1)
        return SURE_REWIND + self.longest + reach + 2 * self.cell

    def tile_rows(self, groups: int, base: int, steps: int) -> int:
        """Rows of tiles and sums after so many steps from `base`, the mean of so many groups."""
        if self.kind == "closed":  # what crosses into the second period: half of one, more of few
            return 2 * self.period if groups < 4 else 3 * self.period // 2 + self.period // groups
        if self.kind == "endless":
            return 2 * self.period
        now, following = self.periods_at(base, steps)
        return 2 * now + 2 * following

    def periods_at(self, base: int, steps: int) -> tuple[int, int]:
        """Lengths at most of the period after so many steps from `base` and of the one after it, of
        a rolling plan.
        """
        begin, now = self._period(base, steps + self.period)
        return now, self._period(base, begin + now)[1]

    def _period(self, base: int, clock: int) -> tuple[int, int]:
        """(first clock, length) of a period, as in csrc/tileplan.hpp."""
        length, since = self.period, 0
        while length < self.longest:
            doubles = max(since + length, (BLOCKS + 1) * length - base)
            doubles = -(-doubles // (2 * length)) * 2 * length
            if clock < doubles:
                break
            since, length = doubles, 2 * length
        return clock // length * length, length


def step_plan(
    position: int, taps: int, wanted: int | None, longest: int | None, decode: Decode = "auto"
) -> StepPlan:
    """The plan for `wanted` steps (None: unknown) from `position` on, with a filter of `taps` taps.

    longest: rows that the sequence can have at most (None: any number).
    """
    left = FOR_EVER if longest is None else max(longest - position, 0)
    if decode == "direct":
        return StepPlan("direct", max(left, SHORTEST_HORIZON), DIRECT_PERIOD, DIRECT_PERIOD)
    steps = left if wanted is None else min(wanted, left)
    if steps <= (USUAL_HORIZON if wanted is None else LONGEST_HORIZON):
        horizon = power_of_two(max(steps, SHORTEST_HORIZON))
    elif kernels.tile_plan(USUAL_HORIZON, taps)[2]:
        horizon = USUAL_HORIZON
    else:
        first = period_for(min(position, taps - 1))
        return StepPlan("rolling", max(left, SHORTEST_HORIZON), first, max(first, period_for(taps)))
    horizon, period, endless = kernels.tile_plan(horizon, taps)
    return StepPlan("endless" if endless else "closed", horizon, period, period)


def period_for(rows: int) -> int:
    """Length of a period after so many rows."""
    return min(max(power_of_two(-(-rows // PERIODS)), SHORTEST_PERIOD), LONGEST_PERIOD)


def power_of_two(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(0, n - 1).bit_length()
