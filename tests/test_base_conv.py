"""Zoology's BaseConv: worked numbers, the wrap of the originals, filters shorter than the input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy import CAUSAL, EXPLICIT, RELU, layer, model, tokens, weights

from hyena_cpu.config import BaseConvConfig, FilterConfig, ModelConfig
from hyena_cpu.context import context
from hyena_cpu.errors import ModelError
from hyena_cpu.mixers import build_mixer
from hyena_cpu.online_taps import Convolutions
from hyena_cpu.reference import model as reference


class NoNorm:
    """In place of a Norm: an operator by itself has none before it."""

    def __call__(self, x: np.ndarray, threads: int) -> np.ndarray:  # noqa: ARG002
        return x.copy()


def only(mixer: BaseConvConfig) -> ModelConfig:
    return replace(CAUSAL["base_conv"], layers=(layer(mixer, None),))


def run(
    config: BaseConvConfig, tensors: dict[str, np.ndarray], u: np.ndarray, *compat: str
) -> np.ndarray:
    """The operator's output on u [T, D]."""
    mixer = build_mixer(config, tensors, u.shape[1], Convolutions(1 << 20))
    y = u.copy()
    ctx = context([np.zeros(len(u), np.int32)], [0], 1, frozenset(compat))
    mixer.extend(None, y, NoNorm(), ctx)
    return y - u


U = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
TAPS = np.array([[1, 0], [0, 1], [2, 1], [10, 20], [30, 40]], np.float32)


def explicit() -> tuple[BaseConvConfig, dict[str, np.ndarray]]:
    """With W = 0 and b = 1 the output is conv(u) + u, which is the convolution and 2 u."""
    tensors = {
        "projection.weight": np.zeros((2, 2), np.float32),
        "projection.bias": np.ones(2, np.float32),
        "filter.taps": np.ascontiguousarray(TAPS.T),
    }
    return BaseConvConfig(FilterConfig("explicit", 5)), tensors


def test_explicit_filter_worked_example() -> None:
    config, tensors = explicit()
    causal = [[1, 0], [3, 2], [7, 6]]
    exact = reference.base_conv(config, {k: v.astype(float) for k, v in tensors.items()}, U)
    np.testing.assert_allclose(exact - 2 * U, causal, atol=1e-12)
    np.testing.assert_allclose(run(config, tensors, U) - 2 * U, causal, atol=1e-5)


def test_the_wrap_of_the_original_worked_example() -> None:
    config, tensors = explicit()
    wrapped = [[151, 240], [3, 2], [7, 6]]
    np.testing.assert_allclose(run(config, tensors, U, "wrap_filter") - 2 * U, wrapped, atol=1e-4)
    long = np.concatenate([U, U])  # no shorter than the filter: nothing wraps
    np.testing.assert_allclose(
        run(config, tensors, long, "wrap_filter"), run(config, tensors, long), atol=1e-4
    )


@pytest.mark.parametrize("activation", [False, True])
def test_short_convolution_worked_example(activation: bool) -> None:
    tensors = {
        "projection.weight": np.array([[0, 1], [1, 0]], np.float32),
        "projection.bias": np.array([0.5, -0.5], np.float32),
        "short_conv.weight": np.array([[1, 2], [0, -1]], np.float32),
        "short_conv.bias": np.array([0, 1], np.float32),
    }
    conv = np.array([[2, -1], [7, -3], [13, -5]])
    projected = np.array([[2.5, 0.5], [4.5, 2.5], [6.5, 4.5]])
    if activation:
        conv, projected = (a / (1 + np.exp(-a)) for a in (conv, projected))
    config = BaseConvConfig(short_taps=2, activation=activation)
    want = conv * projected + U
    exact = reference.base_conv(config, {k: v.astype(float) for k, v in tensors.items()}, U)
    np.testing.assert_allclose(exact, want, atol=1e-12)
    np.testing.assert_allclose(run(config, tensors, U), want, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("filter", [RELU, EXPLICIT])
def test_beyond_the_filter(filter: FilterConfig) -> None:
    """Sequences may be longer than l_max: there the filter is zero."""
    config, ids = only(BaseConvConfig(filter)), tokens(3 * filter.taps)
    want = reference.logits(config, weights(config).tensors, ids)
    m = model(config)
    assert np.abs(m.logits(ids) - want).max() <= 2e-5 * max(1.0, np.abs(want).max())
    state = m.prefill(ids[:-20])
    rows = m.extend(state, ids[-20:])
    assert np.abs(rows - want[-20:]).max() <= 1e-4 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_short_convolutions_have_the_same_bits_under_any_split(size: int) -> None:
    config, ids = only(BaseConvConfig(short_taps=size)), tokens(40)
    m = model(config)
    whole, state = m.logits(ids), m.new_state()
    rows = [m.extend(state, ids[a:b]) for a, b in ((0, 1), (1, 3), (3, 30), (30, 31), (31, 40))]
    assert np.array_equal(np.concatenate(rows), whole)
    state.rewind(2)
    assert np.array_equal(m.extend(state, ids[2:]), whole[2:])
    state.rewind(0)
    assert np.array_equal(m.extend(state, ids), whole)


def test_a_wrapped_filter_keeps_no_state() -> None:
    with pytest.raises(ModelError, match="wrap_filter"):
        model(only(BaseConvConfig(EXPLICIT)), compat="wrap_filter").prefill(tokens(9))


@pytest.mark.parametrize("mixer", [BaseConvConfig(RELU), BaseConvConfig(short_taps=3)])
def test_what_does_not_wrap_is_as_it_was(mixer: BaseConvConfig) -> None:
    plain, ids = model(only(mixer)), tokens(50)
    asked = model(only(mixer), compat="wrap_filter")
    assert np.array_equal(plain.logits(ids), asked.logits(ids))
    assert np.array_equal(plain.prefill(ids).logits, asked.prefill(ids).logits)
