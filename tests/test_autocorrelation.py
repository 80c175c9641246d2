"""Convolutions at lags that the input chooses, and the products they are chosen by."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import EPS, misaligned, over_threads, strided_rows
from test_contracts import close
from toy import _model, layer, model, tokens, weights

from hyena_cpu.config_json import parse, to_json
from hyena_cpu.config_selection import AutocorrelationConfig
from hyena_cpu.errors import InputError, ModelError
from hyena_cpu.mixers.autocorrelation import follow, whole_lags
from hyena_cpu.reference import model as reference
from hyena_cpu.reference import selection

GOLDEN = Path(__file__).parent / "golden" / "zoology" / "autocorrelation_shift.npz"
WHOLE = AutocorrelationConfig(top_k=3, lags="whole")
RUNNING = AutocorrelationConfig(top_k=2, lags="running", max_lag=5)
REPEATS = AutocorrelationConfig(top_k=2, lags="repeats", max_lag=6)


def operator(config: AutocorrelationConfig, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return selection.autocorrelation(config, x.astype(np.float64), ids)


@pytest.mark.parametrize("number", range(4))
def test_the_notebook(number: int) -> None:
    """Case autocorrelation_shift: lags, outputs, and predictions where the output is not zero."""
    with np.load(GOLDEN) as data:
        ids, emb, lags, y, preds = (
            data[f"{name}_{number}"] for name in ("ids", "emb", "lags", "y", "preds")
        )
    x = emb[ids]
    found = whole_lags(x, 2)
    assert found.tolist() == lags[0].tolist()
    every = np.tile(found, (len(x), 1))
    got = follow(x, 0, every, np.ones(every.shape, np.bool_))
    want = operator(AutocorrelationConfig(top_k=2, lags="whole"), x, ids)
    for mine in (got, want):
        assert np.abs(mine - y.T).max() <= 2e-5 * max(1.0, np.abs(y).max())
    known = np.arange(len(x)) >= min(lags[0]) - 1
    assert not got[~known].any()
    assert ((got @ emb.T).argmax(axis=1) == preds)[known].all()


def test_worked_numbers() -> None:
    """Three tokens that return: lag 3 is best, and the value is the token after the match."""
    x = np.array([[4, 0], [0, 3], [1, 1]] * 3, np.float32)
    ids = np.array([0, 1, 2] * 3, np.int32)
    assert whole_lags(x, 2).tolist() == [3, 6]
    single = AutocorrelationConfig(top_k=1, lags="running", max_lag=5)
    y = operator(single, x, ids)
    np.testing.assert_allclose(y[3:], x[[1, 2, 3, 4, 5, 6]])  # what follows t - 3
    y = operator(REPEATS, x, ids)
    assert not y[:3].any()
    np.testing.assert_allclose(y[3:], np.roll(x, -1, axis=0)[:6])
    # No lag fits the first row: of equal sums the shortest one, whose rows are zero.
    assert selection.lags_of(RUNNING, x.astype(float), ids, 0) == [1, 2]
    np.testing.assert_allclose(operator(RUNNING, x, ids)[0], x[0] / 2)


@pytest.mark.parametrize("config", [WHOLE, RUNNING, REPEATS])
def test_layers_equal_the_statement(config: AutocorrelationConfig) -> None:
    made = _model(layer(config), layer(config, None))
    for n in (1, 2, 3, 40, 200):
        want = reference.logits(made, weights(made).tensors, tokens(n))
        close(model(made).logits(tokens(n)), want, 2e-5)


def test_choices_over_the_whole_sequence() -> None:
    m = model(_model(layer(WHOLE)))
    ids = tokens(120)
    assert np.array_equal(model(m.config, threads=3).hidden(ids), m.hidden(ids))
    for got, n in zip(m.hidden_each([tokens(n) for n in (1, 60, 9)]), (1, 60, 9), strict=True):
        assert np.array_equal(got, m.hidden(tokens(n)))
    with pytest.raises(ModelError, match="reads the whole sequence at once"):
        m.prefill(ids)


@pytest.mark.parametrize("config", [RUNNING, REPEATS])
def test_steps_have_the_bits_of_the_whole(config: AutocorrelationConfig) -> None:
    """Sums are one chain of additions: a choice cannot turn by how the rows are cut."""
    m = model(_model(layer(config, None)))
    ids = tokens(300)
    whole = m.logits(ids)
    for cuts in ([1] * 300, [7, 100, 1, 192], [150, 150]):
        state = m.new_state()
        parts = [m.extend(state, part) for part in np.split(ids, np.cumsum(cuts)[:-1])]
        assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("config", [RUNNING, REPEATS])
def test_memory_does_not_grow(config: AutocorrelationConfig) -> None:
    m = model(_model(layer(config)))
    state = m.new_state()
    for _ in range(20):
        m.prefill(tokens(99), state)
        assert state.layers[0].nbytes <= m.blocks[0].mixer.state_bytes(state.position)
    assert m.blocks[0].mixer.state_bytes(1 << 20) == m.blocks[0].mixer.state_bytes(1)


def test_states_that_do_not_fit(tmp_path: Path) -> None:
    m = model(_model(layer(RUNNING)))
    state = m.prefill(tokens(9))
    state.layers[0].rows = state.layers[0].rows[:3]
    state.layers[0].notes = state.layers[0].notes[:3]
    state.save(tmp_path / "s")
    with pytest.raises(InputError, match="has 3 rows at position 9"):
        m.load_state(tmp_path / "s")
    model(_model(layer(REPEATS))).prefill(tokens(9)).save(tmp_path / "s")
    with pytest.raises(InputError, match=r"notes is int32 of shape \[9\], must be int32 \[72\]"):
        m.load_state(tmp_path / "s")


def test_rules_of_the_config() -> None:
    def refused(match: str, **options: Any) -> None:
        with pytest.raises(ModelError, match=match):
            parse(to_json(_model(layer(AutocorrelationConfig(**options)))))

    refused("top_k is 0", top_k=0, lags="whole")
    refused("max_lag is for running and repeats", top_k=1, lags="whole", max_lag=9)
    refused("max_lag is None, must be above top_k 1", top_k=1, lags="running")
    refused("max_lag is 4, must be above top_k 4", top_k=4, lags="repeats", max_lag=4)
    refused("at most 65536", top_k=4, lags="repeats", max_lag=1 << 17)


# ---- the products


@pytest.mark.parametrize("width", [*range(1, 20), 31, 32, 33, 64, 100])
def test_every_width(kernels: ModuleType, rng: np.random.Generator, width: int) -> None:
    x = rng.standard_normal((40, width), np.float32)
    longest = (x * x).sum(axis=1).max()
    for first, reach in ((0, 40), (13, 9), (39, 1), (40, 3), (5, 0)):
        want = selection.lag_products(x, first, reach)
        got = kernels.lag_products(x, first, reach)
        assert got.shape == want.shape
        assert np.abs(got - want).max(initial=0) <= 2 * EPS * longest
    for view in (strided_rows(x), misaligned(x)):
        np.testing.assert_array_equal(
            kernels.lag_products(view, 3, 11), kernels.lag_products(x, 3, 11)
        )


@over_threads
def test_bits_of_the_products(kernels: ModuleType, rng: np.random.Generator, threads: int) -> None:
    x = rng.standard_normal((700, 37), np.float32)
    whole = kernels.lag_products(x, 0, 50)
    np.testing.assert_array_equal(kernels.lag_products(x, 0, 50, threads=threads), whole)
    one = kernels.lag_products(x[100:], 60, 50, threads=threads)[0]
    np.testing.assert_array_equal(one, whole[160])
    few = kernels.lag_products(x, 300, 21, threads=threads)
    np.testing.assert_array_equal(few, whole[300:, :21])


def test_errors_of_the_products(kernels: ModuleType) -> None:
    x = np.ones((3, 8), np.float32)
    with pytest.raises(ValueError, match=r"lag_products: first is 4 but needs to be in 0 \.\. 3"):
        kernels.lag_products(x, 4, 2)
    with pytest.raises(ValueError, match="reach is -1"):
        kernels.lag_products(x, 0, -1)
    with pytest.raises(ValueError, match="rows has shape"):
        kernels.lag_products(x[0], 0, 1)
