"""LayerNorm and RMSNorm against float64."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from conftest import EPS, misaligned, over_threads, rel_l2, strided_rows

from hyena_cpu.reference import dense

WIDTHS = [*range(1, 36), 47, 63, 64, 65, 127, 128, 131, 256, 1021]


@pytest.mark.parametrize("D", WIDTHS)
def test_every_width(kernels: ModuleType, rng: np.random.Generator, D: int) -> None:
    x = rng.standard_normal((5, D), np.float32)
    weight, bias = rng.standard_normal((2, D), np.float32)
    got = kernels.layer_norm(x, weight, bias, 1e-5)
    assert rel_l2(got, dense.layer_norm(x, weight, bias, 1e-5)) < 3 * EPS
    if D > 1:
        got = kernels.layer_norm(x, weight, None, 1e-5)
        assert rel_l2(got, dense.layer_norm(x, weight, None, 1e-5)) < 3 * EPS
    got = kernels.rms_norm(x, weight, 1e-6)
    assert rel_l2(got, dense.rms_norm(x, weight, 1e-6)) < 3 * EPS


def test_worked_numbers(kernels: ModuleType) -> None:
    x = np.array([[1, 2, 3, 4]], np.float32)
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    want = np.array([[-3, -1, 1, 3]]) / np.sqrt(5)  # variance 5/4
    np.testing.assert_allclose(kernels.layer_norm(x, ones, zeros, 0.0), want, rtol=2e-7)
    want = np.array([[1, 2, 3, 4]]) / np.sqrt(7.5)
    np.testing.assert_allclose(kernels.rms_norm(x, ones, 0.0), want, rtol=2e-7)
    flat = np.full((1, 4), 3.0, np.float32)
    np.testing.assert_array_equal(kernels.layer_norm(flat, ones, ones, 1e-5), [[1, 1, 1, 1]])


@pytest.mark.parametrize("offset", [1e2, 1e4])
def test_rows_far_from_zero(kernels: ModuleType, rng: np.random.Generator, offset: float) -> None:
    x = (rng.standard_normal((4, 301)) + offset).astype(np.float32)
    ones, zeros = np.ones(301, np.float32), np.zeros(301, np.float32)
    got = kernels.layer_norm(x, ones, zeros, 1e-5)
    assert rel_l2(got, dense.layer_norm(x, ones, zeros, 1e-5)) < 3 * EPS


@over_threads
def test_bits(kernels: ModuleType, rng: np.random.Generator, threads: int) -> None:
    x = rng.standard_normal((700, 131), np.float32)
    weight, bias = rng.standard_normal((2, 131), np.float32)
    layer = kernels.layer_norm(x, weight, bias, 1e-5)
    rms = kernels.rms_norm(x, weight, 1e-5)
    np.testing.assert_array_equal(kernels.layer_norm(x, weight, bias, 1e-5, threads=threads), layer)
    np.testing.assert_array_equal(kernels.rms_norm(x, weight, 1e-5, threads=threads), rms)
    for view in (strided_rows(x), misaligned(x)):
        np.testing.assert_array_equal(kernels.layer_norm(view, weight, bias, 1e-5), layer)
        np.testing.assert_array_equal(kernels.rms_norm(view, weight, 1e-5), rms)
    np.testing.assert_array_equal(
        kernels.layer_norm(x[9:10], weight, bias, 1e-5, threads=threads), layer[9:10]
    )
    in_place = x.copy()
    assert kernels.layer_norm(in_place, weight, bias, 1e-5, out=in_place) is in_place
    np.testing.assert_array_equal(in_place, layer)
    in_place = x.copy()
    kernels.rms_norm(in_place, weight, 1e-5, out=in_place)
    np.testing.assert_array_equal(in_place, rms)


def test_not_a_number_fills_its_row(kernels: ModuleType) -> None:
    x = np.ones((3, 20), np.float32)
    x[1, 19] = np.nan
    ones = np.ones(20, np.float32)
    for got in (kernels.layer_norm(x, ones, ones, 1e-5), kernels.rms_norm(x, ones, 1e-5)):
        assert np.isnan(got[1]).all()
        assert np.isfinite(got[[0, 2]]).all()


def test_errors(kernels: ModuleType) -> None:
    x, ones = np.ones((2, 3), np.float32), np.ones(3, np.float32)
    assert kernels.layer_norm(x[:0], ones, None, 1e-5).shape == (0, 3)
    with pytest.raises(ValueError, match=r"layer_norm: weight has shape \[2\] but needs \[3\]"):
        kernels.layer_norm(x, ones[:2], None, 1e-5)
    with pytest.raises(ValueError, match=r"layer_norm: bias has shape \[2\] but needs \[3\]"):
        kernels.layer_norm(x, ones, ones[:2], 1e-5)
    with pytest.raises(ValueError, match=r"rms_norm: weight has shape \[2\] but needs \[3\]"):
        kernels.rms_norm(x, ones[:2], 1e-5)
    with pytest.raises(ValueError, match=r"rms_norm: x has shape \[3\] but needs"):
        kernels.rms_norm(ones, ones, 1e-5)
    with pytest.raises(ValueError, match="at least one column"):
        kernels.layer_norm(x[:, :0], ones[:0], None, 1e-5)
