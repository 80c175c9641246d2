"""The vector functions every kernel is made of, measured through kernels."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from hyena_cpu.reference import dense


def test_exp_is_within_two_ulp(kernels: ModuleType) -> None:
    x = np.concatenate(
        [
            np.linspace(-87, 88, 1_000_003),
            np.linspace(-1, 1, 300_007),
            np.arange(-125, 127) * np.log(2.0),
            (np.arange(-125, 126) + 0.5) * np.log(2.0),
        ]
    ).astype(np.float32)
    want = dense.exponential(x)
    ulp = np.spacing(want.astype(np.float32)).astype(np.float64)
    error = np.abs(kernels.exponential(x[None])[0] - want) / ulp
    assert error.max() <= 2.0


def test_exp_at_the_ends(kernels: ModuleType) -> None:
    x = np.array([[0.0, -0.0, np.nan, -87, 88, -100, 100, -np.inf, np.inf, 1e-40]], np.float32)
    got = kernels.exponential(x)[0]
    assert got[0] == got[1] == got[9] == 1.0
    assert np.isnan(got[2])
    assert got[5] == got[7] == got[3]
    assert got[6] == got[8] == got[4]
    np.testing.assert_allclose(got[3:5], np.exp([-87.0, 88.0]), rtol=2e-7)


def test_exp_does_not_depend_on_the_lane(kernels: ModuleType, rng: np.random.Generator) -> None:
    x = rng.normal(0, 20, 131).astype(np.float32)
    want = kernels.exponential(x[:, None])[:, 0]
    for shift in range(17):
        np.testing.assert_array_equal(
            kernels.exponential(np.roll(x, shift)[None])[0], np.roll(want, shift)
        )


def test_lanes_agree_with_the_build(kernels: ModuleType) -> None:
    lanes = {"baseline": 4, "neon": 4, "avx2": 8, "avx512": 16, "amx": 16}
    assert kernels.lanes == lanes[kernels.build]
