"""Kernels of the filter MLP against their float64 statements, over builds, threads and lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hyena_cpu import kernels
from hyena_cpu.reference import filters as reference

over_builds = pytest.mark.parametrize("build", kernels.available())


def untiled(tiles: np.ndarray, L: int) -> np.ndarray:
    """[G, P, 16] to [L, P]; what lies beyond L must be zero."""
    rows = tiles.transpose(0, 2, 1).reshape(-1, tiles.shape[1])
    assert not rows[L:].any()
    return rows[:L]


@over_builds
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("L", [0, 1, 2, 15, 16, 17, 31, 257, 1023])
@pytest.mark.parametrize("widths", [(1, 1), (3, 4), (5, 7, 2), (17, 64, 64, 64)])
def test_sine_mlp(build: str, threads: int, L: int, widths: tuple[int, ...]) -> None:
    rng = np.random.default_rng(L)
    features = rng.standard_normal((L, widths[0]))
    weights = [rng.standard_normal((b, a)) / a for a, b in itertools.pairwise(widths)]
    biases = [rng.standard_normal(b) for b in widths[1:]]
    freqs = [rng.uniform(5, 15, b) for b in widths[1:]]
    kernel = kernels.load(build)
    got = kernel.sine_mlp(features, weights, biases, freqs, threads)
    expected = reference.sine_mlp(features, weights, biases, freqs)
    assert got.shape == (-(-L // 16), widths[-1], 16)
    np.testing.assert_allclose(untiled(got, L), expected, atol=1e-7)
    np.testing.assert_array_equal(got, kernel.sine_mlp(features, weights, biases, freqs, 1))


@over_builds
def test_sine_is_accurate_after_range_reduction(build: str) -> None:
    # Near multiples of pi the result is tiny, so float32 shows the absolute error of float64.
    n = np.arange(-2000, 2001)
    near = n * np.pi
    x = np.concatenate(
        [
            near,
            np.nextafter(near, 9e9),
            [0.0, 2.9e6, 3.1e6, 1e9, -1e15, 1e300],
            np.linspace(-700, 700, 999),
        ]
    )
    one = [np.ones((1, 1))], [np.zeros(1)], [np.ones(1)]
    got = untiled(kernels.load(build).sine_mlp(x[:, None], *one, 1), x.size)[:, 0]
    np.testing.assert_allclose(got, np.sin(x), rtol=6e-8, atol=2e-16)


@over_builds
def test_sine_of_what_is_not_finite(build: str) -> None:
    x = np.array([[np.nan], [np.inf], [-np.inf], [1.0]])
    one = [np.ones((1, 1))], [np.zeros(1)], [np.ones(1)]
    got = untiled(kernels.load(build).sine_mlp(x, *one, 1), 4)[:, 0]
    assert np.isnan(got[:3]).all()
    assert got[3] == np.float32(np.sin(1.0))


@over_builds
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("C", [1, 7, 8, 9, 33])
def test_filter_block(build: str, threads: int, windowed: bool, C: int) -> None:
    L, P = 531, 13
    rng = np.random.default_rng(C)
    tiles = rng.uniform(-1, 1, (-(-L // 16), P, 16)).astype(np.float32)
    hidden = tiles.transpose(0, 2, 1).reshape(-1, P)
    weight = rng.standard_normal((C, P)).astype(np.float32)
    times = np.linspace(0, 1, L, dtype=np.float32) if windowed else None
    rates = rng.uniform(0, 200, C).astype(np.float32) if windowed else None
    for t0, t1 in ((0, L), (0, 0), (5, 5), (3, 4), (15, 17), (16, 32), (255, 513), (L - 1, L)):
        got = kernels.load(build).filter_block(tiles, weight, times, rates, 0.05, t0, t1, threads)
        expected = reference.filter_block(
            *(None if a is None else a.astype(np.float64) for a in (hidden, weight, times, rates)),
            shift=0.05,
            t0=t0,
            t1=t1,
        )
        np.testing.assert_allclose(got, expected, atol=5e-6)
        whole = kernels.load(build).filter_block(tiles, weight, times, rates, 0.05, 0, L, 1)
        np.testing.assert_array_equal(got, whole[:, t0:t1])


def test_kernels_refuse_shapes_that_do_not_fit() -> None:
    features, one = np.zeros((4, 3)), [np.zeros(2)]
    for weights, biases, reason in (
        ([], [], "at least 1"),
        ([np.zeros((2, 4))], one, r"weight has shape \[2, 4\] but needs \[any, 3\]"),
        ([np.zeros((2, 3))], [np.zeros(3)], r"bias has shape \[3\] but needs \[2\]"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernels.sine_mlp(features, weights, biases, one, 1)
    with pytest.raises(ValueError, match="threads is 0"):
        kernels.sine_mlp(features, [np.zeros((2, 3))], one, one, 0)
    tiles, weight = np.zeros((2, 5, 16), np.float32), np.zeros((3, 5), np.float32)
    some = np.zeros(3, np.float32)
    for times, rates, t1, reason in (
        (None, None, 33, "not within the 2 tiles"),
        (some, None, 3, "together"),
        (some, some, 4, "t1 is 4"),
        (some, some[:2], 3, r"rates has shape \[2\] but needs \[3\]"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernels.filter_block(tiles, weight, times, rates, 0.0, 0, t1, 1)
