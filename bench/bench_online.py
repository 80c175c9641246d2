"""Token by token: one long convolution of 256 channels, one thread, against direct sums.

    pytest bench/bench_online.py --benchmark-only

Every step is timed over several identical runs and its minimum taken, so that the machine's hiccups
drop out. `us_mean`, `us_p99`, `us_max` are over 4,096 steps with the horizon that a context of this
length gets; `fill_ms` is what the start, and every further horizon, costs at once. About 1.8 us of
each step is the call from Python.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hyena_cpu import kernels
from hyena_cpu.online_taps import horizon_for

GROUPS, RUNS, STEPS = 16, 3, 4096


def problem(context: int, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """History [G, context, 16] and taps [G, context + horizon, 16]."""
    rng = np.random.default_rng(context)
    z = rng.standard_normal((GROUPS, context, 16), np.float32)
    taps = rng.standard_normal((GROUPS, context + horizon, 16), np.float32)
    return z, taps * np.exp(-4 * np.linspace(0, 1, taps.shape[1], dtype=np.float32))[:, None]


def online(context: int, info: dict[str, object]) -> Callable[[], Callable[[np.ndarray], object]]:
    """Makes fresh steppers, one per run."""
    horizon = horizon_for(context, STEPS)
    z, taps = problem(context, horizon)
    horizon, top, _ = kernels.tile_plan(horizon, taps.shape[1])
    prepared = kernels.OnlineFilter(taps[:, : 2 * top], taps.shape[1], top)
    future = np.zeros((GROUPS, horizon, 16), np.float32)
    start = time.perf_counter()
    kernels.future_fill(z, taps, future)
    info["fill_ms"] = round(1e3 * (time.perf_counter() - start), 2)
    info["state_mib"] = kernels.OnlineState(prepared, horizon, 0, future).nbytes >> 20

    def fresh() -> Callable[[np.ndarray], object]:
        state = kernels.OnlineState(prepared, horizon, 0, future)
        return lambda row: kernels.online_conv([state], [1], row)

    return fresh


def direct(context: int, info: dict[str, object]) -> Callable[[], Callable[[np.ndarray], object]]:
    """Sums over the whole history for every token."""
    z, taps = problem(context, STEPS)
    info["state_mib"] = z.nbytes >> 20

    def step(row: np.ndarray) -> object:
        z[:, -1:] = row
        return kernels.direct_conv(z, taps, context - 1)

    return lambda: step


@pytest.mark.parametrize("context", [1 << 10, 1 << 13, 1 << 16])
@pytest.mark.parametrize("way", [online, direct])
def test_token(benchmark: BenchmarkFixture, way: Callable, context: int) -> None:
    benchmark.group = f"one token, 256 channels, context {context}"
    fresh = way(context, benchmark.extra_info)
    steps = STEPS if way is online else 40
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
