"""Repetitions and their median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds of a first call, which also makes what is kept (filters), and of those after it."""

    first: float
    each: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the calls after the first."""
        return statistics.median(self.each)


def seconds(run: Callable[..., object], *arguments: object) -> float:
    """Wall time of one call with these arguments."""
    begin = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - begin


def repeat(run: Callable[[], object], repetitions: int) -> Times:
    """One first call and `repetitions` more."""
    return Times(seconds(run), tuple(seconds(run) for _ in range(repetitions)))


def in_turn(runs: Sequence[Callable[[], object]], repetitions: int) -> list[Times]:
    """`repeat` of each, one call of each in turn, so that all meet the same disturbances."""
    first = [seconds(run) for run in runs]
    each = [[seconds(run) for run in runs] for _ in range(repetitions)]
    return [Times(f, tuple(e[i] for e in each)) for i, f in enumerate(first)]
