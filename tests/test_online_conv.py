"""Token by token: the schedule of tiles, and the kernels that follow it."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
import pytest
from conftest import SEED, causal, misaligned, over_threads, rel_l2, strided_tiles
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.reference import online as reference

PROMISED = 3e-7  # relative L2 error of a convolution in float32, at any length


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def decaying(rng: np.random.Generator, groups: int, K: int) -> np.ndarray:
    """Taps [groups, K, 16] of unit energy, decaying with time constant K / 4."""
    taps = rng.standard_normal((groups, K, 16)) * np.exp(-4 * np.arange(K) / K)[:, None]
    return (taps / np.linalg.norm(taps, axis=1, keepdims=True)).astype(np.float32)


def online_filter(kernels: ModuleType, taps: np.ndarray, horizon: int):
    """The filter for states of this horizon."""
    _, period, endless = kernels.tile_plan(horizon, taps.shape[1])
    known = max(2 * period if endless else period, kernels.head_taps)
    return filter_of(kernels, taps, known)


def filter_of(kernels: ModuleType, taps: np.ndarray, known: int | None = None):
    """The filter with its first `known` taps (None: all)."""
    groups, K, _ = taps.shape
    found = kernels.OnlineFilter(groups, K)
    found.append(np.ascontiguousarray(taps[:, :known]))
    return found


def new_state(kernels: ModuleType, taps: np.ndarray, horizon: int, unit: int = 0, future=None):
    return kernels.OnlineState(online_filter(kernels, taps, horizon), horizon, unit, future)


def steps(kernels: ModuleType, state, z: np.ndarray, **gates) -> np.ndarray:
    """Row after row of z [G, S, 16]."""
    rows = [kernels.online_conv([state], [1], z[:, s : s + 1], **gates) for s in range(z.shape[1])]
    return np.concatenate(rows, axis=1)


plans = st.tuples(st.integers(1, 700), st.integers(1, 900))


@given(plan=plans)
def test_plan_matches_the_reference(plan: tuple[int, int]) -> None:
    horizon, period, endless = chosen.tile_plan(*plan)
    want = reference.tile_plan(*plan)
    assert (horizon, period, endless) == (want.horizon, want.period, want.kind == "endless")
    assert horizon >= plan[0]
    top = period if endless else period // 2
    assert endless == (plan[1] - 1 <= top and top <= max(16, plan[0]))


@settings(max_examples=60, deadline=None)
@given(plan=plans, data=st.data())
def test_every_pair_meets_once(plan: tuple[int, int], data: st.DataObject) -> None:
    """Every input reaches every output that a tap connects it to, in exactly one place."""
    tiles = reference.tile_plan(*plan)
    meets_once(tiles, data.draw(st.integers(0, tiles.period - 1)), plan[1])


@settings(max_examples=40, deadline=None)
@given(
    period=st.sampled_from([32, 64, 128]),
    doubled=st.integers(0, 2),
    base=st.integers(0, 900),
    data=st.data(),
)
def test_every_pair_meets_once_when_periods_grow(
    period: int, doubled: int, base: int, data: st.DataObject
) -> None:
    tiles = reference.rolling_plan(period, period << doubled, base)
    meets_once(tiles, data.draw(st.integers(0, period - 1)), 1 << 20)


def meets_once(tiles: reference.TilePlan, phase: int, taps: int) -> None:
    base, length = tiles.base, min(tiles.horizon, 1300 if tiles.base else 500)
    met = np.zeros((base + length, length), np.int8)
    known = 0  # outputs before this one are final
    for a0, a1, b0, b1 in reference.schedule(tiles, phase, length):
        assert -base <= a0 <= a1 <= b0 + 1 <= b1 <= length
        assert b0 >= known  # nothing is added to an output after it has been given out
        known = max(known, a1 - 1)
        met[base + a0 : base + a1, b0:b1] += 1
    lags = np.arange(length) - np.arange(-base, length)[:, None]
    assert met.max() == 1
    assert np.all(met[(lags >= 0) & (lags < taps)] == 1)
    assert np.all(met[lags < 0] == 0)


@pytest.mark.parametrize("plan", [(200, 1000), (200, 40), (64, 64), (100, 1)])
def test_the_schedule_adds_up_to_the_convolution(
    rng: np.random.Generator, plan: tuple[int, int]
) -> None:
    tiles = reference.tile_plan(*plan)
    w, taps = rng.standard_normal(plan[0]), rng.standard_normal(plan[1])
    for phase in (0, 5, tiles.period - 1):
        want = np.convolve(w, taps)[: len(w)]
        np.testing.assert_allclose(reference.by_tiles(tiles, phase, w, taps), want, atol=1e-12)


@pytest.mark.parametrize("K", [1, 2, 16, 17, 18, 33, 100, 129, 400])
@pytest.mark.parametrize("unit", [-1, 0, 1, 6])
def test_every_small_length(
    kernels: ModuleType, rng: np.random.Generator, K: int, unit: int
) -> None:
    taps, z = decaying(rng, 2, K), normal(rng, 2, 300, 16)
    before = normal(rng, 2, 37, 16)
    want = causal(np.concatenate([before, z], axis=1), taps)[:, 37:]
    for horizon in (20, 64, 300):
        rows = min(horizon, 300)
        future = np.zeros((2, horizon, 16), np.float32)
        kernels.future_fill(before, taps, future)
        state = new_state(kernels, taps, horizon, unit, future)
        y = steps(kernels, state, z[:, :rows])
        assert rel_l2(y, want[:, :rows]) <= PROMISED
        assert state.position == rows


@pytest.mark.parametrize(("horizon", "past"), [(4096, 0), (8192, 1), (4096, 5000)])
def test_error_against_float64(
    kernels: ModuleType, rng: np.random.Generator, horizon: int, past: int
) -> None:
    taps, z = decaying(rng, 2, past + horizon), normal(rng, 2, past + horizon, 16)
    future = np.zeros((2, horizon, 16), np.float32)
    kernels.future_fill(z[:, :past], taps, future)
    state = new_state(kernels, taps, horizon, 3, future)
    y = kernels.online_conv([state], [horizon], z[:, past:])
    want = causal(z, taps)[:, past:]
    assert rel_l2(y, want) <= PROMISED
    # The promise is about the whole run; the end by itself shows that nothing drifts.
    assert rel_l2(y[:, -256:], want[:, -256:]) <= 1.25 * PROMISED


def test_error_at_a_long_horizon(rng: np.random.Generator) -> None:
    taps, z = decaying(rng, 1, 32768), normal(rng, 1, 32768, 16)
    y = chosen.online_conv([new_state(chosen.module, taps, 32768, 5)], [32768], z)
    assert rel_l2(y, causal(z, taps)) <= PROMISED


def test_outliers_cost_no_more_than_their_own_rounding(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    taps, z = decaying(rng, 1, 2048), normal(rng, 1, 2048, 16)
    z[:, 100::500] = 1e4
    y = kernels.online_conv([new_state(kernels, taps, 2048)], [2048], z)
    worst = np.abs(y - causal(z, taps)).max()
    assert worst <= 1e-5 * np.sqrt(np.mean(z.astype(np.float64) ** 2))  # taps have energy 1


def gates_of(rng: np.random.Generator, G: int, S: int) -> dict[str, np.ndarray]:
    return {
        "skip": normal(rng, G, 16),
        "pre": normal(rng, G, S, 16),
        "post": normal(rng, G, S, 16),
    }


@over_threads
def test_gates_views_and_threads(
    kernels: ModuleType, rng: np.random.Generator, threads: int
) -> None:
    G, S = 3, 150
    taps, z, gates = decaying(rng, G, 200), normal(rng, G, S, 16), gates_of(rng, G, S)
    plain = reference.OnlineState(reference.OnlineFilter(taps))
    want = reference.online_conv([plain], [S], z, **gates)
    first = None
    for view in (np.array, misaligned, strided_tiles):
        state = new_state(kernels, taps, S)
        moved = {name: view(gate) if name != "skip" else gate for name, gate in gates.items()}
        y = kernels.online_conv([state], [S], view(z), **moved, threads=threads)
        assert rel_l2(y, want) <= PROMISED
        first = y if first is None else first
        np.testing.assert_array_equal(y, first)
    for name in ("z", "pre", "post"):
        arrays = {"z": z.copy(), **{n: g.copy() for n, g in gates.items()}}
        state = new_state(kernels, taps, S)
        y = kernels.online_conv([state], [S], **arrays, out=arrays[name], threads=threads)
        assert y is arrays[name]
        np.testing.assert_array_equal(y, first)


def test_bits_do_not_depend_on_threads_splits_or_companions(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    """Three sequences at different positions; together, apart, in any order, row by row."""
    G, starts, n = 2, [0, 70, 301], 200
    taps = decaying(rng, G, 2000)
    z = [normal(rng, G, start + n, 16) for start in starts]
    shared = online_filter(kernels, taps, 512)

    def prepared(b: int):
        state = kernels.OnlineState(shared, 512, 4)
        kernels.online_conv([state], [starts[b]], z[b][:, : starts[b]])
        return state

    alone = [steps(kernels, prepared(b), z[b][:, starts[b] :]) for b in range(3)]
    for order in ([0, 1, 2], [2, 0, 1]):
        for threads in (1, 2, 3):
            states = [prepared(b) for b in order]
            for s in range(n):
                rows = [z[b][:, starts[b] + s : starts[b] + s + 1] for b in order]
                joined = np.concatenate(rows, axis=1)
                y = kernels.online_conv(states, [1, 1, 1], joined, threads=threads)
                for slot, b in enumerate(order):
                    np.testing.assert_array_equal(y[:, slot], alone[b][:, s])
    states = [prepared(b) for b in range(3)]
    counts = [n, n - 1, 3]
    ragged = [z[b][:, starts[b] : starts[b] + counts[b]] for b in range(3)]
    y = kernels.online_conv(states, counts, np.concatenate(ragged, axis=1), threads=3)
    want = [alone[b][:, : counts[b]] for b in range(3)]
    np.testing.assert_array_equal(y, np.concatenate(want, axis=1))
    one = kernels.OnlineState(online_filter(kernels, taps[1:], 512), 512, 5)
    np.testing.assert_array_equal(
        kernels.online_conv([one], [n], z[0][1:]), alone[0][1:]
    )  # unit 5 = 4 + 1: a group does not depend on the groups beside it


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    horizon=st.sampled_from([64, 300, 512]),
    K=st.sampled_from([40, 100, 1000]),
    unit=st.integers(-1, 20),
)
def test_rewound_runs_have_the_bits_of_straight_ones(
    seed: int, horizon: int, K: int, unit: int
) -> None:
    """Drafts that are dropped again, some of them beyond their beginning."""
    rng = np.random.default_rng(seed)
    taps, future = decaying(rng, 2, K), normal(rng, 2, horizon, 16)
    z = normal(rng, 2, horizon, 16)
    want = chosen.online_conv([new_state(chosen.module, taps, horizon, unit, future)], [horizon], z)
    state = new_state(chosen.module, taps, horizon, unit, future)
    while state.position < horizon:
        t = state.position
        draft = int(rng.integers(0, min(90, horizon - t) + 1))
        chosen.online_conv([state], [draft], normal(rng, 2, draft, 16))
        state.rewind(t + int(rng.integers(0, draft + 1)))  # a part of the draft is kept for a while
        t = int(rng.integers(max(0, t - 20), t + 1))
        state.rewind(t)
        n = int(rng.integers(1, min(60, horizon - t) + 1))
        y = chosen.online_conv([state], [n], z[:, t : t + n])
        np.testing.assert_array_equal(y, want[:, t : t + n])


def test_rewind_after_every_length(kernels: ModuleType, rng: np.random.Generator) -> None:
    """From every position back to every tenth, and on for 20 rows."""
    taps, z, junk = decaying(rng, 1, 500), normal(rng, 1, 128, 16), normal(rng, 1, 128, 16)
    want = kernels.online_conv([new_state(kernels, taps, 128, 1)], [128], z)
    for back in range(0, 128, 10):
        for n in range(1, 128 - back):
            state = new_state(kernels, taps, 128, 1)
            kernels.online_conv([state], [back], z[:, :back])
            kernels.online_conv([state], [n], junk[:, :n])
            state.rewind(back)
            rest = min(20, 128 - back)
            y = kernels.online_conv([state], [rest], z[:, back : back + rest])
            np.testing.assert_array_equal(y, want[:, back : back + rest])


def test_forks_are_independent(kernels: ModuleType, rng: np.random.Generator) -> None:
    taps, z = decaying(rng, 2, 600), normal(rng, 2, 256, 16)
    state = new_state(kernels, taps, 256, 2, normal(rng, 2, 256, 16))
    kernels.online_conv([state], [77], z[:, :77])
    twin, again = state.fork(), state.fork()
    want = kernels.online_conv([state], [179], z[:, 77:])
    kernels.online_conv([twin], [100], normal(rng, 2, 100, 16))
    np.testing.assert_array_equal(kernels.online_conv([again], [179], z[:, 77:]), want)
    assert (state.position, twin.position) == (256, 177)


@pytest.mark.parametrize("K", [1, 12, 40])
def test_short_filters_go_on_for_ever(
    kernels: ModuleType, rng: np.random.Generator, K: int
) -> None:
    taps, z = decaying(rng, 2, K), normal(rng, 2, 3000, 16)
    want = causal(z, taps)
    whole = kernels.online_conv([new_state(kernels, taps, 4096, 2)], [3000], z)
    assert rel_l2(whole, want) <= PROMISED
    period = kernels.tile_plan(4096, K)[1]
    state = kernels.OnlineState(online_filter(kernels, taps, 4096), 4096, 2, keep=70)
    assert state.kind == "endless"
    for done in range(0, 3000, 50):
        y = kernels.online_conv([state], [50], z[:, done : done + 50])
        np.testing.assert_array_equal(y, whole[:, done : done + 50])
        np.testing.assert_array_equal(state.inputs(done, done + 50), z[:, done : done + 50])
        assert state.oldest <= max(0, done + 50 - 70)
    assert state.first > 0
    assert state.nbytes < 2 * 64 * (70 + 8 * period + 32)


@pytest.mark.parametrize(("K", "at"), [(40, 30), (40, 512), (40, 700), (900, 1), (900, 333)])
def test_resumed_states_go_on_with_the_same_bits(
    kernels: ModuleType, rng: np.random.Generator, K: int, at: int
) -> None:
    taps, z, future = decaying(rng, 2, K), normal(rng, 2, at + 100, 16), normal(rng, 2, 512, 16)
    state = new_state(kernels, taps, 512, 3, future)
    for s in range(at):
        kernels.online_conv([state], [1], z[:, s : s + 1])
    kept = np.ascontiguousarray(state.inputs(state.first, at))
    again = new_state(kernels, taps, 512, 3, state.future)
    again.resume(state.first, kept)
    assert (again.position, again.first) == (at, state.first)
    want = kernels.online_conv([state], [100], z[:, at:])
    np.testing.assert_array_equal(kernels.online_conv([again], [100], z[:, at:]), want)
    with pytest.raises(ValueError, match="resume: needs a new state"):
        again.resume(0, kept)


@cache
def futures(K: int, past: int, future: int) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
    """Inputs, taps and outputs so far, and what is added to these by rows ahead: for all builds and
    threads.
    """
    rng = np.random.default_rng(SEED)
    z, taps, start = normal(rng, 2, past, 16), decaying(rng, 2, K), normal(rng, 2, future, 16)
    added = {ahead: reference.future_fill(z, taps, future, ahead) for ahead in (0, 7)}
    return [z, taps, start], added


@pytest.mark.parametrize("K", [1, 2, 30, 200, 5000])
@pytest.mark.parametrize(("past", "future"), [(1, 1), (48, 64), (49, 64), (300, 20), (1000, 64)])
@over_threads
def test_filling_in_the_future(
    kernels: ModuleType, K: int, past: int, future: int, threads: int
) -> None:
    """Blocks much longer than the future, all at once and cut into chunks."""
    (z, taps, start), added = futures(K, past, future)
    for view in (np.array, strided_tiles):
        for ahead, want in added.items():
            out = start.copy()
            kernels.future_fill(view(z), view(taps), out, ahead, threads=threads)
            assert np.linalg.norm(out - start - want) <= 1e-6 * np.linalg.norm(start)
            assert np.array_equal(
                out[:, max(0, K - 1 - ahead) :], start[:, max(0, K - 1 - ahead) :]
            )
            parts = start.copy()
            cut = past // 3
            kernels.future_fill(z[:, cut:], taps, parts, ahead, threads=threads)
            kernels.future_fill(z[:, :cut], taps, parts, ahead + past - cut, threads=threads)
            assert np.linalg.norm(parts - out) <= 1e-6 * np.linalg.norm(start)


def test_filters_grow(kernels: ModuleType, rng: np.random.Generator) -> None:
    """Taps that come in pieces, some of them after states began, are as good as all at once."""
    taps, z = decaying(rng, 2, 5000), normal(rng, 2, 1024, 16)
    whole, grown = filter_of(kernels, taps), filter_of(kernels, taps, 200)
    held = grown.nbytes
    with pytest.raises(ValueError, match="horizon 1024 needs 1024 taps but the filter knows 200"):
        kernels.OnlineState(grown, 1024, 0)
    for first in range(200, 1100, 150):
        grown.append(np.ascontiguousarray(taps[:, first : first + 150]))
    assert (grown.known, whole.known, grown.taps) == (1100, 5000, 5000)
    runs = [
        kernels.online_conv([kernels.OnlineState(f, 1024, 0)], [1024], z) for f in (grown, whole)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert held < grown.nbytes < whole.nbytes


def test_wrong_arguments_are_named(kernels: ModuleType, rng: np.random.Generator) -> None:
    taps, z = decaying(rng, 2, 1000), normal(rng, 2, 5, 16)
    state, other = new_state(kernels, taps, 32), new_state(kernels, taps[:1], 32)
    with pytest.raises(ValueError, match=r"counts\[0\] is 33 but the state has room for 32"):
        kernels.online_conv([state], [33], normal(rng, 2, 33, 16))
    with pytest.raises(ValueError, match="counts add up to 4 but z has 5 rows"):
        kernels.online_conv([state], [4], z)
    with pytest.raises(ValueError, match="a state appears twice"):
        kernels.online_conv([state, state], [2, 3], z)
    with pytest.raises(ValueError, match="z has 2 groups but state 0 has 1"):
        kernels.online_conv([other], [5], z)
    with pytest.raises(ValueError, match=r"post has shape \[2, 4, 16\] but needs \[2, 5, 16\]"):
        kernels.online_conv([state], [5], z, post=z[:, :4])
    with pytest.raises(ValueError, match=r"rewind: position is 1 but needs to be within \[0, 0\]"):
        state.rewind(1)
    with pytest.raises(ValueError, match=r"inputs: \[0, 1\) is not within \[0, 0\)"):
        state.inputs(0, 1)
    with pytest.raises(ValueError, match=r"future has shape .* but needs 2 groups"):
        new_state(kernels, taps, 32, 0, normal(rng, 1, 32, 16))
    with pytest.raises(ValueError, match="OnlineFilter: needs groups and total from 1"):
        kernels.OnlineFilter(2, 0)
    with pytest.raises(ValueError, match="append: the first call needs at least 128 taps, or all"):
        kernels.OnlineFilter(2, 1000).append(np.ascontiguousarray(taps[:, :127]))
    with pytest.raises(ValueError, match=r"append: taps has .* but needs \[2, 1 to 500, 16\]"):
        filter_of(kernels, taps, 500).append(taps)
    for period, longest in ((16, 32), (64, 32), (48, 64), (64, 1 << 17)):
        with pytest.raises(ValueError, match="needs powers of two 32 <= period <= longest"):
            kernels.OnlineState.rolling_on(filter_of(kernels, taps), 0, period, longest, 100, 0)
    with pytest.raises(ValueError, match="past has 5 rows but base is 4"):
        kernels.OnlineState.rolling_on(filter_of(kernels, taps), 0, 32, 32, 100, 4, [z])
    with pytest.raises(ValueError, match=r"past has shape .* but needs 2 groups"):
        kernels.OnlineState.rolling_on(filter_of(kernels, taps), 0, 32, 32, 100, 5, [z[:1]])
    few = kernels.OnlineState.rolling_on(filter_of(kernels, taps, 128), 0, 64, 64, 100, 0)
    with pytest.raises(ValueError, match="online_conv: needs 197 taps but the filter knows 128"):
        kernels.online_conv([few], [5], z)
    with pytest.raises(ValueError, match="ahead is -1"):
        kernels.future_fill(z, taps, z.copy(), -1)
    with pytest.raises(ValueError, match="tile_plan: needs horizon and taps from 1"):
        kernels.tile_plan(0, 5)
