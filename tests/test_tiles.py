"""Layout changes between token rows, channels and tiles."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from conftest import misaligned, over_threads, strided_rows, strided_tiles

from hyena_cpu.reference import conv as reference

SHAPES = [(1, 1), (1, 16), (5, 15), (16, 16), (17, 17), (31, 33), (64, 48), (1025, 20), (2048, 32)]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@over_threads
@pytest.mark.parametrize(("T", "C"), SHAPES)
def test_layouts_move_every_value_to_its_place(
    kernels: ModuleType, rng: np.random.Generator, T: int, C: int, threads: int
) -> None:
    x = normal(rng, T, C)
    want = reference.rows_to_tiles(x).astype(np.float32)
    for rows in (x, misaligned(x), strided_rows(x)):
        z = kernels.rows_to_tiles(rows, threads=threads)
        np.testing.assert_array_equal(z, want)
    for channels in (np.ascontiguousarray(x.T), misaligned(x.T), strided_rows(x.T)):
        np.testing.assert_array_equal(kernels.channels_to_tiles(channels, threads=threads), want)
    for tiles in (z, misaligned(want), strided_tiles(want)):
        np.testing.assert_array_equal(kernels.tiles_to_rows(tiles, C, threads=threads), x)
        np.testing.assert_array_equal(kernels.tiles_to_channels(tiles, C, threads=threads), x.T)


def test_outputs_given_are_filled_and_returned(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    x = normal(rng, 37, 21)
    z = strided_tiles(np.full((2, 37, 16), 7, np.float32))
    assert kernels.rows_to_tiles(x, out=z) is z
    np.testing.assert_array_equal(z, reference.rows_to_tiles(x).astype(np.float32))
    back = strided_rows(np.zeros((37, 21), np.float32))
    assert kernels.tiles_to_rows(z, 21, out=back) is back
    np.testing.assert_array_equal(back, x)
    assert np.isnan(back.base[:, :3]).all()
    assert np.isnan(back.base[:, -5:]).all()


def test_fresh_tiles_are_not_a_power_of_two_apart(kernels: ModuleType) -> None:
    z = kernels.rows_to_tiles(np.zeros((1024, 32), np.float32))
    assert z.shape == (2, 1024, 16)
    assert z.strides[0] % 4096 != 0
    assert z.ctypes.data % 64 == 0


@over_threads
def test_multiply_tiles_is_the_product_and_may_be_in_place(
    kernels: ModuleType, rng: np.random.Generator, threads: int
) -> None:
    for T in (1, 7, 1024, 1025):
        a, b = normal(rng, 3, T, 16), normal(rng, 3, T, 16)
        want = a * b
        np.testing.assert_array_equal(kernels.multiply_tiles(a, b, threads=threads), want)
        kernels.multiply_tiles(strided_tiles(a), b, out=b, threads=threads)
        np.testing.assert_array_equal(b, want)


def test_empty_inputs_give_empty_outputs(kernels: ModuleType) -> None:
    assert kernels.rows_to_tiles(np.zeros((0, 20), np.float32)).shape == (2, 0, 16)
    assert kernels.channels_to_tiles(np.zeros((20, 0), np.float32)).shape == (2, 0, 16)
    assert kernels.tiles_to_rows(np.zeros((2, 0, 16), np.float32), 20).shape == (0, 20)


def test_wrong_shapes_are_named(kernels: ModuleType) -> None:
    z = np.zeros((2, 5, 16), np.float32)
    with pytest.raises(ValueError, match=r"tiles_to_rows: z has shape \[2, 5, 16\] but needs 3"):
        kernels.tiles_to_rows(z, 33)
    with pytest.raises(ValueError, match=r"multiply_tiles: b has shape \[2, 4, 16\] but needs"):
        kernels.multiply_tiles(z, z[:, :4])
    with pytest.raises(ValueError, match=r"rows_to_tiles: x has shape \[5\]"):
        kernels.rows_to_tiles(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="columns of a row next to each other"):
        kernels.rows_to_tiles(np.zeros((6, 6), np.float32)[:, ::2])
    with pytest.raises(ValueError, match="threads is 0"):
        kernels.rows_to_tiles(np.zeros((6, 6), np.float32), threads=0)
    frozen = np.zeros((1, 6, 16), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        kernels.rows_to_tiles(np.zeros((6, 6), np.float32), out=frozen)
    with pytest.raises(TypeError):
        kernels.rows_to_tiles(np.zeros((6, 6)))
