"""Steps that go on without a known end: even work, the same bits whatever the schedule.

Periods are made short here, so that a few hundred steps cross many of them and they double.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import over_threads, rel_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contracts import close
from test_online import G, feed, online_taps
from test_online_conv import PROMISED, causal, decaying, filter_of, gates_of, normal
from test_state import same_bits
from test_state_online import through_a_file
from toy import CAUSAL, model, tokens

from hyena_cpu import InputError, LimitError, kernels, step_plan
from hyena_cpu.online import OnlineConv, extend_each
from hyena_cpu.online_taps import LOOK_AHEAD
from hyena_cpu.step_plan import SURE_REWIND

PERIODS = {"USUAL_HORIZON": 32, "SHORTEST_PERIOD": 32, "LONGEST_PERIOD": 128}


@contextmanager
def short_periods() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PERIODS.items():
            patch.setattr(step_plan, name, value)
        yield


@pytest.fixture
def short() -> Iterator[None]:
    with short_periods():
        yield


# ---- kernels


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


# ---- one sequence


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("K", [30, 100, 700, 6000])
@pytest.mark.parametrize("chunks", [[300] + [1] * 400, [1] * 600, [600, *[60] * 8, 5, 300, 1, 1]])
def test_sequences(rng: np.random.Generator, K: int, chunks: list[int]) -> None:
    taps, z = decaying(rng, G, K), normal(rng, G, sum(chunks), 16)
    shared = online_taps(taps)
    conv = OnlineConv(shared)
    y = feed(conv, z, chunks)
    assert rel_l2(y, causal(z, taps)) <= PROMISED
    kept = min(K - 1, z.shape[1])
    np.testing.assert_array_equal(conv.history(), z[:, z.shape[1] - kept :])
    assert conv.nbytes <= shared.state_bytes(conv.position)


@pytest.mark.usefixtures("short")
def test_filters_become_known_little_by_little(rng: np.random.Generator) -> None:
    """At every step as far as it needs, and never many taps at once, when periods double too."""
    taps, z = decaying(rng, G, 6000), normal(rng, G, 1700, 16)
    shared = online_taps(taps)
    conv = OnlineConv(shared)
    conv.extend(z[:, :200], 1)
    known = []
    for t in range(200, 1700):
        conv.extend(z[:, t : t + 1], 1)
        state = conv.make_room(1)
        known.append(state.filter.known)
        assert state.taps_for(1) <= known[-1]
        assert known[-1] * 64 * G <= shared.filter_bytes(200, None, state.position)
    assert np.diff(known).max() <= 2 * LOOK_AHEAD
    assert shared.plan(200, None).periods_at(200, 1500) == (128, 128)
    assert shared.plan(200, None).period == 32


@pytest.mark.usefixtures("short")
def test_batches_have_the_bits_of_single_sequences(rng: np.random.Generator) -> None:
    shared = online_taps(decaying(rng, G, 3000))
    lengths = [0, 3, 700, 150]
    z = [normal(rng, G, n + 150, 16) for n in lengths]
    convs = [OnlineConv(shared) for _ in lengths]
    alone = [OnlineConv(shared) for _ in lengths]
    for b, n in enumerate(lengths[1:], 1):
        for conv in (convs[b], alone[b]):
            conv.extend(z[b][:, :n], 1)
    for s in range(150):
        rows = [z[b][:, n + s : n + s + 1] for b, n in enumerate(lengths)]
        y = extend_each(convs, np.concatenate(rows, axis=1), 2)
        for b, row in enumerate(rows):
            np.testing.assert_array_equal(y[:, b : b + 1], alone[b].extend(row, 1))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("K", [30, 300, 6000])
@settings(max_examples=15, deadline=None)
@given(at=st.integers(1, 400), before=st.sampled_from([0, 90, 500]))
def test_files_hold_all_that_is_needed(
    K: int, at: int, before: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with short_periods():
        rng = np.random.default_rng(at)
        taps = decaying(rng, G, K)
        conv = OnlineConv(online_taps(taps, 3))
        feed(conv, normal(rng, G, before + at, 16), [before] * (before > 0) + [1] * at)
        path = tmp_path_factory.mktemp("rolling") / "s"
        again = through_a_file(conv, online_taps(taps, 3), path)
        assert (again.position, again.oldest) == (conv.position, conv.oldest)
        rows = normal(rng, G, 260, 16)
        np.testing.assert_array_equal(feed(again, rows, [65] * 4), feed(conv, rows, [65] * 4))
        for one in (conv, again):
            one.rewind(one.position - SURE_REWIND)
        rows = normal(rng, G, 90, 16)
        np.testing.assert_array_equal(again.extend(rows, 1), conv.extend(rows, 1))


@pytest.mark.usefixtures("short")
def test_a_dropped_history_is_not_needed(rng: np.random.Generator) -> None:
    """More steps than a closed plan takes: what they add to one another comes little by little."""
    taps, z = decaying(rng, G, 6000), normal(rng, G, 900, 16)
    want = causal(z, taps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_plan, "LONGEST_HORIZON", 64)
        for first in (0, 40):  # at once, or after steps
            shared = online_taps(taps)
            conv = OnlineConv(shared)
            y = feed(conv, z[:, : 300 + first], [300] + [1] * first)
            conv.drop_history(500)
            y = np.concatenate([y, feed(conv, z[:, 300 + first : 800 + first], [1] * 500)], axis=1)
            assert rel_l2(y, want[:, : 800 + first]) <= PROMISED
            assert conv.last == conv.position == 800 + first
            assert conv.nbytes <= shared.state_bytes(300 + first, 500)
            with pytest.raises(LimitError, match=f"it ends at {800 + first}"):
                conv.extend(z[:, :1], 1)


# ---- models


CONVOLVING = ["order2", "order3", "order4_no_mlp", "finite_hybrid", "long_conv", "ssm_filters"]
LONG = 300


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", CONVOLVING)
@pytest.mark.parametrize("first", [1, 90])
def test_steps_have_the_logits_of_the_whole(name: str, first: int) -> None:
    m, ids = model(CAUSAL[name]), tokens(LONG)
    whole = m.logits(ids)
    state = m.prefill(ids[:first])
    got = [state.logits, *(m.step(state, int(t)) for t in ids[first:])]
    close(np.stack(got), whole[first - 1 :])


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", CONVOLVING)
def test_states_at_any_step(name: str, tmp_path: Path) -> None:
    """Forked, rewound and saved around every place where something begins anew."""
    m, ids = model(CAUSAL[name]), tokens(LONG)
    straight = m.prefill(ids[:60])
    want = [m.step(straight, int(t)) for t in ids[60:]]
    state = m.prefill(ids[:60])
    for t in range(60, LONG - 20, 7):
        twin = state.fork()
        for junk in tokens(min(40, LONG - t), seed=t):
            m.step(twin, int(junk))
        twin.rewind(t)
        if t % 2:
            twin.save(tmp_path / "s")
            twin = m.load_state(tmp_path / "s")
        for i in range(t, t + 20):
            same_bits(m.step(twin, int(ids[i])), want[i - 60])
        for i in range(t, t + 7):
            same_bits(m.step(state, int(ids[i])), want[i - 60])


# ---- plain sums


@pytest.mark.parametrize("name", CONVOLVING)
def test_direct_sums_have_the_same_logits(name: str, tmp_path: Path) -> None:
    exact, direct = (model(CAUSAL[name], decode=decode) for decode in ("exact", "direct"))
    ids = tokens(200)
    whole = exact.logits(ids)
    states = [m.prefill(ids[:50]) for m in (exact, direct)]
    for t in range(50, 200):
        rows = [m.step(s, int(ids[t])) for m, s in zip((exact, direct), states, strict=True)]
        close(rows[0], whole[t])
        close(rows[1], whole[t])
    assert not np.array_equal(rows[0], rows[1])
    twin = states[1].fork()
    twin.rewind(150)
    same_bits(np.stack([direct.step(twin, int(t)) for t in ids[150:]])[-1], rows[1])
    for saved, other in zip(states, (direct, exact), strict=True):  # each by the other way
        saved.save(tmp_path / "s")
        close(other.step(other.load_state(tmp_path / "s"), 3), exact.step(states[0].fork(), 3))


def test_ways_of_decoding_that_cannot_act() -> None:
    with pytest.raises(InputError, match="decode 'quick' is not known; known: auto, exact, direct"):
        model(CAUSAL["order2"], decode="quick")
    for name in ("retnet", "blocked_attention", "h3", "order1"):
        for decode in ("exact", "direct"):
            with pytest.raises(InputError, match=f"decode '{decode}' cannot act: toy has no long"):
                model(CAUSAL[name], decode=decode)
    direct = model(CAUSAL["order2"], decode="direct")
    with pytest.raises(InputError, match="history='drop' cannot act"):
        direct.prefill(tokens(9), max_new_tokens=5, history="drop")


def test_direct_states_need_their_history(tmp_path: Path) -> None:
    m = model(CAUSAL["order2"])
    state = m.prefill(tokens(100), max_new_tokens=64, history="drop")
    state.save(tmp_path / "s")
    with pytest.raises(InputError, match="lacks the inputs before it, which decode 'direct' needs"):
        model(CAUSAL["order2"], decode="direct").load_state(tmp_path / "s")


@pytest.mark.usefixtures("short")
def test_prefill_prepares_the_steps_that_were_asked_for() -> None:
    """The first step then has nothing more to do than others."""
    m = model(CAUSAL["order2"], threads=1)
    conv = m.prefill(tokens(200), max_new_tokens=100).layers[0].convs[0]
    assert conv.make_room(1).kind == "closed"
    assert conv.make_room(1).room >= 100
    plain = m.prefill(tokens(200)).layers[0].convs[0]
    before = plain.nbytes
    assert plain.make_room(1).kind == "rolling"
    assert plain.nbytes > before
