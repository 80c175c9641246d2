"""The promises every causal model keeps: steps, chunks and wholes agree; nobody else matters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import BIDIRECTIONAL, CAUSAL, LENGTH, VOCAB, model, tokens, weights

import hyena_cpu
from hyena_cpu import InputError, LimitError, ModelError, load
from hyena_cpu.conv_state import ConvState
from hyena_cpu.lag_state import LagState
from hyena_cpu.modal_state import ModalState
from hyena_cpu.model import Model
from hyena_cpu.reference import model as reference
from hyena_cpu.scan_state import ScanState
from hyena_cpu.weights import load_folder, save_folder

causal = pytest.mark.parametrize("name", CAUSAL)
T = 300


def close(got: np.ndarray, want: np.ndarray, bound: float = 1e-4) -> None:
    assert np.abs(got - want).max() <= bound * max(1.0, np.abs(want).max())


def pieces(state: object) -> list[np.ndarray]:
    """Everything a state remembers, as arrays of what later tokens can see."""
    seen: list[np.ndarray] = []
    for layer in state.layers:  # type: ignore[attr-defined]
        if isinstance(layer, ConvState):
            seen += [] if layer.tail is None else [layer.tail.rows]
            seen += [conv.history() for conv in layer.convs]
        elif isinstance(layer, LagState):
            seen.append(layer.rows[-layer.reach :])
        elif isinstance(layer, ModalState):
            seen += [layer.modes, layer.tail] if len(layer.tail) else [layer.modes]
        elif isinstance(layer, ScanState):
            seen.append(layer.now)
        else:
            layer = getattr(layer, "cache", layer)
            first = max(0, layer.length - layer.window) if layer.window else 0
            seen.append(layer.values[:, first : layer.length])
            flat = layer.keys.transpose(0, 1, 3, 2).reshape(*layer.values.shape)
            seen.append(flat[:, first : layer.length])
    return seen


@causal
def test_equals_float64_reference(name: str) -> None:
    config = CAUSAL[name]
    ids = tokens(T)
    close(
        model(config).logits(ids),
        reference.logits(config, weights(config).tensors, ids),
        2e-5,
    )


@causal
def test_steps_equal_the_whole_at_every_position(name: str) -> None:
    m = model(CAUSAL[name])
    ids = tokens(T)
    whole = m.logits(ids)
    state = m.new_state()
    for t, token in enumerate(ids):
        close(m.step(state, int(token)), whole[t])
    assert state.position == T


@causal
def test_five_ways_to_split_a_prompt(name: str) -> None:
    """Case C003: 300 | 1+299 | 150+150 | 7x42+6 | 300x1, then the next 64 steps."""
    m = model(CAUSAL[name])
    ids, after = tokens(T), tokens(64, seed=2)
    ways = [[300], [1, 299], [150, 150], [42] * 7 + [6], [1] * 300]
    states = []
    for way in ways:
        state, at = m.new_state(), 0
        for n in way:
            state = m.prefill(ids[at : at + n], state)
            at += n
        states.append(state)
    first, *others = states
    remembered = pieces(first)
    for state in others:
        assert state.position == first.position == T
        close(state.logits, first.logits)
        for got, want in zip(pieces(state), remembered, strict=True):
            assert got.shape == want.shape
            close(got, want)
    for token in after:
        want = m.step(first, int(token))
        for state in others:
            close(m.step(state, int(token)), want)


@causal
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_any_split_agrees(name: str, data: st.DataObject) -> None:
    m = model(CAUSAL[name])
    ids = tokens(120, seed=data.draw(st.integers(0, 99)))
    cuts = sorted(data.draw(st.sets(st.integers(1, 119), max_size=6)))
    state = m.new_state()
    rows = [m.extend(state, part) for part in np.split(ids, cuts)]
    close(np.concatenate(rows), m.logits(ids))


@causal
def test_bits_do_not_depend_on_threads(name: str) -> None:
    ids = tokens(T)
    runs = []
    for threads in (1, 2, 3, 4):
        m = model(CAUSAL[name], threads=threads)
        state = m.prefill(ids[:200])
        runs.append((m.logits(ids), m.extend(state, ids[200:250]), m.step(state, 3)))
    for run in runs[1:]:
        for got, want in zip(run, runs[0], strict=True):
            assert np.array_equal(got, want)


@causal
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_bits_do_not_depend_on_batch_mates(name: str, data: st.DataObject) -> None:
    m = model(CAUSAL[name], threads=2)
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=2, max_size=5))
    order = data.draw(st.permutations(range(len(lengths))))
    prompts = [tokens(n, seed=n) for n in lengths]
    alone = [m.prefill(p) for p in prompts]
    together = [m.prefill(prompts[i]) for i in order]
    for round_ in range(3):
        rows = m.step(together, [round_ + i for i in order])
        for slot, i in enumerate(order):
            assert np.array_equal(rows[slot], m.step(alone[i], round_ + i))


@causal
def test_nothing_before_a_changed_token_changes(name: str) -> None:
    # A transform's rounding is relative to its largest outputs: weights without outliers are asked
    # for the bound itself (seeds of order3 lie between 0.3 and 1.1 of it).
    m = model(CAUSAL[name], seed=2)
    ids = tokens(T)
    want = m.logits(ids)
    for at in (1, 17, 150, T - 1):
        changed = ids.copy()
        changed[at:] = (changed[at:] + 7) % VOCAB
        got = m.logits(changed)
        assert np.abs(got[:at] - want[:at]).max() <= 1e-5 * np.abs(want).max()
        assert np.abs(got[at] - want[at]).max() > 1e-3  # and the change is seen where it is made


@causal
def test_forks_are_independent(name: str) -> None:
    m = model(CAUSAL[name])
    state = m.prefill(tokens(70))
    twin = state.fork()
    again = state.fork()
    want = m.step(state, 1)
    m.extend(twin, tokens(40, seed=5))
    assert np.array_equal(m.step(again, 1), want)
    assert (twin.position, again.position) == (110, 71)


@causal
def test_memory_of_finite_filters_stays_constant(name: str) -> None:
    m = model(CAUSAL[name])
    limit = sum(block.mixer.state_bytes(LENGTH) for block in m.blocks) + (1 << 16)
    state = m.new_state()
    for _ in range(4):
        m.prefill(tokens(99), state)
    assert state.nbytes <= limit
    if name == "finite_hybrid":  # 96 taps and a window of 64: nothing older is kept
        for _ in range(40):
            m.prefill(tokens(99), state)
        assert state.nbytes <= limit


def test_two_prompts_with_the_same_end_differ() -> None:
    """Case C001: what was said 200 tokens ago still counts."""
    m = model(CAUSAL["order2"])
    end = tokens(8, seed=9)
    a, b = (m.prefill(np.concatenate([tokens(192, seed=s), end])) for s in (1, 2))
    assert np.abs(a.logits - b.logits).max() > 1e-3


def test_greedy_text_is_the_same_with_and_without_state() -> None:
    """Case C016: 40 tokens of prompt, 100 greedy tokens."""
    m = model(CAUSAL["finite_hybrid"])
    ids = tokens(40).tolist()
    state = m.prefill(ids)
    for _ in range(100):
        whole = m.logits(ids)[-1]
        close(state.logits, whole)
        token = int(state.logits.argmax())
        assert token == int(whole.argmax())
        ids.append(token)
        m.step(state, token)


def test_every_refusal_is_one_clear_sentence() -> None:
    m = model(CAUSAL["order2"])
    with pytest.raises(LimitError, match=r"401 tokens but toy takes at most 400"):
        m.prefill(tokens(LENGTH + 1))
    state = m.prefill(tokens(LENGTH))
    with pytest.raises(LimitError, match="401 tokens"):
        m.step(state, 1)
    with pytest.raises(InputError, match="empty"):
        m.logits([])
    with pytest.raises(InputError, match="outside the vocabulary"):
        m.logits([0, VOCAB + 3])
    with pytest.raises(InputError, match="outside the vocabulary"):
        m.logits([-1])
    with pytest.raises(InputError, match="integers"):
        m.logits([0.5])
    with pytest.raises(InputError, match="integers, got bool"):  # a mask, rather than ids
        m.step(state, True)
    with pytest.raises(InputError, match="one-dimensional"):
        m.logits([[1]])
    for taken in (m.logits, m.generate, lambda ids: m.score([ids])):
        with pytest.raises(InputError, match="one list of integers"):
            taken([[1], [1, 2]])
    for call in (m.logits, m.generate, lambda ids: m.score([[1, 2], ids])):
        with pytest.raises(InputError, match="a list of integers; got 5"):
            call(5)
    for call in (m.score, m.embed):
        with pytest.raises(InputError, match="texts or lists of token ids are needed, got 5"):
            call(5)
    with pytest.raises(InputError, match="a model is the path of a folder or a name, got b'tiny"):
        load(b"tiny-en")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a model is the path of a folder or a name, got 5"):
        load(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="another model"):
        model(CAUSAL["order2"], seed=1).step(m.new_state(), 1)
    with pytest.raises(InputError, match="appears twice"):
        m.step([state, state], [1, 2])
    with pytest.raises(InputError, match="layer is 3"):
        m.hidden(tokens(4), layer=3)
    with pytest.raises(InputError, match="compat 'leak'"):
        model(CAUSAL["order2"], compat=["leak"])
    with pytest.raises(TypeError, match="path"):
        m.__reduce__()


@causal
def test_an_interrupted_call_is_never_continued_by_mistake(name: str) -> None:
    m = model(CAUSAL[name])
    ids = tokens(700)
    state = m.prefill(ids[:20])
    before = state.fork()

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    m.on_progress = interrupt
    longest = m.max_length or len(ids)
    with pytest.raises(KeyboardInterrupt):
        m.extend(state, ids[20:longest])
    m.on_progress = None
    for goes_on in (state, state.fork()):
        with pytest.raises(InputError, match="interrupted call"):
            m.step(goes_on, 1)
    close(m.extend(before, ids[20:100]), m.logits(ids[:100])[20:])


def test_calls_without_sense_are_refused() -> None:
    m = model(CAUSAL["order2"])
    with pytest.raises(InputError, match="got text"):
        m.hidden("ACGT")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one list of integers"):
        m.logits([[1, 2], [3]])
    with pytest.raises(InputError, match="a State is needed"):
        m.extend(None, [1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="max_new_tokens is -5"):
        m.prefill([1], max_new_tokens=-5)
    with pytest.raises(InputError, match="n is -1"):
        m.new_state().reserve(-1)
    with pytest.raises(InputError, match="plan: length is 0"):
        hyena_cpu.plan(m, 0)
    with pytest.raises(InputError, match="plan: logits_rows is -1"):
        hyena_cpu.plan(m, 8, logits_rows=-1)
    few = np.uint8(200)  # a product of which would wrap around
    assert hyena_cpu.plan(m, 300, hidden_rows=few) == hyena_cpu.plan(m, 300, hidden_rows=200)
    assert m.embed([]).shape == (0, m.config.d_model)  # type: ignore[union-attr]
    assert model(CAUSAL["order2"], compat="wrap_filter").compat == {"wrap_filter"}


def test_ids_of_any_layout_are_read_as_written() -> None:
    """Case C081: strides, reversal and integer kinds make no difference."""
    m = model(CAUSAL["order2"])
    table = np.arange(60, dtype=np.int64).reshape(15, 4) % VOCAB
    for view in (table[:, 3], table[::2, 1], table[::-1, 0]):
        want = m.logits(view.copy())
        assert np.array_equal(m.logits(view), want)
        assert np.array_equal(m.logits(view.astype(np.uint8)), want)
        assert np.array_equal(m.logits(view.tolist()), want)


def test_whole_sequence_models_say_so() -> None:
    m = model(BIDIRECTIONAL)
    ids = tokens(61)
    close(m.logits(ids), reference.logits(BIDIRECTIONAL, weights(BIDIRECTIONAL).tensors, ids), 2e-5)
    with pytest.raises(ModelError, match="whole sequence"):
        m.prefill(ids)


@causal
def test_a_saved_model_is_the_same_model(name: str, tmp_path: Path) -> None:
    """Every architecture goes to a native folder and back."""
    made = weights(CAUSAL[name])
    save_folder(tmp_path / "model", made.config, made.tensors)
    again = load_folder(tmp_path / "model")
    ids = tokens(50)
    assert again.config == made.config
    assert np.array_equal(
        Model(again, None, threads=1).logits(ids), model(CAUSAL[name]).logits(ids)
    )


def test_one_array_of_ids_is_one_sequence() -> None:
    m = model(CAUSAL["order2"])
    ids = tokens(40)
    np.testing.assert_array_equal(m.embed(ids), m.embed([ids]))
    assert m.score(ids) == m.score([ids])
    with pytest.raises(InputError, match="token ids must be integers, got float64"):
        m.embed(ids.astype(np.float64))
