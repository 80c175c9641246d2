"""Rolling plans of the online convolution: even work, the same bits whatever the schedule."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from conftest import over_threads, rel_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_online_conv import PROMISED, causal, decaying, filter_of, gates_of, normal

from hyena_cpu import kernels


def rolling(
    kernels: ModuleType,
    taps: np.ndarray,
    before: np.ndarray,
    period: int,
    longest: int,
    **options: int,
):
    """A state for rows after `before` [G, P, 16], which comes in three pieces."""
    cuts = [0, before.shape[1] // 3, before.shape[1] // 2, before.shape[1]]
    past = [before[:, a:b] for a, b in pairwise(cuts)]
    unit = options.pop("unit", 2)
    return kernels.OnlineState.rolling_on(
        filter_of(kernels, taps), unit, period, longest, 1 << 20, before.shape[1], past, **options
    )


@pytest.mark.parametrize("K", [1, 2, 17, 40, 300, 4000])
@pytest.mark.parametrize(("period", "longest"), [(16, 16), (32, 32), (32, 128), (256, 256)])
@pytest.mark.parametrize("before", [0, 1, 33, 700])
def test_every_shape(
    kernels: ModuleType, rng: np.random.Generator, K: int, period: int, longest: int, before: int
) -> None:
    """A period of 16 means plain sums."""
    taps, z = decaying(rng, 2, K), normal(rng, 2, before + 700, 16)
    want = causal(z, taps)[:, before:]
    for unit in (-1, 5):
        state = rolling(kernels, taps, z[:, :before], period, longest, unit=unit)
        y = kernels.online_conv([state], [700], z[:, before:])
        assert rel_l2(y, want) <= PROMISED
        assert rel_l2(y[:, -100:], want[:, -100:]) <= 1.5 * PROMISED
        assert (state.summed > 0) == (period > 16)


@over_threads
def test_bits_depend_on_neither_calls_nor_threads(
    kernels: ModuleType, rng: np.random.Generator, threads: int
) -> None:
    taps, z, gates = decaying(rng, 3, 2000), normal(rng, 3, 900, 16), gates_of(rng, 3, 600)
    alone, early = (rolling(kernels, taps, z[:, :300], 32, 128) for _ in range(2))
    early.begin(threads=threads)
    want = kernels.online_conv([alone], [600], z[:, 300:], **gates)
    done = 0
    for n in (1, 7, 100, 16, 200, 1, 275):
        cut = slice(done, done + n)
        parts = {name: a if name == "skip" else a[:, cut] for name, a in gates.items()}
        rows = z[:, 300 + done : 300 + done + n]
        y = kernels.online_conv([early], [n], rows, **parts, threads=threads)
        np.testing.assert_array_equal(y, want[:, cut])
        done += n


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 999),
    K=st.sampled_from([20, 150, 3000]),
    before=st.integers(0, 500),
    longest=st.sampled_from([32, 64, 256]),
    keep=st.sampled_from([0, 90]),
)
def test_whatever_is_taken_back_forked_or_resumed(
    seed: int, K: int, before: int, longest: int, keep: int
) -> None:
    rng = np.random.default_rng(seed)
    taps, z = decaying(rng, 2, K), normal(rng, 2, before + 600, 16)
    past, z = z[:, :before], z[:, before:]
    want = kernels.online_conv([rolling(kernels.module, taps, past, 32, longest)], [600], z)
    state, farthest = rolling(kernels.module, taps, past, 32, longest, keep=keep), 0
    while state.position < 600:
        t, twin = state.position, state.fork()
        draft = int(rng.integers(0, min(90 if keep else 200, 600 - t) + 1))
        kernels.online_conv([state], [draft], normal(rng, 2, draft, 16))
        kernels.online_conv([twin], [600 - t], normal(rng, 2, 600 - t, 16))  # is another sequence
        farthest = max(farthest, t + draft)
        assert state.oldest <= max(0, farthest - keep)
        back = int(rng.integers(max(state.oldest, t - 90), t + 1))
        state.rewind(back)
        if rng.integers(2):
            kept = np.ascontiguousarray(state.inputs(state.first, back))
            again = rolling(kernels.module, taps, past, 32, longest, keep=keep)
            again.resume(state.first, kept)
            state = again
        elif rng.integers(2):
            state = state.fork()
        n = int(rng.integers(1, min(200, 600 - back) + 1))
        farthest = max(farthest, back + n)
        y = kernels.online_conv([state], [n], z[:, back : back + n])
        np.testing.assert_array_equal(y, want[:, back : back + n])


def test_old_inputs_are_forgotten(kernels: ModuleType, rng: np.random.Generator) -> None:
    taps, z = decaying(rng, 2, 200), normal(rng, 2, 3000, 16)
    state = rolling(kernels, taps, z[:, :1000], 32, 64, keep=100)
    held = []
    for first in range(1000, 3000, 100):
        kernels.online_conv([state], [100], z[:, first : first + 100])
        held.append(state.nbytes)
    assert state.first > 1000
    assert max(held[10:]) == held[10]
    assert state.position - state.oldest >= 100


def test_the_work_is_even(rng: np.random.Generator) -> None:
    """4 groups of 4 convolutions, 2,048 steps after 4,000 rows: sums of some 16 blocks before each
    period, of which no step computes more than a few.
    """
    period, steps = 256, 2048
    taps, past = decaying(rng, 4, 8000), normal(rng, 4, 4000, 16)
    states = [rolling(kernels.module, taps, past, period, period, unit=u) for u in range(0, 16, 4)]
    row = normal(rng, 4, 1, 16)
    done = [0]
    for state in states:
        state.begin()
    for _ in range(steps):
        for state in states:
            kernels.online_conv([state], [1], row)
        done.append(sum(state.summed for state in states))
    work = np.diff(done)[1:]
    parts = 16 // kernels.lanes
    whole = 16 * (4000 // period) * parts * 2 * period  # what a new start would compute at once
    assert done[1] >= whole
    assert work.sum() >= steps // period * whole
    assert work.max() <= 6 * work.mean()
    assert work.max() <= whole / 40
