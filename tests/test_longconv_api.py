"""The public LongConv operator."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from conftest import EPS, misaligned, rel_l2

from hyena_cpu.errors import InputError
from hyena_cpu.longconv import LongConv


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def direct(x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """x [..., C, T], taps [C, K] by numpy's own direct sums in float64."""
    flat = x.reshape(-1, *x.shape[-2:]).astype(np.float64)
    y = [
        [np.convolve(row, taps[c].astype(np.float64))[: x.shape[-1]] for c, row in enumerate(one)]
        for one in flat
    ]
    return np.array(y).reshape(x.shape)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda conv: pickle.loads(pickle.dumps(conv))])
def test_a_copy_computes_the_same(copied: Any) -> None:
    rng = np.random.default_rng(5)
    x = normal(rng, 3, 400)
    for skip in (None, normal(rng, 3)):
        conv = LongConv(normal(rng, 3, 300), skip, threads=1)
        y = conv(x)
        twin = copied(conv)
        assert twin.threads == 1
        np.testing.assert_array_equal(twin(x), y)


def test_worked_example() -> None:
    conv = LongConv(np.array([[1, 0.5, 0.25, 0.125]], np.float32))
    y = conv(np.array([[1, 0, 2, 1]], np.float32))
    np.testing.assert_allclose(y, [[1, 0.5, 2.25, 2.125]], atol=1e-6)


@pytest.mark.parametrize("K", [1, 5, 300, 3000])
@pytest.mark.parametrize("T", [1, 2, 15, 16, 200, 1000, 2049])
def test_inputs_may_be_shorter_or_longer_than_the_filter(
    rng: np.random.Generator, T: int, K: int
) -> None:
    taps = normal(rng, 19, K) * np.exp(-4 * np.arange(K, dtype=np.float32) / K)
    x = normal(rng, 19, T)
    y = LongConv(taps)(x)
    assert y.dtype == np.float32
    assert rel_l2(y, direct(x, taps)) <= 0.6 * EPS * np.sqrt(np.log2(2 * max(T, 32)))


@pytest.mark.parametrize("T", [8150, 8193, 10_000])
def test_long_inputs_of_many_channels(rng: np.random.Generator, T: int) -> None:
    taps, skip = (
        normal(rng, 11, T) * np.exp(-4 * np.arange(T, dtype=np.float32) / T),
        normal(rng, 11),
    )
    x, pre, post = (normal(rng, 11, T) for _ in range(3))
    conv, alone = LongConv(taps, skip, threads=2), LongConv(taps[3:4], skip[3:4])
    got, w = conv(x, pre_gate=pre, post_gate=post), pre * x
    want = post * (direct(w, taps) + skip[:, None] * w)
    assert rel_l2(got, want) <= 0.6 * EPS * np.sqrt(np.log2(2 * T))
    one = alone(x[3:4], pre_gate=pre[3:4], post_gate=post[3:4])
    assert rel_l2(got[3:4], one) <= EPS * np.sqrt(np.log2(2 * T))


def test_gates_skip_and_leading_dimensions(rng: np.random.Generator) -> None:
    for T in (9, 700):
        taps, skip = normal(rng, 20, 40), normal(rng, 20)
        x, pre, post = (normal(rng, 2, 3, 20, T) for _ in range(3))
        conv = LongConv(taps, skip, threads=2)
        w = pre * x
        want = post * (direct(w, taps) + skip[:, None] * w)
        assert rel_l2(conv(x, pre_gate=pre, post_gate=post), want) <= 5e-7
        assert rel_l2(conv(x), direct(x, taps) + skip[:, None] * x) <= 5e-7
        np.testing.assert_array_equal(conv(x)[1, 2], LongConv(taps, skip)(x[1, 2]))


def test_any_memory_layout_gives_the_same_bits(rng: np.random.Generator) -> None:
    conv = LongConv(normal(rng, 18, 500))
    x = normal(rng, 18, 900)
    y = conv(x)
    wide = np.zeros((18, 1000), np.float32)
    wide[:, 50:950] = x
    for view in (misaligned(x), np.asfortranarray(x), wide[:, 50:950], x[::-1][::-1]):
        np.testing.assert_array_equal(conv(view), y)
    np.testing.assert_array_equal(conv(x[:, ::-1]), conv(x[:, ::-1].copy()))
    np.testing.assert_array_equal(
        conv(np.broadcast_to(x[:1], x.shape)), conv(np.repeat(x[:1], 18, axis=0))
    )


def test_taps_are_copied(rng: np.random.Generator) -> None:
    taps, x = normal(rng, 3, 20), normal(rng, 3, 50)
    conv = LongConv(taps)
    before = conv(x)
    taps[...] = 0
    np.testing.assert_array_equal(conv(x), before)


def test_many_threads_and_lengths_share_one_operator(rng: np.random.Generator) -> None:
    taps = normal(rng, 16, 2000)
    inputs = [normal(rng, 16, 500 + 700 * (i % 6)) for i in range(36)]
    with LongConv(taps) as conv:
        want = [LongConv(taps)(x) for x in inputs]
        with ThreadPoolExecutor(6) as pool:
            got = list(pool.map(conv, inputs))
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(conv(inputs[0]), want[0])  # usable after the with block


def test_empty_inputs_give_empty_outputs(rng: np.random.Generator) -> None:
    conv = LongConv(normal(rng, 4, 10))
    assert conv(np.zeros((4, 0), np.float32)).shape == (4, 0)
    assert conv(np.zeros((0, 4, 7), np.float32)).shape == (0, 4, 7)


def test_bad_arguments_are_named() -> None:
    taps, x = np.ones((4, 10), np.float32), np.ones((4, 20), np.float32)
    conv = LongConv(taps)
    with pytest.raises(InputError, match="longconv: x has 3 channels but the filter has 4"):
        conv(x[:3])
    with pytest.raises(InputError, match=r"longconv: x has shape \[20\] but needs \[..., 4, T\]"):
        conv(x[0])
    for dtype in (np.float64, np.float16, np.int64, np.complex64):
        with pytest.raises(InputError, match=f"x has dtype {np.dtype(dtype)} but needs float32"):
            conv(x.astype(dtype))
    with pytest.raises(InputError, match=r"pre_gate has shape \[4, 19\] but x has shape"):
        conv(x, pre_gate=x[:, 1:])
    with pytest.raises(InputError, match="longconv: pre_gate: some values are masked"):
        conv(x, pre_gate=np.ma.masked_less(x, 2))
    with pytest.raises(InputError, match="post_gate has dtype float64"):
        conv(x, post_gate=np.ones((4, 20)))
    with pytest.raises(InputError, match=r"taps has shape \[10\] but needs \[channels, length\]"):
        LongConv(taps[0])
    with pytest.raises(InputError, match=r"taps has shape \[4, 0\]"):
        LongConv(taps[:, :0])
    with pytest.raises(InputError, match=r"skip has shape \[3\] but needs \[4\]"):
        LongConv(taps, np.ones(3, np.float32))
    with pytest.raises(InputError, match="threads is 0"):
        LongConv(taps, threads=0)


def test_lengths_above_the_largest_transform_are_refused() -> None:
    conv = LongConv(np.ones((1, 2**16), np.float32))
    x = np.broadcast_to(np.float32(0), (1, 2**31))
    with pytest.raises(InputError, match=f"longconv: x has {2**31} tokens: .* {2**31} points"):
        conv(x)
