"""Products with packed weights: values, bits, shapes, errors."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from conftest import EPS, misaligned, over_threads, rel_l2, strided_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.reference import dense

Floats = npt.NDArray[np.float32]

SIZES = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65]
# What gives float32's accuracy; where there are no tiles, thirds are float32.
exact = pytest.mark.parametrize("numbers", ["float32", "thirds"])


def normal(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.standard_normal(shape, np.float32)


def bound(x: Floats, W: Floats) -> npt.NDArray[np.float64]:
    """What a chain of K roundings can differ by at most: K eps |x| |W|^T."""
    K = x.shape[1]
    return (K + 2) * EPS * (np.abs(x).astype(np.float64) @ np.abs(W).astype(np.float64).T)


@exact
@pytest.mark.parametrize("K", SIZES)
def test_every_small_shape(
    kernels: ModuleType, rng: np.random.Generator, K: int, numbers: str
) -> None:
    for N in SIZES:
        W = normal(rng, N, K)
        packed = kernels.PackedLinear(W, numbers)
        assert (packed.out_features, packed.in_features) == (N, K)
        for T in (1, 2, 3, 4, 5, 11, 12, 13, 25):
            x = normal(rng, T, K)
            got = kernels.linear(x, packed)
            assert np.all(np.abs(got - dense.linear(x, W)) <= bound(x, W)), (N, T)


@exact
@pytest.mark.parametrize(("K", "N"), [(257, 131), (256, 256), (512, 97), (769, 40)])
def test_every_row_count_and_depth_block(
    kernels: ModuleType, rng: np.random.Generator, K: int, N: int, numbers: str
) -> None:
    W, x = normal(rng, N, K), normal(rng, 300, K)
    packed = kernels.PackedLinear(W, numbers)
    want = dense.linear(x, W)
    for T in [*range(1, 41), 131, 132, 133, 264, 300]:
        assert rel_l2(kernels.linear(x[:T], packed), want[:T]) < 8 * EPS, T


@exact
@over_threads
def test_rows_do_not_depend_on_neighbours_or_threads(
    kernels: ModuleType, rng: np.random.Generator, threads: int, numbers: str
) -> None:
    W, x, bias = normal(rng, 517, 600), normal(rng, 290, 600), normal(rng, 517)
    packed = kernels.PackedLinear(W, numbers)
    whole = kernels.linear(x, packed, bias, "gelu_tanh", threads=1)
    np.testing.assert_array_equal(
        kernels.linear(x, packed, bias, "gelu_tanh", threads=threads), whole
    )
    for first, count in [(0, 1), (7, 1), (289, 1), (3, 2), (100, 3), (50, 13), (11, 140)]:
        part = kernels.linear(x[first : first + count], packed, bias, "gelu_tanh", threads=threads)
        np.testing.assert_array_equal(part, whole[first : first + count])


@exact
def test_columns_do_not_depend_on_neighbours(
    kernels: ModuleType, rng: np.random.Generator, numbers: str
) -> None:
    W, x = normal(rng, 300, 290), normal(rng, 9, 290)
    whole = kernels.linear(x, kernels.PackedLinear(W, numbers))
    for first, count in [(0, 1), (31, 2), (17, 40), (299, 1)]:
        part = kernels.linear(x, kernels.PackedLinear(W[first : first + count], numbers))
        np.testing.assert_array_equal(part, whole[:, first : first + count])


@pytest.mark.parametrize("activation", ["none", "gelu_tanh", "gelu_erf", "silu"])
@pytest.mark.parametrize("N", [5, 16, 50])
@exact
def test_epilogue(
    kernels: ModuleType, rng: np.random.Generator, activation: str, N: int, numbers: str
) -> None:
    W, x = normal(rng, N, 33), normal(rng, 14, 33)
    bias, residual = normal(rng, N), normal(rng, 14, N)
    packed = kernels.PackedLinear(W, numbers)
    want = dense.linear(x, W, bias, activation, residual)
    assert rel_l2(kernels.linear(x, packed, bias, activation, residual), want) < 8 * EPS
    want = dense.linear(x, W, bias, activation)
    got = kernels.linear(x, packed, bias, activation)
    assert rel_l2(got, want) < 8 * EPS
    in_place = residual.copy()
    assert kernels.linear(x, packed, bias, activation, in_place, out=in_place) is in_place
    np.testing.assert_array_equal(in_place, kernels.linear(x, packed, bias, activation, residual))
    np.testing.assert_array_equal(in_place, got + residual)


def test_strided_and_misaligned_arrays(kernels: ModuleType, rng: np.random.Generator) -> None:
    W, x, residual = normal(rng, 37, 45), normal(rng, 20, 45), normal(rng, 20, 37)
    want = kernels.linear(x, kernels.PackedLinear(W), residual=residual)
    packed = kernels.PackedLinear(strided_rows(W))
    out = strided_rows(np.zeros_like(residual))
    frame = out.base.copy()
    got = kernels.linear(strided_rows(x), packed, residual=strided_rows(residual), out=out)
    np.testing.assert_array_equal(got, want)
    frame[:, 3:40] = want
    np.testing.assert_array_equal(out.base, frame)
    for floats in (1, 5, 15):
        got = kernels.linear(
            misaligned(x, floats),
            kernels.PackedLinear(misaligned(W, floats)),
            residual=misaligned(residual, floats),
        )
        np.testing.assert_array_equal(got, want)
    repeated = np.broadcast_to(x[:1], (30, 45))
    np.testing.assert_array_equal(
        kernels.linear(repeated, packed), np.repeat(kernels.linear(x[:1], packed), 30, axis=0)
    )


def test_not_a_number_stays_in_its_row(kernels: ModuleType, rng: np.random.Generator) -> None:
    W, x = normal(rng, 40, 30), normal(rng, 30, 30)
    packed = kernels.PackedLinear(W)
    clean = kernels.linear(x, packed)
    x[7, 3], x[20, 29] = np.nan, np.inf
    got = kernels.linear(x, packed)
    assert np.isnan(got[7]).all()
    assert np.isinf(got[20]).all()
    others = [i for i in range(30) if i not in (7, 20)]
    np.testing.assert_array_equal(got[others], clean[others])


@settings(max_examples=40, deadline=None)
@given(
    T=st.integers(0, 150), K=st.integers(1, 300), N=st.integers(1, 140), threads=st.integers(1, 4)
)
def test_shapes_at_random(T: int, K: int, N: int, threads: int) -> None:
    rng = np.random.default_rng([T, K, N])
    W, x = normal(rng, N, K), normal(rng, T, K)
    got = chosen.linear(x, chosen.PackedLinear(W), threads=threads)
    assert got.shape == (T, N)
    assert np.all(np.abs(got - dense.linear(x, W)) <= bound(x, W))


def test_errors(kernels: ModuleType) -> None:
    packed = kernels.PackedLinear(np.ones((4, 3), np.float32))
    x = np.ones((2, 3), np.float32)
    assert packed.nbytes >= 4 * 3 * 4
    with pytest.raises(ValueError, match=r"linear: x has shape \[2, 4\] but needs \[any, 3\]"):
        kernels.linear(np.ones((2, 4), np.float32), packed)
    with pytest.raises(ValueError, match=r"linear: bias has shape \[3\] but needs \[4\]"):
        kernels.linear(x, packed, np.ones(3, np.float32))
    with pytest.raises(ValueError, match=r"residual has shape \[1, 4\] but needs \[2, 4\]"):
        kernels.linear(x, packed, residual=np.ones((1, 4), np.float32))
    with pytest.raises(ValueError, match=r"out has shape \[2, 3\] but needs \[2, 4\]"):
        kernels.linear(x, packed, out=np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="activation is 'relu'"):
        kernels.linear(x, packed, activation="relu")
    with pytest.raises(ValueError, match="threads is 0"):
        kernels.linear(x, packed, threads=0)
    with pytest.raises(ValueError, match="next to each other"):
        kernels.linear(np.ones((3, 2), np.float32).T, packed)
    with pytest.raises(ValueError, match=r"weight has shape \[0, 3\] and is empty"):
        kernels.PackedLinear(np.ones((0, 3), np.float32))
    square = np.ones((3, 3), np.float32)
    with pytest.raises(ValueError, match="out must not be x"):
        kernels.linear(square, kernels.PackedLinear(square), out=square)
    with pytest.raises(TypeError):
        kernels.linear(x.astype(np.float64), packed)
    frozen = np.zeros((2, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        kernels.linear(x, packed, out=frozen)


def test_rounding_to_bfloat16_in_the_reference() -> None:
    eps = 2.0**-8
    values = [1 + eps, 1 + 3 * eps, 1 + 1.01 * eps, -0.75, 0.0, 3.0e38]
    want = [1.0, 1 + 4 * eps, 1 + 2 * eps, -0.75, 0.0, 226 * 2.0**120]
    np.testing.assert_array_equal(dense.bfloat16(values), want)


@pytest.mark.parametrize(("K", "N"), [(1, 1), (2, 33), (7, 40), (257, 65), (1023, 31), (1024, 64)])
def test_bfloat16_products_are_those_of_rounded_numbers(
    kernels: ModuleType, rng: np.random.Generator, K: int, N: int
) -> None:
    W, x = normal(rng, N, K), normal(rng, 300, K)
    packed = kernels.PackedLinear(W, "bfloat16")
    assert packed.nbytes < kernels.PackedLinear(W).nbytes or K == 1
    a, b = (dense.bfloat16(values).astype(np.float32) for values in (x, W))
    want = dense.linear(a, b)
    for T in (1, 2, 3, 5, 12, 131, 300):
        got = kernels.linear(x[:T], packed, threads=2)
        assert np.all(np.abs(got - want[:T]) <= bound(a[:T], b)), T


@over_threads
def test_bfloat16_rows_do_not_depend_on_neighbours_or_threads(
    kernels: ModuleType, rng: np.random.Generator, threads: int
) -> None:
    W, x, bias = normal(rng, 517, 601), normal(rng, 290, 601), normal(rng, 517)
    packed = kernels.PackedLinear(W, "bfloat16")
    whole = kernels.linear(x, packed, bias, "silu", threads=threads)
    for rows in (slice(0, 1), slice(5, 7), slice(100, 232), slice(289, 290)):
        np.testing.assert_array_equal(kernels.linear(x[rows], packed, bias, "silu"), whole[rows])


@pytest.mark.parametrize("numbers", ["thirds", "bfloat16"])
@pytest.mark.parametrize("K", [5, 32, 33, 70])
def test_columns_do_not_see_infinite_neighbours(
    kernels: ModuleType, rng: np.random.Generator, K: int, numbers: str
) -> None:
    W, x = normal(rng, 96, K), normal(rng, 40, K)
    clean = kernels.linear(x, kernels.PackedLinear(W, numbers))
    W[32:] = np.inf
    for T in (1, 7, 40):
        got = kernels.linear(x[:T], kernels.PackedLinear(W, numbers))
        np.testing.assert_array_equal(got[:, :32], clean[:T, :32])


def test_bfloat16_keeps_what_is_not_finite(kernels: ModuleType) -> None:
    one = kernels.PackedLinear(np.ones((1, 2), np.float32), "bfloat16")
    x = np.array([[np.nan, 0], [np.inf, 0], [-np.inf, 0], [3.4e38, 0]], np.float32)
    np.testing.assert_array_equal(
        kernels.linear(x, one)[:, 0], np.array([np.nan, np.inf, -np.inf, np.inf], np.float32)
    )
    with pytest.raises(
        ValueError, match="dtype is 'float16' but needs to be float32, thirds or bfloat16"
    ):
        kernels.PackedLinear(np.ones((1, 2), np.float32), "float16")


def test_thirds_hold_all_digits(kernels: ModuleType, rng: np.random.Generator) -> None:
    """Numbers of every size, and those whose first third is not the nearest of eight bits."""
    x = (normal(rng, 60, 1) * np.exp2(rng.integers(-90, 90, (60, 1)))).astype(np.float32)
    x[:4, 0] = [1 - 2.0**-24, 1 + 2.0**-8, 1.5 - 2.0**-23, np.float32(16777215)]
    W = np.exp2(np.arange(-8, 9, dtype=np.float32))[:, None]
    got = kernels.linear(x, kernels.PackedLinear(W, "thirds"))
    np.testing.assert_array_equal(got, x * W.T)


def test_thirds_are_as_exact_as_one_chain(kernels: ModuleType, rng: np.random.Generator) -> None:
    W, x = normal(rng, 200, 1000), normal(rng, 150, 1000)
    want = dense.linear(x, W)
    chain, thirds = (
        rel_l2(kernels.linear(x, kernels.PackedLinear(W, numbers)), want)
        for numbers in ("float32", "thirds")
    )
    assert thirds <= chain


def test_thirds_of_what_is_not_finite_are_not_either(kernels: ModuleType) -> None:
    x = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, 1], [1, 2], [3.3e38, 0]], np.float32)
    one = kernels.linear(x, kernels.PackedLinear(np.ones((1, 2), np.float32), "thirds"))[:, 0]
    assert not np.isfinite(one[:3]).any()
    np.testing.assert_array_equal(one[3:], np.array([3, 3.3e38], np.float32))
    W = np.array([[np.inf, 1], [np.nan, 1], [1, 1]], np.float32)
    got = kernels.linear(x[3:4], kernels.PackedLinear(W, "thirds"))[0]
    assert not np.isfinite(got[:2]).any()
    assert got[2] == 3


def test_weights_on_a_shelf_outlive_it(rng: np.random.Generator) -> None:
    kernels, x = chosen.module, normal(rng, 3, 200)
    shelf = kernels.Shelf()
    weights = [normal(rng, N, 200) for N in (1, 37, 4000, 12_000, 4000, 500, 4000)]  # 2^23 bytes
    packed = [kernels.PackedLinear(W, shelf=shelf) for W in weights]
    del shelf
    del packed[1], weights[1]
    for W, one in zip(weights, packed, strict=True):
        np.testing.assert_array_equal(
            kernels.linear(x, one), kernels.linear(x, kernels.PackedLinear(W))
        )
