"""prefill(history="drop"): the same numbers in less memory, up to an announced end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_state import same_bits, steps
from toy import CAUSAL, IMPLICIT, LENGTH, causal, layer, model, tokens

import hyena_cpu
from hyena_cpu import InputError, LimitError, planner
from hyena_cpu.config import HyenaConfig
from hyena_cpu.generate import TextStream, drops_history, generate, samples
from hyena_cpu.model import Model
from hyena_cpu.prompts import Options, append, prepare

names = pytest.mark.parametrize("name", CAUSAL)
LONG = replace(
    CAUSAL["order3"],
    layers=tuple(layer(HyenaConfig(replace(IMPLICIT, taps=20_000), order=n)) for n in (2, 3)),
)


@names
def test_the_numbers_are_those_with_a_history(name: str, tmp_path: Path) -> None:
    """Steps, drafts taken back, chunks, continuations, and a file."""
    m = model(CAUSAL[name])
    keep, drop = (
        m.prefill(tokens(200), max_new_tokens=150, history=kind) for kind in ("keep", "drop")
    )
    same_bits(drop.logits, keep.logits)
    want = steps(m, keep, 20)
    same_bits(steps(m, drop, 20), want)
    m.extend(drop, tokens(30, seed=8))
    drop.rewind(219)
    same_bits(m.step(drop, int(tokens(20, seed=99)[-1])), want[-1])
    more = tokens(60, seed=5)
    np.testing.assert_allclose(
        m.token_logprobs_after(drop.fork(), more),
        m.token_logprobs_after(keep.fork(), more),
        atol=1e-4,
    )
    drop.save(tmp_path / "s")
    again = m.load_state(tmp_path / "s")
    assert again.last == drop.last
    for state in (drop, again):
        got = m.extend(state, more)
        assert np.abs(got - m.extend(keep.fork(), more)).max() <= 1e-4
        got = m.extend(state, tokens(70, seed=6))  # more than go step by step elsewhere
        whole = np.concatenate([tokens(200), tokens(20, seed=99), more, tokens(70, seed=6)])
        assert np.abs(got[-1] - m.logits(whole)[-1]).max() <= 1e-4 * np.abs(got).max()


def test_memory_does_not_grow_with_the_context() -> None:
    m = model(LONG)
    sizes = {}
    for length in (2000, 8000):
        state = m.prefill(tokens(length), max_new_tokens=100, history="drop")
        sizes[length] = state.nbytes
        declared = sum(block.mixer.state_bytes(length + 100, 100) for block in m.blocks)
        assert 0.5 * declared <= state.nbytes <= declared + state.logits.nbytes
    assert sizes[2000] == sizes[8000] < m.prefill(tokens(2000)).nbytes / 2


def test_max_memory_knows_what_is_dropped() -> None:
    needed = {
        ahead: hyena_cpu.plan(model(LONG), 8100, room=100, ahead=ahead).needed
        for ahead in (None, 100)
    }
    assert needed[100] < needed[None]
    m = model(LONG, max_memory=needed[100] + (needed[None] - needed[100]) // 4)
    assert m.prefill(tokens(8000), max_new_tokens=100, history="drop").last == 8128
    with pytest.raises(LimitError, match="max-memory"):
        m.prefill(tokens(8000), max_new_tokens=100)


@pytest.mark.parametrize("options", [{"greedy": True}, {"temperature": 1.0, "seed": 3}])
def test_a_run_whose_state_nobody_wants_drops_its_history(options: dict[str, Any]) -> None:
    """With the same log-probabilities to the bit, and where a history does not fit."""
    chosen = Options(max_new_tokens=100, **options)
    needed = {
        ahead: hyena_cpu.plan(model(LONG), 8100, room=100, ahead=ahead).needed
        for ahead in (None, 100)
    }

    def run(m: Model, keep: bool) -> TextStream:
        found = next(samples(m, prepare(m, tokens(8000), chosen), chosen, keep=keep))
        assert len(list(found)) == 100
        return found

    kept, dropped = (run(model(LONG), keep) for keep in (True, False))
    assert dropped.tokens == kept.tokens
    assert dropped.logprobs == kept.logprobs
    tight = model(LONG, max_memory=(needed[100] + needed[None]) // 2)
    assert run(tight, keep=False).tokens == kept.tokens
    with pytest.raises(LimitError, match="max-memory"):
        run(tight, keep=True)


def test_what_needs_its_history_keeps_it() -> None:
    m, direct = model(LONG), model(LONG, decode="direct")
    few, most, many, none = (
        prepare(m, tokens(20), Options(max_new_tokens=n)) for n in (1, 16_384, 16_385, 0)
    )
    assert drops_history(m, few)
    assert drops_history(m, most)
    assert not drops_history(m, many)  # bits depend on how far ahead is planned
    assert not drops_history(m, none)
    assert not drops_history(m, few, keep=True)
    assert not drops_history(direct, few)
    assert len(generate(direct, tokens(20), max_new_tokens=3).tokens) == 3
    assert not drops_history(m, append(m, [], Options(max_new_tokens=1), 20))


@pytest.mark.parametrize("history", ["keep", "drop"])
def test_room_that_was_made_is_used_without_asking_again(history: str) -> None:
    """Steps, forks and chunks with no more memory than the prompt was given, or two states take."""
    ahead = 100 if history == "drop" else None
    dropped = ahead is not None
    needed = max(
        hyena_cpu.plan(model(LONG), 8100, room=100, ahead=ahead).needed,
        hyena_cpu.plan(model(LONG), 8100, 2, new=1, room=99, ahead=ahead, dropped=dropped).needed,
    )
    assert needed < hyena_cpu.plan(model(LONG), 8101, new=1).needed
    m, free = model(LONG, max_memory=needed), model(LONG)
    state, want = (
        one.prefill(tokens(8000), max_new_tokens=100, history=history) for one in (m, free)
    )
    assert state.room == (8000, state.last or 8100)
    same_bits(steps(m, state, 40), steps(free, want, 40))
    twins, others = [state.fork(), state], [want.fork(), want]
    same_bits(m.step(twins, [1, 2]), free.step(others, [1, 2]))
    if dropped:
        same_bits(m.extend(state, tokens(30)), free.extend(want, tokens(30)))
        return
    steps(m, state, 59)
    assert not state.covers(1)
    with pytest.raises(LimitError, match="max-memory"):
        m.step(state, 1)


@pytest.mark.parametrize("history", ["keep", "drop"])
def test_room_beyond_the_context_is_none(history: str, tmp_path: Path) -> None:
    """A dropped history leaves room for a power of two of tokens, which may be more than fit."""
    m = model(CAUSAL["order2"])
    state = m.prefill(tokens(LENGTH - 10), max_new_tokens=5, history=history)
    state.save(tmp_path / "s")
    for one in (state, m.load_state(tmp_path / "s")):
        steps(m, one, 10)
        for refused in (
            lambda state=one: m.step(state, 1),
            lambda state=one: m.step([state, state.fork()], [1, 1]),
            lambda state=one: m.extend(state, [1]),
        ):
            with pytest.raises(LimitError, match=f"{LENGTH + 1} tokens but toy takes at most"):
                refused()


def test_room_begins_where_a_loaded_state_is_taken_back_to(tmp_path: Path) -> None:
    m = model(LONG, max_memory=1 << 30)
    state = m.prefill(tokens(500), max_new_tokens=100, history="drop")
    m.extend(state, tokens(128))
    state.save(tmp_path / "s")
    again = m.load_state(tmp_path / "s")
    assert again.room == (628, 628)
    again.rewind(600)
    assert again.room == (600, 628)
    state.rewind(600)
    assert state.room == (500, 628)
    pairs = ([one, one.fork()] for one in (state, again))
    same_bits(*(m.step(pair, [1, 2]) for pair in pairs))


def test_a_prompt_goes_on_in_the_room_of_a_dropped_history() -> None:
    m = model(LONG)
    state = m.prefill(tokens(500), max_new_tokens=100, history="drop")
    assert state.room == (500, 628)
    m.prefill(tokens(3), state, max_new_tokens=5)
    assert state.room == (500, 628)
    state.rewind(500)
    assert state.room == (500, 628)


def test_room_for_one_is_none_for_many() -> None:
    plan = {
        n: hyena_cpu.plan(model(LONG), 8100, n, new=1, room=99, ahead=100, dropped=True).needed
        for n in (1, 60)
    }
    needed = hyena_cpu.plan(model(LONG), 8100, room=100, ahead=100).needed
    assert plan[1] < needed < plan[60]
    m = model(LONG, max_memory=needed)
    state = m.prefill(tokens(8000), max_new_tokens=100, history="drop")
    many = [state.fork() for _ in range(60)]
    with pytest.raises(LimitError, match="max-memory"):
        m.step(many, [1] * 60)
    m.step(many[:2], [1, 2])


def test_steps_with_room_are_planned_once_for_many_and_never_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    m = model(LONG, max_memory=1 << 30)
    state = m.prefill(tokens(500), max_new_tokens=100)
    twins = [state.fork(), state.fork()]
    plans = []
    whole = planner.plan
    monkeypatch.setattr(planner, "plan", lambda *a, **k: plans.append(a) or whole(*a, **k))
    for _ in range(5):
        m.step(state, 1)
    assert len(plans) == 0
    for _ in range(5):
        m.step(twins, [1, 2])
    assert len(plans) == 1
    m.step([*twins, state], [1, 2, 3])
    assert len(plans) == 2


def test_room_is_gone_with_what_it_was_made_after() -> None:
    m = model(LONG)
    state = m.prefill(tokens(500), max_new_tokens=100)
    state.rewind(499)
    assert not state.covers(1)
    state = m.prefill(tokens(500), max_new_tokens=100)
    m.extend(state, tokens(90))  # so many go through a transform
    assert not state.covers(1)
    with pytest.raises(InputError, match="say ahead"):
        hyena_cpu.plan(m, 100, dropped=True)


def test_the_end_is_announced_and_kept() -> None:
    m = model(LONG)
    state = m.prefill(tokens(500), max_new_tokens=100, history="drop")
    assert state.last == 628  # room is made for powers of two
    m.extend(state, tokens(120))
    twin = state.fork()
    for refused in (
        lambda: m.extend(state, tokens(9)),
        lambda: m.prefill(tokens(4), state, max_new_tokens=5),
        lambda: m.token_logprobs_after(state, tokens(10)),
        lambda: state.reserve(9),
    ):
        with pytest.raises(LimitError, match="it ends at position 628 and cannot reach 629"):
            refused()
    same_bits(steps(m, state, 8), steps(m, twin, 8))
    with pytest.raises(LimitError, match="cannot reach 629"):
        m.step(twin, 1)
    state.rewind(500)
    with pytest.raises(LimitError, match="go back to 500; keep a fork"):
        state.rewind(499)


def test_finite_models_have_no_end() -> None:
    m = model(CAUSAL["finite_hybrid"])
    state = m.prefill(tokens(500), max_new_tokens=300, history="drop")
    assert state.last is None
    m.extend(state, tokens(400))


def test_what_cannot_be_dropped_is_said() -> None:
    m = model(LONG)
    for bad in ({}, {"max_new_tokens": 65_537}):
        with pytest.raises(InputError, match="needs max_new_tokens"):
            m.prefill(tokens(9), history="drop", **bad)
    with pytest.raises(InputError, match="history is 'mmap', must be keep or drop"):
        m.prefill(tokens(9), history="mmap")  # type: ignore[arg-type]


def test_what_was_accepted_goes_on_to_its_end(tmp_path: Path) -> None:
    """By few tokens at a time, and from a file."""
    needed = hyena_cpu.plan(model(LONG), 268, new=228, room=40, logits_rows=1).needed
    m = model(LONG, max_memory=needed)
    state = m.prefill(tokens(228), max_new_tokens=40)
    m.extend(state, tokens(2))
    m.prefill(tokens(2), state)
    assert state.room == (228, 268)
    state.reserve(36)
    state.save(tmp_path / "s")
    again = m.load_state(tmp_path / "s")
    for one in (state, again):
        assert one.covers(36)
        steps(m, one, 36)
    with pytest.raises(LimitError, match="max-memory"):
        m.step(state, 1)


@pytest.mark.parametrize("name", ["selection", "input_lags", "finite_hybrid"])
def test_a_filter_that_ends_is_no_room_without_end(name: str, tmp_path: Path) -> None:
    m = model(causal(130)[name], max_memory=64 << 20)
    state = m.prefill(tokens(20))
    steps(m, state, 50)
    state.save(tmp_path / "s")
    again = m.load_state(tmp_path / "s")
    assert again.room[1] <= 70 + 2048
    same_bits(steps(m, again, 9), steps(m, state, 9))


def test_interrupted_room_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model(LONG)
    state = m.prefill(tokens(100))

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(state.layers[1], "reserve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        state.reserve(5000)
    assert not state.covers(1)
