"""A decoded token of the HyenaDNA-small shape, against one product with as many weights.

    pytest bench/bench_step.py --benchmark-only

The floor is a single row times one matrix of all the model's dense weights: the same bytes, read in
one go by the same threads. Both are timed in turn, 25 calls each, so that neither finds the caches
full of what the other reads. `over_floor` is the ratio of their medians, `gb_per_s` what of the
weights a step reads in a second, `python_us` the part of a step outside the one call into C++.
`rate_at_longest` is the rate of tokens at the longest context, of that at the shortest; there TURN
tokens of a context follow one another, of which the first half brings the caches to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from shapes import hyenadna

from hyena_cpu import kernels
from hyena_cpu.model import Model

ROUNDS, CALLS, UNTOLD, WIDTH = 20, 25, 5, 256
STEPS = (ROUNDS + 1) * CALLS
TURNS, TURN = 12, 256  # of contexts
CONTEXTS = (1 << 10, 1 << 13, 1 << 15, 1 << 16, 1 << 17, 1 << 18)


class Timed:
    """A tape that notes how long its runs take."""

    def __init__(self, tape: kernels.StepTape) -> None:
        self.tape, self.seat = tape, tape.seat
        self.seconds: list[float] = []

    def run(self, *args: Any, **options: Any) -> np.ndarray:
        start = time.perf_counter()
        rows = self.tape.run(*args, **options)
        self.seconds.append(time.perf_counter() - start)
        return rows


@pytest.mark.parametrize("context", [1 << 10, 1 << 13, 1 << 15])
@pytest.mark.parametrize("threads", [1, 2])
def test_token(benchmark: BenchmarkFixture, threads: int, context: int) -> None:
    benchmark.group = f"one token, HyenaDNA-small, {threads} threads"
    model = Model(hyenadna("small", context + STEPS), None, threads=threads)
    ids = np.random.default_rng(0).integers(0, 12, context)
    state = model.prefill(ids, max_new_tokens=STEPS)
    assert model._recorded is not None
    timed = Timed(model._recorded._tape)
    model._recorded._tape = timed  # type: ignore[assignment]

    dense = [block.mixer.in_proj for block in model.blocks]
    dense += [block.mixer.out_proj for block in model.blocks]
    dense += [part for block in model.blocks for part in (block.mlp.up, block.mlp.down)]
    weights = sum(one.packed.in_features * one.packed.out_features for one in dense)
    whole = kernels.PackedLinear(np.ones((weights // WIDTH, WIDTH), np.float32))
    row = np.ones((1, WIDTH), np.float32)
    out = np.empty((1, weights // WIDTH), np.float32)

    floor: list[float] = []
    steps: list[float] = []

    def timed_calls(call: Callable[[], object]) -> list[float]:
        marks = [time.perf_counter()]
        for _ in range(CALLS):
            call()
            marks.append(time.perf_counter())
        return list(np.diff(marks)[UNTOLD:])

    def turn() -> None:
        floor.extend(timed_calls(lambda: kernels.linear(row, whole, out=out, threads=threads)))
        steps.extend(timed_calls(lambda: model.step(state, 3)))

    benchmark.pedantic(turn, rounds=ROUNDS)
    median = float(np.median(steps))
    inside = np.reshape(timed.seconds, (ROUNDS, CALLS))[:, UNTOLD:].ravel()
    python = np.array(steps) - inside
    benchmark.extra_info["step_us"] = round(1e6 * median, 1)
    benchmark.extra_info["floor_us"] = round(1e6 * float(np.median(floor)), 1)
    benchmark.extra_info["over_floor"] = round(median / float(np.median(floor)), 2)
    benchmark.extra_info["gb_per_s"] = round(4e-9 * weights / median, 1)
    benchmark.extra_info["python_us"] = round(1e6 * float(np.median(python)), 1)


def test_contexts_in_turn(benchmark: BenchmarkFixture) -> None:
    """Steps after short and long prompts of one model, in turn: the rate at each context."""
    benchmark.group = "one token, HyenaDNA-small, 2 threads, contexts in turn"
    steps = (TURNS + 1) * TURN
    model = Model(hyenadna("small", CONTEXTS[-1] + steps), None, threads=2)
    ids = np.random.default_rng(0).integers(0, 12, CONTEXTS[-1])
    states = [model.prefill(ids[:n], max_new_tokens=steps, history="drop") for n in CONTEXTS]
    taken: list[list[float]] = [[] for _ in states]

    def turn() -> None:
        for state, seconds in zip(states, taken, strict=True):
            marks = [time.perf_counter()]
            for _ in range(TURN):
                model.step(state, 3)
                marks.append(time.perf_counter())
            seconds.extend(np.diff(marks)[TURN // 2 :])

    benchmark.pedantic(turn, rounds=TURNS)
    rates = 1 / np.median(taken, axis=1)
    for context, rate in zip(CONTEXTS, rates, strict=True):
        benchmark.extra_info[f"tokens_per_s_{context}"] = round(float(rate))
    benchmark.extra_info["rate_at_longest"] = round(float(rates[-1] / rates[0]), 3)
