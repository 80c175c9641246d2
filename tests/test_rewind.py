"""Going back far: wherever `oldest` allows it, what follows is what a whole forward gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from toy import CAUSAL, causal, implicit, layer, model, tokens

from hyena_cpu import InputError, LimitError
from hyena_cpu.config import HyenaConfig
from hyena_cpu.model import Model
from hyena_cpu.state import State

SHORT = causal(130)  # filters that steps leave behind soon
names = pytest.mark.parametrize("name", SHORT)


def stepped(m: Model, prompt: int, steps: int) -> tuple[State, np.ndarray]:
    """The state after a prompt and so many steps, and all tokens."""
    ids = tokens(prompt + steps, seed=3) % m.vocab_size
    state = m.prefill(ids[:prompt])
    for token in ids[prompt:].tolist():
        m.step(state, token)
    return state, ids


def goes_on(m: Model, state: State, ids: np.ndarray) -> None:
    """From the state's position, as a whole forward of the ids so far and some others does."""
    more = tokens(40, seed=9) % m.vocab_size
    position = state.position
    got = np.array([m.step(state, token) for token in more.tolist()])
    want = m.logits(np.concatenate([ids[:position], more]))[position:]
    assert np.abs(got - want).max() <= 1e-4 * max(1, np.abs(want).max())


@names
@pytest.mark.parametrize(("prompt", "steps"), [(10, 767), (64, 300), (100, 40), (1, 500)])
def test_as_far_as_the_oldest(name: str, prompt: int, steps: int, tmp_path: Path) -> None:
    m = model(SHORT[name])
    limit = m.max_length or 10_000
    prompt = min(prompt, limit // 3)
    state, ids = stepped(m, prompt, min(steps, limit - prompt - 40))
    oldest, now = state.oldest, state.position
    places = {oldest, (oldest + now) // 2, max(oldest, now - 190), max(oldest, now - 129), now - 1}
    for position in sorted(places, reverse=True):
        twin = state.fork()
        twin.rewind(position)
        assert (twin.position, twin.torn) == (position, False)
        twin.save(tmp_path / "s")
        goes_on(m, m.load_state(tmp_path / "s"), ids)
        goes_on(m, twin, ids)
    with pytest.raises(LimitError, match="cannot rewind"):
        state.rewind(oldest - 1)


@pytest.mark.parametrize("name", ["long_conv", "selection", "order3"])
def test_where_sums_are_direct(name: str) -> None:
    m = model(SHORT[name], decode="direct")
    state, ids = stepped(m, 50, min(300, (m.max_length or 400) - 100))
    for position in (state.position - 150, state.oldest):
        state.rewind(max(position, state.oldest))
        goes_on(m, state.fork(), ids)


def test_twice_in_a_row() -> None:
    m = model(causal(1000)["base_conv"])
    state, ids = stepped(m, 64, 2986)
    state.rewind(2900)
    state.rewind(state.oldest)
    goes_on(m, state, ids)


def test_a_dropped_history_ends_where_the_filter_still_needs_it(tmp_path: Path) -> None:
    """And goes on where it does not any more, loaded or not."""
    m = model(CAUSAL["finite_hybrid"])
    state = m.prefill(tokens(100), max_new_tokens=100, history="drop")
    assert state.last == 228
    for token in tokens(128).tolist():
        m.step(state, token)
    state.save(tmp_path / "s")
    for one in (state, m.load_state(tmp_path / "s")):
        twin = one.fork()
        m.step(twin, 1)
        assert twin.last is None
        one.rewind(110)
        assert one.last == 228
        with pytest.raises(LimitError, match="it ends at position 228"):
            m.prefill(tokens(5), one, max_new_tokens=300, history="drop")
        assert not one.torn


def test_a_history_is_dropped_twice() -> None:
    config = replace(CAUSAL["order3"], layers=(layer(HyenaConfig(implicit(60_000))),))
    m = model(config)
    state = m.prefill(tokens(300), max_new_tokens=20_000, history="drop")
    assert state.last == 20_300
    m.prefill(tokens(5), state, max_new_tokens=10, history="drop")
    assert (state.position, state.last, state.torn) == (305, 20_300, False)
    want = m.logits(np.concatenate([tokens(300), tokens(5)]))[-1]
    np.testing.assert_allclose(state.logits, want, atol=1e-4 * np.abs(want).max())


def test_tokens_of_a_call_that_failed_are_not_taken_in_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    m, ids = model(CAUSAL["order2"]), tokens(60)

    def fails(_: object) -> None:
        raise MemoryError

    calls = {
        "extend": lambda state: m.extend(state, ids),
        "prefill": lambda state: m.prefill(ids, state),
        "_step": lambda state: m.step([state], [1]),
    }
    for name, call in calls.items():
        state = m.prefill(ids)
        with monkeypatch.context() as patch:
            patch.setattr(m, "_logits_of", fails)
            if name == "_step":
                patch.setattr(m, "_recorded", None)
            with pytest.raises(MemoryError):
                call(state)
        assert state.logits is None, name
        for again in (call, lambda state: m.token_logprobs_after(state, [5])):
            with pytest.raises(InputError, match="interrupted call"):
                again(state)
    state = m.prefill(ids)
    monkeypatch.setattr(state.layers[1], "reserve", fails)
    with pytest.raises(MemoryError):
        m.prefill(ids, state, max_new_tokens=5)
    with pytest.raises(InputError, match="interrupted call"):
        m.prefill(ids, state)
