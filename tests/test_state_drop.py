"""prefill(history="drop"): the same numbers in less memory, up to an announced end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_state import same_bits, steps
from toy import CAUSAL, IMPLICIT, layer, model, tokens

import hyena_cpu
from hyena_cpu import InputError, LimitError
from hyena_cpu.config import HyenaConfig

causal = pytest.mark.parametrize("name", CAUSAL)
LONG = replace(
    CAUSAL["order3"],
    layers=tuple(layer(HyenaConfig(replace(IMPLICIT, taps=20_000), order=n)) for n in (2, 3)),
)


@causal
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
