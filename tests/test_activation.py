"""Activations by themselves: values, ends of the number line, bits of row ends."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from conftest import EPS, misaligned, over_threads, strided_rows

from hyena_cpu.reference import dense

Floats = npt.NDArray[np.float32]

PLAIN = ["gelu_tanh", "gelu_erf", "silu"]
GATED = ["swiglu", "glu"]
# |error| <= bound * |x| (gated: times the product of both inputs' sizes). Near zero everything is
# a few roundings; gelu_erf is held by its formula for erf.
BOUND = {"gelu_tanh": 5e-7, "gelu_erf": 3e-7, "silu": 5e-7}


def row(values: npt.ArrayLike) -> Floats:
    return np.asarray(values, np.float32).reshape(1, -1)


@pytest.mark.parametrize("name", PLAIN)
def test_values(kernels: ModuleType, name: str) -> None:
    x = np.concatenate(
        [np.linspace(-110, 110, 40001), np.linspace(-6, 6, 40001), np.geomspace(1e-30, 1, 999)]
    )
    x = row(x)
    got = getattr(kernels, name)(x)
    error = np.abs(got - getattr(dense, name)(x))
    assert np.all(error <= BOUND[name] * np.abs(x) + 1e-36)


@pytest.mark.parametrize("name", ["gelu_tanh", "silu"])
def test_relative_error_where_results_are_small(kernels: ModuleType, name: str) -> None:
    x = row(np.linspace(-4, 4, 30001))
    want = getattr(dense, name)(x)
    # The logistic of a rounded argument t carries |t| roundings, here up to about 13.
    assert np.all(np.abs(getattr(kernels, name)(x) - want) <= 24 * EPS * np.abs(want))


@pytest.mark.parametrize("name", PLAIN)
def test_ends_of_the_number_line(kernels: ModuleType, name: str) -> None:
    big = np.finfo(np.float32).max
    got = getattr(kernels, name)(row([np.nan, np.inf, -np.inf, big, -big, 0.0, 1e-45, -1e5]))[0]
    assert np.isnan(got[0])
    assert got[1] == np.inf
    assert got[3] == big
    assert np.all(np.abs(got[[2, 4, 5, 6, 7]]) < 1e-30)


@pytest.mark.parametrize("F", [*range(1, 36), 130])
def test_gates(kernels: ModuleType, rng: np.random.Generator, F: int) -> None:
    x = rng.normal(0, 4, (7, 2 * F)).astype(np.float32)
    scale = np.abs(x[:, :F]) * np.maximum(1, np.abs(x[:, F:]))
    for name in GATED:
        got = getattr(kernels, name)(x)
        assert got.shape == (7, F)
        assert np.all(np.abs(got - getattr(dense, name)(x)) <= 1e-6 * scale)


def test_gates_at_the_ends(kernels: ModuleType) -> None:
    x = row([2.0, 3.0, np.nan, 5.0, np.inf, -np.inf, 1.0, np.nan])
    got = kernels.glu(x)[0]
    assert got[0] == 2.0
    assert got[1] == 0.0
    assert np.isnan(got[2:]).all()
    assert np.isnan(kernels.swiglu(row([np.nan, 1.0, 1.0, np.nan]))).all()


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("D", range(1, 50))
def test_row_ends_have_the_bits_of_row_bodies(
    kernels: ModuleType, rng: np.random.Generator, name: str, D: int
) -> None:
    x = rng.normal(0, 3, (3, D)).astype(np.float32)
    kernel = getattr(kernels, name)
    body = kernel(np.pad(x, ((0, 0), (0, 64 - D))))[:, :D]
    np.testing.assert_array_equal(kernel(x), body)


@over_threads
@pytest.mark.parametrize("name", [*PLAIN, *GATED])
def test_bits(kernels: ModuleType, rng: np.random.Generator, name: str, threads: int) -> None:
    x = rng.normal(0, 3, (900, 86)).astype(np.float32)
    kernel = getattr(kernels, name)
    want = kernel(x)
    np.testing.assert_array_equal(kernel(x, threads=threads), want)
    np.testing.assert_array_equal(kernel(strided_rows(x), threads=threads), want)
    np.testing.assert_array_equal(kernel(misaligned(x), threads=threads), want)
    np.testing.assert_array_equal(kernel(x[5:6]), want[5:6])
    out = strided_rows(np.zeros_like(want))
    frame = out.base.copy()
    assert kernel(x, out, threads=threads) is out
    frame[:, 3 : 3 + want.shape[1]] = want
    np.testing.assert_array_equal(out.base, frame)
    if name in PLAIN:
        np.testing.assert_array_equal(kernel(x, x), want)


def test_errors(kernels: ModuleType) -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"silu: out has shape \[2, 2\] but needs \[2, 3\]"):
        kernels.silu(x, np.ones((2, 2), np.float32))
    with pytest.raises(ValueError, match=r"glu: x has shape \[2, 3\] but needs an even number"):
        kernels.glu(x)
    with pytest.raises(ValueError, match=r"gelu_tanh: x has shape \[3\]"):
        kernels.gelu_tanh(x[0])
    with pytest.raises(TypeError):
        kernels.silu(x.astype(np.float64))
    for name in [*PLAIN, *GATED]:
        assert getattr(kernels, name)(np.ones((0, 4), np.float32)).shape[0] == 0
        assert getattr(kernels, name)(np.ones((4, 0), np.float32)).shape == (4, 0)
