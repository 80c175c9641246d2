"""The online convolution in plain float64 numpy: direct sums, and the schedule of its tiles.

Shapes: G groups of 16 channels, S rows, K taps, T future rows, P past rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .conv import Array, direct_conv

BASE = 16  # steps in a block, inside which lags are summed directly


FOR_EVER = 1 << 48
BLOCKS = 12  # periods double from so many blocks on


class TilePlan(NamedTuple):
    """horizon: steps there is room for. period: within one, tiles pair blocks of 16, 32, .. steps;
    what comes before it is carried to it when it begins. A closed plan ends within its second
    period; the others go on, with periods that double up to `longest` after `base` rows or more.
    """

    horizon: int
    period: int
    longest: int
    base: int
    kind: str

    def period_at(self, w: int) -> tuple[int, int]:
        """(first clock, length) of the period that clock w lies in."""
        length, since = self.period, 0
        while length < self.longest:
            doubles = max(since + length, (BLOCKS + 1) * length - self.base)
            doubles = -(-doubles // (2 * length)) * 2 * length
            if w < doubles:
                break
            since, length = doubles, 2 * length
        return w // length * length, length


def tile_plan(horizon: int, taps: int) -> TilePlan:
    """Closed for a number of steps, or endless where the filter is short beside that."""
    reach, half = _tile_ceil(taps - 1), _tile_ceil((horizon + 1) // 2)
    if reach <= half:
        return TilePlan(FOR_EVER, reach, reach, 0, "endless")
    return TilePlan(2 * half, 2 * half, 2 * half, 0, "closed")


def rolling_plan(period: int, longest: int, base: int) -> TilePlan:
    """Goes on for ever; what lies before a period is summed up during the one before it."""
    return TilePlan(FOR_EVER, period, longest, base, "rolling")


def _tile_ceil(n: int) -> int:
    size = BASE
    while size < n:
        size *= 2
    return size


class Rectangle(NamedTuple):
    """All inputs [a0, a1) carried to all outputs [b0, b1) at once."""

    a0: int
    a1: int
    b0: int
    b1: int


def schedule(plan: TilePlan, phase: int, steps: int) -> Iterator[Rectangle]:
    """What is computed for `steps` steps of a unit whose clock is w = s + phase, in order. Inputs
    before the base have negative numbers.

    When a block of U = 16 2^k steps begins and is the second of its pair (its number is odd), one
    tile carries the first block of the pair to it. When a period begins, everything before is
    carried to it: in an endless plan the period before, in a closed one what there is. Inside a
    block of 16 every input is carried to the outputs from itself to the end of the block.
    """
    end = min(steps, plan.horizon)
    for s in range(end):
        w = s + phase
        begin, length = plan.period_at(w)
        if plan.kind == "rolling" and (s == 0 or w == begin):
            yield Rectangle(-plan.base, s, s, min(begin + length - phase, end))
        elif s > 0 and w % BASE == 0:
            U = BASE
            while length > U and w % (2 * U) == 0:
                U *= 2
            first = 0 if w == begin and plan.kind == "closed" else max(0, s - U)
            last = end if w == begin and plan.kind == "closed" else min(s + U, end)
            yield Rectangle(first, s, s, last)
        yield Rectangle(s, s + 1, s, min(s + BASE - w % BASE, end))


def by_tiles(plan: TilePlan, phase: int, w: npt.ArrayLike, taps: npt.ArrayLike) -> Array:
    """The convolution of w [base + S] with taps [K], added up rectangle by rectangle: [S]."""
    z, h = np.asarray(w, np.float64), np.asarray(taps, np.float64)
    padded = np.concatenate([h, np.zeros(len(z))])
    steps = len(z) - plan.base
    c = np.zeros(steps)
    for a0, a1, b0, b1 in schedule(plan, phase, steps):
        for b in range(b0, b1):
            a = np.arange(a0, a1)
            c[b] += padded[np.minimum(b - a, len(h))] @ z[plan.base + a]
    return c


def future_fill(z: npt.ArrayLike, taps: npt.ArrayLike, future: int, ahead: int = 0) -> Array:
    """What past rows z [G, P, 16] add to outputs: [G, future, 16] of taps [G, K, 16].

    F[j] = sum over m of z[m] taps[ahead + P + j - m]; `ahead` rows lie between z and the outputs.
    """
    past = np.asarray(z, np.float64)
    silent = np.zeros((past.shape[0], ahead + future, past.shape[2]))
    return direct_conv(np.concatenate([past, silent], axis=1), taps)[:, past.shape[1] + ahead :]


class OnlineFilter:
    """The taps [G, K, 16] themselves."""

    def __init__(self, taps: npt.ArrayLike) -> None:
        self.taps = np.asarray(taps, np.float64)


class OnlineState:
    """All inputs since the base, and what those before it add: future [G, F, 16] or None."""

    def __init__(self, filter: OnlineFilter, future: npt.ArrayLike | None = None) -> None:
        self.filter = filter
        groups, _, lanes = filter.taps.shape
        self.future = np.zeros((groups, 0, lanes))
        if future is not None:
            self.future = np.asarray(future, np.float64)
        self.inputs = np.zeros((groups, 0, lanes))

    def extend(self, w: Array) -> Array:
        """Appends inputs w [G, n, 16] and returns their outputs by direct sums."""
        start = self.inputs.shape[1]
        self.inputs = np.concatenate([self.inputs, w], axis=1)
        c = direct_conv(self.inputs, self.filter.taps, start)
        before = self.future[:, start : start + w.shape[1]]
        c[:, : before.shape[1]] += before
        return c

    def rewind(self, position: int) -> None:
        """Forgets the inputs from `position` on."""
        self.inputs = self.inputs[:, :position]


def online_conv(
    states: Sequence[OnlineState],
    counts: Sequence[int],
    z: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    pre: npt.ArrayLike | None = None,
    post: npt.ArrayLike | None = None,
) -> Array:
    """The next counts[b] steps of states[b], on the rows of z [G, S, 16] in order: [G, S, 16]."""
    w = np.asarray(z, np.float64)
    if pre is not None:
        w = np.asarray(pre, np.float64) * w
    parts = np.split(w, np.cumsum(counts)[:-1], axis=1)
    c = np.concatenate([s.extend(part) for s, part in zip(states, parts, strict=True)], axis=1)
    if skip is not None:
        c = c + np.asarray(skip, np.float64)[:, None] * w
    return c if post is None else np.asarray(post, np.float64) * c
