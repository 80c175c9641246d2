"""Gated convolutions of rows, one channel at a time; pocketfft as a second opinion on tiles."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import EPS, SEED, misaligned, over_threads, rel_l2, strided_rows

from hyena_cpu.reference import conv as reference

SIZES = [512, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 8192, 40960, 1 << 16, 3 << 15, 1 << 18]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def wrapped(w: np.ndarray, taps: np.ndarray, size: int) -> np.ndarray:
    """The product of rows modulo t^size + 1 through float64 transforms."""
    a, b = (np.fft.rfft(rows.astype(np.float64), 2 * size) for rows in (w, taps))
    product = np.fft.irfft(a * b, 2 * size)
    return (product[:, :size] - product[:, size:])[:, : w.shape[1]]


@pytest.mark.parametrize("size", SIZES)
def test_product_modulo_t_to_the_size_plus_one(
    kernels: ModuleType, rng: np.random.Generator, size: int
) -> None:
    z, taps = normal(rng, 2, size), normal(rng, 2, size)
    got = kernels.row_conv(z, kernels.row_spectrum(taps, size))
    assert rel_l2(got, wrapped(z, taps, size)) <= 0.7 * EPS * np.sqrt(np.log2(2 * size))


@pytest.mark.parametrize("size", [512, 2560])
def test_every_length_near_the_ends_of_blocks(
    kernels: ModuleType, rng: np.random.Generator, size: int
) -> None:
    """Real parts alone, imaginary ones too, and a last vector of any width."""
    z, taps = normal(rng, 1, size), normal(rng, 1, size // 2)
    spectrum = kernels.row_spectrum(taps, size)
    near = {s + d for s in (1, 64, size // 8, size // 4, size // 2, size) for d in range(-17, 18)}
    for T in sorted(n for n in near if 1 <= n <= size):
        error = kernels.row_conv(z[:, :T], spectrum) - wrapped(z[:, :T], taps, size)
        # A few outputs may be small beside what the transform works on.
        scale = np.linalg.norm(z[:, :T]) * np.linalg.norm(taps)
        assert np.linalg.norm(error) <= 3e-7 * scale


@over_threads
@pytest.mark.parametrize("T", [1, 15, 250, 256, 301])
def test_gates_skip_and_views(
    kernels: ModuleType, rng: np.random.Generator, T: int, threads: int
) -> None:
    C = 5
    z, pre, post, skip = normal(rng, C, T), normal(rng, C, T), normal(rng, C, T), normal(rng, C)
    taps = normal(rng, C, 40)
    spectrum, filters = kernels.row_spectrum(taps, 512), reference.row_spectrum(taps, 512)
    for gates in ({}, {"skip": skip}, {"pre": pre}, {"skip": skip, "pre": pre, "post": post}):
        want = reference.row_conv(z, filters, **gates)
        views = {name: a if name == "skip" else misaligned(a) for name, a in gates.items()}
        for rows in (z, misaligned(z), strided_rows(z)):
            got = kernels.row_conv(rows, spectrum, threads=threads, **views)
            assert rel_l2(got, want) <= 5e-7


@cache
def gated(C: int, T: int, size: int) -> tuple[np.ndarray, np.ndarray, list[tuple[Any, np.ndarray]]]:
    """Inputs, taps, and the outputs with every kind of gates: the same for all builds, threads."""
    rng = np.random.default_rng(SEED)
    z, pre, post, skip = normal(rng, C, T), normal(rng, C, T), normal(rng, C, T), normal(rng, C)
    taps = normal(rng, C, 20)
    filters = reference.row_spectrum(taps, size)
    kinds: list[dict[str, np.ndarray]] = [{}, {"skip": skip}, {"pre": pre}]
    kinds.append({"skip": skip, "pre": pre, "post": post})
    return z, taps, [(gates, reference.row_conv(z, filters, **gates)) for gates in kinds]


@over_threads
@pytest.mark.parametrize("C", [1, 5, 16, 37])
@pytest.mark.parametrize(("T", "size"), [(1, 96), (127, 384), (260, 512), (300, 320), (600, 1280)])
def test_channels_side_by_side(
    kernels: ModuleType, T: int, size: int, C: int, threads: int
) -> None:
    z, taps, cases = gated(C, T, size)
    spectrum = kernels.spectrum(kernels.channels_to_tiles(taps), size)
    for gates, want in cases:
        views = {name: a if name == "skip" else misaligned(a) for name, a in gates.items()}
        alone = kernels.row_conv(z, spectrum, **gates)
        np.testing.assert_allclose(alone, want, rtol=0, atol=1e-6 * max(1, np.abs(want).max()))
        for rows in (z, misaligned(z), strided_rows(z)):
            got = kernels.row_conv(rows, spectrum, threads=threads, **views)
            np.testing.assert_array_equal(got, alone)
        for name in {"z", *gates} - {"skip"}:
            places = {"z": z.copy(), **{n: a.copy() for n, a in gates.items()}}
            kernels.row_conv(spectrum=spectrum, out=places[name], threads=threads, **places)
            np.testing.assert_array_equal(places[name], alone)


def test_channels_side_by_side_in_long_transforms(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    """Sizes at which every channel is transformed by itself in both forms."""
    size = 1 << 20
    z, taps, skip = normal(rng, 17, 5000), normal(rng, 17, 300), normal(rng, 17)
    got = kernels.row_conv(z, kernels.spectrum(kernels.channels_to_tiles(taps), size), skip)
    np.testing.assert_array_equal(got, kernels.row_conv(z, kernels.row_spectrum(taps, size), skip))


def test_in_place_and_same_bits_for_all_threads_and_companions(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    for T, size in ((77, 512), (5000, 10240)):
        z, gate, skip, taps = (
            normal(rng, 4, T),
            normal(rng, 4, T),
            normal(rng, 4),
            normal(rng, 4, T),
        )
        spectrum = kernels.row_spectrum(taps, size, threads=3)
        want = kernels.row_conv(z, spectrum, skip, gate, gate)
        for c in range(4):
            one = slice(c, c + 1)
            own = kernels.row_spectrum(taps[one], size)
            alone = kernels.row_conv(z[one], own, skip[one], gate[one], gate[one])
            np.testing.assert_array_equal(alone, want[one])
        for threads in (2, 3):
            for place in (0, 1):
                rows = [z.copy(), gate.copy()]
                got = kernels.row_conv(
                    rows[0], spectrum, skip, rows[1], rows[1], out=rows[place], threads=threads
                )
                assert got is rows[place]
                np.testing.assert_array_equal(got, want)


def test_refusals(kernels: ModuleType) -> None:
    rows = np.zeros((2, 600), np.float32)
    for size in (0, 256, 640, 1000):
        with pytest.raises(ValueError, match=f"row_spectrum: size is {size}"):
            kernels.row_spectrum(rows, size)
    with pytest.raises(ValueError, match=r"row_spectrum: taps has shape \[2, 600\].*512"):
        kernels.row_spectrum(rows, 512)
    spectrum = kernels.row_spectrum(rows, 1024)
    with pytest.raises(ValueError, match="row_conv: spectrum has shape"):
        kernels.row_conv(np.zeros((2, 1025), np.float32), spectrum)
    with pytest.raises(ValueError, match="row_conv: spectrum has shape"):
        kernels.row_conv(rows[:1], spectrum)
    with pytest.raises(ValueError, match="row_conv: spectrum has shape"):
        kernels.row_conv(rows, np.zeros((2, 1024, 16), np.float32))
    with pytest.raises(ValueError, match="row_conv: pre has shape"):
        kernels.row_conv(rows, spectrum, pre=rows[:, :5])


@pytest.mark.parametrize("size", [2, 6, 10, 96, 640, 4096, 24576, 1 << 18])
def test_tiles_agree_with_pocketfft(
    kernels: ModuleType, rng: np.random.Generator, size: int
) -> None:
    groups = 2 if size < 10_000 else 1
    for S in {1, size // 2, size - 1, size}:
        z, taps = normal(rng, groups, S, 16), normal(rng, groups, size // 2 or 1, 16)
        got = kernels.long_conv(z, kernels.spectrum(taps, size))
        error = got - kernels.pocket_conv(z, taps, size)
        assert np.linalg.norm(error) <= 2e-7 * np.linalg.norm(z) * np.linalg.norm(taps)
