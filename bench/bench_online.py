"""Token by token: one long convolution of 256 channels, one thread, against direct sums.

    pytest bench/bench_online.py --benchmark-only

Every step is timed over several identical runs and its minimum taken, so that the machine's hiccups
drop out. `us_mean`, `us_p99`, `us_max` are over 4,096 steps: `planned`, with their number known and
what the history adds summed up at the start (`start_ms`); `rolling`, with nothing known. About 1.8
us of each step is the call from Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hyena_cpu import kernels
from hyena_cpu.filters import ExplicitFilter
from hyena_cpu.online import OnlineConv
from hyena_cpu.online_taps import OnlineTaps
from hyena_cpu.spectra import FilterBank
from hyena_cpu.spectra_cache import SpectraCache

GROUPS, RUNS, STEPS = 16, 3, 4096
ROOM = 4 * STEPS  # taps beyond the context

Fresh = Callable[[], Callable[[np.ndarray], object]]


def problem(context: int) -> tuple[np.ndarray, np.ndarray]:
    """History [G, context, 16] and taps [G, context + ROOM, 16]."""
    rng = np.random.default_rng(context)
    z = rng.standard_normal((GROUPS, context, 16), np.float32)
    taps = rng.standard_normal((GROUPS, context + ROOM, 16), np.float32)
    return z, taps * np.exp(-4 * np.linspace(0, 1, taps.shape[1], dtype=np.float32))[:, None]


def online(context: int, info: dict[str, object], wanted: int | None) -> Fresh:
    """Makes fresh steppers, one per run."""
    z, taps = problem(context)
    stored = np.ascontiguousarray(taps.transpose(0, 2, 1).reshape(-1, taps.shape[1]))
    bank = FilterBank(ExplicitFilter(stored), 0, len(stored), SpectraCache(0))
    conv = OnlineConv(OnlineTaps(bank))
    conv.extend(z, 1)
    start = time.perf_counter()
    conv.reserve(0 if wanted is None else wanted)
    conv.make_room(1)
    info["start_ms"] = round(1e3 * (time.perf_counter() - start), 2)
    info["state_mib"] = conv.nbytes >> 20

    def fresh() -> Callable[[np.ndarray], object]:
        own = conv.fork()
        return lambda row: kernels.online_conv([own.make_room(1)], [1], row)

    return fresh


def planned(context: int, info: dict[str, object]) -> Fresh:
    """For a known number of steps."""
    return online(context, info, STEPS)


def rolling(context: int, info: dict[str, object]) -> Fresh:
    """For any number."""
    return online(context, info, None)


def direct(context: int, info: dict[str, object]) -> Fresh:
    """Sums over the whole history for every token."""
    z, taps = problem(context)
    info["state_mib"] = z.nbytes >> 20

    def step(row: np.ndarray) -> object:
        z[:, -1:] = row
        return kernels.direct_conv(z, taps, context - 1)

    return lambda: step


@pytest.mark.parametrize("context", [1 << 10, 1 << 13, 1 << 16])
@pytest.mark.parametrize("way", [planned, rolling, direct])
def test_token(benchmark: BenchmarkFixture, way: Callable, context: int) -> None:
    benchmark.group = f"one token, 256 channels, context {context}"
    fresh = way(context, benchmark.extra_info)
    steps = 40 if way is direct else STEPS
    rows = np.random.default_rng(0).standard_normal((steps, GROUPS, 1, 16), np.float32)
    best = np.full(steps, np.inf)

    def run() -> None:
        step = fresh()
        for s in range(steps):
            start = time.perf_counter()
            step(rows[s])
            best[s] = min(best[s], time.perf_counter() - start)

    benchmark.pedantic(run, rounds=RUNS)
    us = 1e6 * best
    for name, value in (("mean", us.mean()), ("p99", np.percentile(us, 99)), ("max", us.max())):
        benchmark.extra_info[f"us_{name}"] = round(float(value), 2)
