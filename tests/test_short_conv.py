"""The depthwise FIR over a few taps."""

from __future__ import annotations

import itertools
from functools import cache
from types import ModuleType

import numpy as np
import pytest
from conftest import SEED, over_threads, rel_l2, strided_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.reference import conv as reference


def problem(
    rng: np.random.Generator, T: int, D: int, parts: int, K: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x [T, C], taps [K, C], bias [C], tail [K-1, C]."""
    C = parts * D
    shapes = [(T, C), (K, C), (C,), (K - 1, C)]
    x, taps, bias, tail = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, taps, bias, tail


@cache
def solved(D: int, parts: int, K: int) -> list[tuple[tuple[np.ndarray, ...], list[np.ndarray]]]:
    """Problems of several lengths, and what comes out with and without a bias: for all builds and
    threads.
    """
    rng, found = np.random.default_rng(SEED), []
    for T in (1, 2, 3, 63, 64, 65, 130):
        x, taps, bias, tail = problem(rng, T, D, parts, K)
        want = [reference.short_conv(x, taps, b, tail, parts) for b in (bias, None)]
        found.append(((x, taps, bias, tail), want))
    return found


@over_threads
@pytest.mark.parametrize("K", [1, 2, 3, 4, 7, 33])
@pytest.mark.parametrize(("D", "parts"), [(1, 1), (16, 3), (20, 2), (48, 4)])
def test_matches_the_reference(
    kernels: ModuleType, D: int, parts: int, K: int, threads: int
) -> None:
    for (x, taps, bias, tail), (with_bias, without) in solved(D, parts, K):
        got = kernels.short_conv(x, taps, bias, tail, parts, threads=threads)
        assert rel_l2(got, with_bias) < 2e-7
        got = kernels.short_conv(strided_rows(x), taps, None, tail, parts, threads=threads)
        assert rel_l2(got, without) < 2e-7
        apart = kernels.short_conv(x, taps, None, strided_rows(tail), parts, threads=threads)
        np.testing.assert_array_equal(apart, got)


def test_newest_tap_is_last_and_missing_lanes_are_zero(kernels: ModuleType) -> None:
    x = np.array([[1], [2], [3]], np.float32)
    taps = np.array([[100], [10], [1]], np.float32)
    tail = np.array([[8], [9]], np.float32)
    y = kernels.short_conv(x, taps, np.array([0.5], np.float32), tail, 1)
    np.testing.assert_array_equal(y[0, 0, :, 0], [891.5, 912.5, 123.5])
    assert not y[0, 0, :, 1:].any()


@settings(max_examples=40, deadline=None)
@given(
    T=st.integers(1, 200),
    cuts=st.lists(st.integers(0, 200), max_size=5),
    K=st.integers(1, 6),
    D=st.integers(1, 40),
)
def test_any_split_gives_the_same_bits(T: int, cuts: list[int], K: int, D: int) -> None:
    x, taps, bias, tail = problem(np.random.default_rng(T), T, D, 2, K)
    whole = chosen.short_conv(x, taps, bias, tail, 2)
    edges = [0, *sorted(min(cut, T) for cut in cuts), T]
    history = np.concatenate([tail, x])
    pieces = [
        chosen.short_conv(x[a:b], taps, bias, history[a : a + K - 1], 2)
        for a, b in itertools.pairwise(edges)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces, axis=2), whole)


def test_output_given_may_be_a_time_slice(kernels: ModuleType, rng: np.random.Generator) -> None:
    x, taps, bias, tail = problem(rng, 30, 20, 3, 3)
    wide = np.full((3, 2, 50, 16), np.nan, np.float32)
    out = wide[:, :, 10:40]
    assert kernels.short_conv(x, taps, bias, tail, 3, out=out) is out
    np.testing.assert_array_equal(out, kernels.short_conv(x, taps, bias, tail, 3))
    assert np.isnan(wide[:, :, :10]).all()
    assert np.isnan(wide[:, :, 40:]).all()


def test_wrong_shapes_are_named(kernels: ModuleType, rng: np.random.Generator) -> None:
    x, taps, bias, tail = problem(rng, 5, 6, 2, 3)
    with pytest.raises(ValueError, match=r"short_conv: x .* multiple of 5 channels"):
        kernels.short_conv(x, taps, bias, tail, 5)
    with pytest.raises(ValueError, match=r"short_conv: tail has shape \[1, 12\] but needs \[2, 12"):
        kernels.short_conv(x, taps, bias, tail[:1], 2)
    with pytest.raises(ValueError, match=r"short_conv: bias has shape \[11\] but needs \[12\]"):
        kernels.short_conv(x, taps, bias[:11], tail, 2)
    with pytest.raises(ValueError, match="at least one row"):
        kernels.short_conv(x, taps[:0], bias, tail, 2)
    with pytest.raises(ValueError, match=r"short_conv: out has shape"):
        kernels.short_conv(x, taps, bias, tail, 2, out=np.zeros((1, 1, 5, 16), np.float32))
