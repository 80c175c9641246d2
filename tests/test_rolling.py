"""Sequences that go on without a known end, and states of models at any step of theirs.

Periods are made short here, so that a few hundred steps cross many of them and they double.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import rel_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contracts import close
from test_online import G, feed, online_taps
from test_online_conv import PROMISED, causal, decaying, normal
from test_state import same_bits
from test_state_online import through_a_file
from toy import CAUSAL, model, tokens

from hyena_cpu import LimitError, online_bytes, step_plan
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
    assert conv.nbytes <= online_bytes.state(shared, conv.position)


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
        assert known[-1] * 64 * G <= online_bytes.filters(shared, 200, None, state.position)
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
            assert conv.nbytes <= online_bytes.state(shared, 300 + first, 500)
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
