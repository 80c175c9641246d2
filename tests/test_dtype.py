"""bfloat16 products: what changes in a model, and what does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from toy import CAUSAL, ROPE, SWIGLU, VOCAB, layer, model, tokens, weights
from toy import _model as toy_model

import hyena_cpu
from hyena_cpu import InputError, kernels
from hyena_cpu.context import FEW_ROWS
from hyena_cpu.linear import Linear
from hyena_cpu.weights import save_folder

T = 200
causal = pytest.mark.parametrize("name", CAUSAL)
tiles = pytest.mark.skipif(not kernels.multiplies_thirds(), reason="no tiles of bfloat16 here")


@causal
def test_near_float32_and_not_equal(name: str) -> None:
    ids = tokens(T)
    exact = model(CAUSAL[name]).logits(ids)
    rounded = model(CAUSAL[name], dtype="bfloat16").logits(ids)
    difference = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 1e-4 < difference < 0.08


def dense_layers(part: object) -> Iterator[Linear]:
    """Every dense layer of a block, wherever its mixer keeps it."""
    if isinstance(part, Linear):
        yield part
    elif isinstance(part, list | tuple | dict):
        for item in part.values() if isinstance(part, dict) else part:
            yield from dense_layers(item)
    elif type(part).__module__.startswith("hyena_cpu.") and hasattr(part, "__dict__"):
        for item in vars(part).values():
            yield from dense_layers(item)


@causal
def test_every_dense_layer_is_rounded(name: str) -> None:
    exact, rounded = (
        [layer.packed for block in m.blocks for layer in dense_layers(block)]
        for m in (model(CAUSAL[name]), model(CAUSAL[name], dtype="bfloat16"))
    )
    for a, b in zip(exact, rounded, strict=True):  # two inputs take the place of one
        assert b.nbytes == a.nbytes // a.in_features * -(-a.in_features // 2)


@causal
def test_same_bits_for_any_threads_and_batch_mates(name: str) -> None:
    pieces = [tokens(n, seed=n) for n in (T, 37, 1)]
    m = model(CAUSAL[name], dtype="bfloat16")
    alone = [m.hidden(ids) for ids in pieces]
    more = model(CAUSAL[name], dtype="bfloat16", threads=3)
    together = list(more.hidden_each(pieces))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


@causal
def test_steps_follow_the_whole_to_the_rounding_of_products(name: str) -> None:
    """A sum that differs in its last bit may be rounded to another neighbour."""
    m = model(CAUSAL[name], dtype="bfloat16")
    ids = tokens(T)
    whole, state = m.logits(ids), m.new_state()
    steps = np.array([m.step(state, int(token)) for token in ids])
    assert np.abs(steps - whole).max() <= 2e-2 * np.abs(whole).max()


def test_states_do_not_go_over_to_another_dtype(tmp_path: Path) -> None:
    exact, rounded = model(CAUSAL["order2"]), model(CAUSAL["order2"], dtype="bfloat16")
    state = rounded.prefill(tokens(20))
    with pytest.raises(InputError, match="another model"):
        exact.step(state, 1)
    state.save(tmp_path / "a.state")
    with pytest.raises(InputError, match="another model"):
        exact.load_state(tmp_path / "a.state")
    again = rounded.load_state(tmp_path / "a.state")
    np.testing.assert_array_equal(rounded.step(again, 1), rounded.step(state, 1))


def test_what_load_takes(tmp_path: Path) -> None:
    config = CAUSAL["order2"]
    save_folder(tmp_path / "m", config, weights(config).tensors)
    ids = tokens(30) % VOCAB
    default = hyena_cpu.load(tmp_path / "m")
    assert default.numerics["dtype"] == "float32"
    same = hyena_cpu.load(tmp_path / "m", dtype="float32")
    np.testing.assert_array_equal(same.logits(ids), default.logits(ids))
    assert hyena_cpu.load(tmp_path / "m", dtype="bfloat16").numerics["dtype"] == "bfloat16"
    with pytest.raises(InputError, match="dtype 'float16' is not known; known: float32, bfloat16"):
        hyena_cpu.load(tmp_path / "m", dtype="float16")  # type: ignore[arg-type]


@tiles
@pytest.mark.parametrize("name", ["order2", "finite_hybrid"])
def test_long_pieces_have_thirds(name: str) -> None:
    m, ids = model(CAUSAL[name]), tokens(T)
    state = m.new_state()
    few = [m.extend(state, ids[t : t + FEW_ROWS]) for t in range(0, T, FEW_ROWS)]
    pieces, whole = np.concatenate(few), m.logits(ids)
    np.testing.assert_allclose(pieces, whole, rtol=0, atol=2e-5 * np.abs(whole).max())
    layers = [one for block in m.blocks for one in dense_layers(block)]
    assert any(one.weight(long=True) is not one.packed for one in layers)
    assert all(one.weight(long=False) is one.packed for one in layers)


@tiles
def test_no_thirds_where_cutting_changes_no_bits() -> None:
    m = model(toy_model(layer(ROPE, SWIGLU)))
    layers = [one for block in m.blocks for one in dense_layers(block)]
    assert layers
    assert all(one.weight(long=True) is one.packed for one in layers)


@tiles
def test_no_thirds_of_large_models(monkeypatch: pytest.MonkeyPatch) -> None:
    few = model(CAUSAL["order2"])
    monkeypatch.setattr("hyena_cpu.network.MOST_IN_THIRDS", few.num_parameters - 1)
    many = model(CAUSAL["order2"])
    first, second = (m.blocks[0].mixer.in_proj for m in (few, many))
    assert second.weight(long=True) is second.packed
    assert first.nbytes > 2 * second.nbytes
