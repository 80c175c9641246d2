"""Transform sizes, and the transform itself seen through products modulo t^M + 1."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from conftest import EPS, over_threads, rel_l2
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.reference import conv as reference

SMALL = {odd << k for odd in (1, 3, 5) for k in range(1, 18)}
LARGE = {odd << k for odd in (9, 15, 27) for k in range(6, 18)}
SIZES = sorted(size for size in SMALL | LARGE if size <= 1 << 17)


@given(st.integers(1, 2**31))
def test_size_is_the_smallest_that_fits(minimum: int) -> None:
    assert chosen.transform_size(minimum) == reference.transform_size(minimum)


def test_sizes_are_even_and_close(kernels: ModuleType) -> None:
    sizes = [kernels.transform_size(n) for n in range(1, 5000)]
    assert all(size % 2 == 0 for size in sizes)
    assert max(size / n for n, size in enumerate(sizes, 1) if n > 8) < 1.3334
    assert max(size / n for n, size in enumerate(sizes, 1) if n > 4096) < 1.126


@pytest.mark.parametrize(
    ("minimum", "size"),
    [(2**24 + 1, 9 * 2**21), (2**26, 2**26), (2**27 - 1, 2**27), (2**31, 2**31)],
)
def test_large_sizes_are_exact(kernels: ModuleType, minimum: int, size: int) -> None:
    assert kernels.transform_size(minimum) == size


@pytest.mark.parametrize("minimum", [2**31 + 1, 2**32, 2**40, 2**62])
def test_sizes_above_the_largest_are_refused(kernels: ModuleType, minimum: int) -> None:
    with pytest.raises(ValueError, match=f"minimum is {minimum} but the largest .* {2**31} points"):
        kernels.transform_size(minimum)


def test_sizes_below_one_are_refused(kernels: ModuleType) -> None:
    for minimum in (0, -5):
        with pytest.raises(ValueError, match=f"minimum is {minimum}"):
            kernels.transform_size(minimum)


@pytest.mark.parametrize("size", SIZES)
def test_product_modulo_t_to_the_size_plus_one(
    kernels: ModuleType, rng: np.random.Generator, size: int
) -> None:
    z, taps = (rng.standard_normal((1, size, 16)).astype(np.float32) for _ in range(2))
    got = kernels.long_conv(z, kernels.spectrum(taps, size))
    rows = (a[0].T.astype(np.float64, order="C") for a in (z, taps))  # numpy's are faster in rows
    product = np.fft.irfft(np.multiply(*(np.fft.rfft(a, 2 * size) for a in rows)), 2 * size)
    want = product[:, :size] - product[:, size:]
    assert rel_l2(got[0].T, want) <= 0.7 * EPS * np.sqrt(np.log2(2 * size))


@pytest.mark.parametrize("size", [2, 6, 10, 64, 96, 80, 16384, 24576, 262144])
def test_what_passes_the_end_comes_back_negative(kernels: ModuleType, size: int) -> None:
    z = np.zeros((1, size, 16), np.float32)
    z[0, size - 1] = np.arange(1, 17)
    taps = np.zeros((1, size, 16), np.float32)
    taps[0, 1] = 2
    y = kernels.long_conv(z, kernels.spectrum(taps, size))
    np.testing.assert_allclose(y[0, 0], -2 * z[0, -1], rtol=1e-6)
    assert np.abs(y[0, 1:]).max() < 1e-4


@over_threads
def test_spectrum_has_the_same_bits_for_all_threads_and_companions(
    kernels: ModuleType, rng: np.random.Generator, threads: int
) -> None:
    for size in (64, 16384, 40960):
        taps = rng.standard_normal((3, size // 2, 16)).astype(np.float32)
        got = kernels.spectrum(taps, size, threads=threads)
        assert got.shape == (3, size, 16)
        for g in range(3):
            alone = kernels.spectrum(taps[g : g + 1], size)
            np.testing.assert_array_equal(got[g : g + 1], alone)


def test_spectrum_refuses_bad_sizes(kernels: ModuleType) -> None:
    taps = np.zeros((1, 20, 16), np.float32)
    for size in (0, -2, 14, 21, 26):
        with pytest.raises(ValueError, match=f"spectrum: size is {size}"):
            kernels.spectrum(taps, size)
    with pytest.raises(ValueError, match=r"spectrum: taps has shape \[1, 20, 16\].*16"):
        kernels.spectrum(taps, 16)
    with pytest.raises(ValueError, match=r"spectrum: out has shape"):
        kernels.spectrum(taps, 32, out=taps)
