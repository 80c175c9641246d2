"""States as values: taken back, saved, loaded in another process, closed. Case C027."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from test_contracts import close, pieces
from toy import CAUSAL, LENGTH, WIDTH, model, tokens, weights

from hyena_cpu import InputError, LimitError, ModelError
from hyena_cpu.config import ClassifierConfig
from hyena_cpu.model import Model
from hyena_cpu.state import State
from hyena_cpu.step_plan import SURE_REWIND

causal = pytest.mark.parametrize("name", CAUSAL)

# How a saved sequence came to be, as lengths of calls: whole prompts, steps, steps after a rewind.
HISTORIES = {
    "prompt": [150],
    "steps": [100, *[1] * 40],
    "chunks": [1, 70, 20, 9],
    "steps only": [1] * 30,
}


def taken_in(m: Model, calls: list[int], seed: int = 1) -> State:
    ids = tokens(sum(calls), seed)
    state = m.new_state()
    for part in np.split(ids, np.cumsum(calls)[:-1]):
        m.extend(state, part)
    return state


def steps(m: Model, state: State, n: int = 64) -> np.ndarray:
    """Logits of the next n steps [n, V]."""
    return np.stack([m.step(state, int(t)) for t in tokens(n, seed=99)])


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


@causal
@pytest.mark.parametrize("history", HISTORIES)
def test_a_loaded_state_goes_on_with_the_same_bits(name: str, history: str, tmp_path: Path) -> None:
    m = model(CAUSAL[name])
    state = taken_in(m, HISTORIES[history])
    state.save(tmp_path / "s")
    again = m.load_state(tmp_path / "s")
    assert again.position == state.position
    same_bits(again.logits, state.logits)
    twin = state.fork()
    same_bits(steps(m, again), steps(m, state))
    ids = tokens(180, seed=3)  # and by a chunk that goes through transforms
    last = m.load_state(tmp_path / "s")
    same_bits(m.extend(last, ids), m.extend(twin, ids))
    again.save(tmp_path / "s")  # what was loaded can be saved, over the file it came from
    assert m.load_state(tmp_path / "s").position == state.position


def test_a_new_process_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Case C027: prefill, save, 64 steps; load elsewhere, 64 steps."""
    wanted = {}
    for name, config in CAUSAL.items():
        m = model(config)
        state = m.prefill(tokens(100), max_new_tokens=100)
        steps(m, state, 20)
        state.save(tmp_path / f"{name}.state")
        wanted[name] = steps(m, state)
    code = (
        "import sys, numpy as np; from test_state import steps, CAUSAL, model\n"
        "for name, config in CAUSAL.items():\n"
        "    m = model(config, threads=2)\n"
        "    state = m.load_state(f'{sys.argv[1]}/{name}.state')\n"
        "    np.save(f'{sys.argv[1]}/{name}.npy', steps(m, state))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        check=True,
        cwd=Path(__file__).parent,
        env={"PYTHONPATH": str(PACKAGE_HOME), "PATH": ""},
        timeout=120,
    )
    for name, want in wanted.items():
        same_bits(np.load(tmp_path / f"{name}.npy"), want)


@causal
def test_a_rewound_state_goes_on_with_the_bits_of_one_that_never_went_there(name: str) -> None:
    m = model(CAUSAL[name])
    straight = m.prefill(tokens(100))
    states = {0: straight.fork()}
    more = tokens(SURE_REWIND, seed=7)
    for n, token in enumerate(more, 1):
        m.step(straight, int(token))
        states[n] = straight.fork()
    for n in (SURE_REWIND, SURE_REWIND - 1, 100, 17, 16, 3, 2, 1):
        state = straight.fork()
        state.rewind(100 + n)
        assert state.position == 100 + n
        assert (state.logits is None) == (n < SURE_REWIND)
        same_bits(steps(m, state), steps(m, states[n]))


@causal
def test_a_draft_is_taken_back(name: str) -> None:
    """Up to 64 tokens in one call, some of which stay."""
    m = model(CAUSAL[name])
    state = m.prefill(tokens(80))
    plain = state.fork()
    ids = tokens(48, seed=4)
    for round_ in range(4):
        draft = tokens(12, seed=round_)
        kept = 3 * round_
        draft[:kept] = ids[:kept]
        m.extend(state, draft)
        state.rewind(80 + kept)
        assert state.position == 80 + kept
        state.rewind(80)
    same_bits(m.extend(state, ids), m.extend(plain, ids))
    same_bits(state.logits, plain.logits)


@causal
@pytest.mark.parametrize("back", [1, 2, 5, 60, SURE_REWIND])
def test_a_rewind_into_a_prompt_agrees_to_rounding(name: str, back: int, tmp_path: Path) -> None:
    m = model(CAUSAL[name])
    ids = tokens(250)
    state = m.prefill(ids)
    state.rewind(250 - back)
    fresh = m.prefill(ids[: 250 - back])
    state.save(tmp_path / "s")  # without logits, and without a tail
    again = m.load_state(tmp_path / "s")
    assert again.logits is state.logits is None
    want = steps(m, fresh)
    got = steps(m, state)
    close(got, want)
    same_bits(steps(m, again), got)
    for mine, its in zip(pieces(state), pieces(fresh), strict=True):
        close(mine, its)


@causal
def test_a_rewind_into_a_prompt_that_followed_another(name: str) -> None:
    m = model(CAUSAL[name])
    ids = tokens(300)
    state = m.prefill(ids[20:], m.prefill(ids[:20]))
    state.rewind(state.oldest)
    fresh = m.prefill(ids[: state.position]) if state.position else m.new_state()
    close(steps(m, state, 8), steps(m, fresh, 8))


@causal
def test_a_rewind_to_the_beginning_makes_a_new_state(name: str) -> None:
    m = model(CAUSAL[name])
    for calls in ([SURE_REWIND], [1] * 60, [50, *[1] * 9]):
        state = taken_in(m, calls)
        assert state.oldest == 0
        state.rewind(0)
        assert state.position == 0
        assert state.logits is None
        same_bits(steps(m, state), steps(m, m.new_state()))


@causal
def test_how_far_back_a_state_can_go(name: str) -> None:
    m = model(CAUSAL[name])
    state = taken_in(m, [300])
    assert 0 <= state.oldest <= 300 - SURE_REWIND
    state.rewind(state.oldest)
    with pytest.raises(LimitError, match=f"this state is at {state.position} and can go back to"):
        state.rewind(state.position + 1)
    if state.oldest > 0:
        with pytest.raises(LimitError, match=f"to position 0: .* go back to {state.oldest}; keep"):
            state.rewind(0)
    steps(m, state, 30)
    assert state.oldest <= state.position - 30
    with pytest.raises(LimitError, match="position -1"):
        state.rewind(-1)


def test_a_window_that_has_moved_on_can_be_rewound() -> None:
    """1,000 tokens through a window of 64: old keys have been dropped many times."""
    m = model(CAUSAL["finite_hybrid"])
    state = m.new_state()
    ids = tokens(1000)
    marks = {}
    for t in range(0, 1000, 20):
        marks[t] = state.fork()
        m.extend(state, ids[t : t + 20])
        assert all(one.oldest <= max(0, t + 20 - SURE_REWIND) for one in state.layers)
    assert state.oldest > 0
    for t in (880, 900, 980):
        back = state.fork()
        back.rewind(t)
        same_bits(steps(m, back), steps(m, marks[t]))
    with pytest.raises(LimitError, match="cannot rewind to position 500"):
        state.rewind(500)


@causal
def test_a_rewind_forgets_what_was_looked_up_ahead(name: str) -> None:
    """`token_logprobs_after` keeps sums for a position; other tokens may come to stand there."""
    m = model(CAUSAL[name])
    state = m.prefill(tokens(90))
    m.token_logprobs_after(state, tokens(30, seed=5))
    state.rewind(80)
    m.extend(state, tokens(10, seed=6))
    whole = np.concatenate([tokens(90)[:80], tokens(10, seed=6)])
    got = m.token_logprobs_after(state, tokens(30, seed=5))
    close(got, m.token_logprobs_after(m.prefill(whole), tokens(30, seed=5)))


@causal
def test_what_a_state_and_its_file_take_is_declared(name: str, tmp_path: Path) -> None:
    m = model(CAUSAL[name])
    for calls in HISTORIES.values():
        state = taken_in(m, calls)
        declared = sum(block.mixer.state_bytes(state.position) for block in m.blocks)
        assert state.nbytes <= declared + state.logits.nbytes
        state.save(tmp_path / "s")
        assert (tmp_path / "s").stat().st_size <= state.nbytes + (8 << 10)


def test_copies_of_a_channel_hold_what_they_were_given_once(tmp_path: Path) -> None:
    m = model(CAUSAL["long_conv"])
    state = m.prefill(tokens(90))
    for token in tokens(20, seed=1):
        m.step(state, token)
    m.extend(state, tokens(100, seed=2))
    state.rewind(195)
    state.save(tmp_path / "s")
    for one in (state, state.fork(), m.load_state(tmp_path / "s")):
        for layer in one.layers:
            first, *others = layer.convs
            assert sum(chunk.shape[1] for chunk in first.chunks) == 195
            assert all(
                a is b for conv in others for a, b in zip(first.chunks, conv.chunks, strict=True)
            )
            assert layer.nbytes == sum(chunk.nbytes for chunk in first.chunks)


def test_a_state_is_a_context() -> None:
    m = model(CAUSAL["finite_hybrid"])
    with m.prefill(tokens(50)) as state:
        kept = state.fork()
        assert state.nbytes > 10_000
    assert state.nbytes == 0
    for use in (lambda: m.step(state, 1), lambda: state.save("x"), lambda: state.rewind(1)):
        with pytest.raises(InputError, match="this state has been closed"):
            use()
    with pytest.raises(InputError, match="closed"):
        m.step(state.fork(), 1)
    m.step(kept, 1)


def test_torn_states_are_neither_saved_nor_rewound(tmp_path: Path) -> None:
    m = model(CAUSAL["order2"])
    state = m.prefill(tokens(50))
    state.torn = True
    for use in (lambda: state.save(tmp_path / "s"), lambda: state.rewind(9)):
        with pytest.raises(InputError, match="interrupted call"):
            use()
    assert not list(tmp_path.iterdir())


def test_states_of_others_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"
    taken_in(model(CAUSAL["order2"], seed=1), [50]).save(path)
    with pytest.raises(InputError, match=r"s: a state of another model: .* toy-1, .* toy-0"):
        model(CAUSAL["order2"]).load_state(path)
    taken_in(model(CAUSAL["order2"]), [LENGTH]).save(path)
    with pytest.raises(LimitError, match="max-memory"):
        model(CAUSAL["order2"], max_memory=1 << 16).load_state(path)
    # Equal fingerprints of unequal models: what does not fit is named.
    with pytest.raises(InputError, match=r"s: state\.layers is a list of 2, must be a list of 1"):
        model(CAUSAL["order1"]).load_state(path)
    taken_in(model(CAUSAL["order3"]), [50]).save(path)
    with pytest.raises(
        InputError,
        match=r"\[0\]\.tail\.rows is float32 of shape \[2, 80\], must be float32 \[2, 40\]",
    ):
        model(CAUSAL["order1"]).load_state(path)
    with pytest.raises(InputError, match=r"state\.layers\[0\] has a tail"):
        model(CAUSAL["long_conv"]).load_state(path)


def test_numbers_that_are_not_whole_change_nothing() -> None:
    m = model(CAUSAL["order3"])
    state = m.prefill(tokens(100))
    for call in (
        lambda: state.rewind(90.0),  # type: ignore[arg-type]
        lambda: state.reserve(64.5),  # type: ignore[arg-type]
        lambda: state.reserve(True),
        lambda: m.prefill(tokens(5), state, max_new_tokens=float("nan")),  # type: ignore[arg-type]
        lambda: m.hidden(tokens(5), -0.5),  # type: ignore[arg-type]
        lambda: m.step(None, 1),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError, match=r"must be a whole number|a State is needed"):
            call()
    with pytest.raises(InputError, match="max_new_tokens is 10000000000000000, must be at most"):
        m.prefill(tokens(5), state, max_new_tokens=10**16)
    assert (state.position, state.torn) == (100, False)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    m = model(CAUSAL["order3"])
    state, plain = m.prefill(tokens(100)), m.prefill(tokens(100))
    state.rewind(np.int64(90))  # type: ignore[arg-type]
    plain.rewind(90)
    for history in ("keep", "drop"):
        for one, n in ((state, np.uint8(64)), (plain, 64)):
            m.prefill(tokens(5), one, max_new_tokens=n, history=history)  # type: ignore[arg-type]
            one.reserve(n)  # type: ignore[arg-type]
    assert state.nbytes == plain.nbytes
    state.save(tmp_path / "s")
    same_bits(steps(m, m.load_state(tmp_path / "s"), 9), steps(m, plain, 9))


def test_told_tokens_are_the_states_own() -> None:
    m = model(CAUSAL["order2"])
    state, ids = m.prefill([1, 2, 3]), np.array([1, 2, 3], np.int32)
    state.tell(ids)
    ids[:] = 9
    twin = state.fork()
    twin.tokens[0] = 7  # type: ignore[index]
    assert state.tokens is not None
    assert state.tokens.tolist() == [1, 2, 3]
    for wrong, why in (
        (np.zeros((3, 2)), r"must be one-dimensional, a list of integers; got shape \[3, 2\]"),
        ([[1, 2, 3]], r"must be one-dimensional, a list of integers; got shape \[1, 3\]"),
        ([1.9, 2, 3], "must be integers, got float64"),
        ([1 << 31, 2, 3], "token id 2147483648 is outside"),
        ([-1, 2, 3], "token id -1 is outside"),
        ([1, 2], "tell: 2 tokens for a state at 3"),
        (np.ma.masked_equal([1, 2, 3], 2), "token ids: some values are masked"),
    ):
        with pytest.raises(InputError, match=why):
            state.tell(wrong)  # type: ignore[arg-type]
    m.new_state().tell([])  # type: ignore[arg-type]


def test_a_model_without_a_head_takes_nothing_in() -> None:
    given = weights(replace(CAUSAL["order2"], classifier=ClassifierConfig(3, "last", bias=False)))
    given.tensors["classifier.weight"] = np.zeros((3, WIDTH), np.float32)
    m = Model(given, None, threads=1)
    state = m.new_state()
    for call in (lambda: m.prefill([1, 2], state), lambda: m.extend(state, [1, 2])):
        with pytest.raises(ModelError, match="no language-model head"):
            call()
    assert (state.position, state.torn) == (0, False)
