"""The recurrences: against float64, cut anywhere, at the edges of float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from conftest import SEED, over_threads, rel_l2, strided_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.mixers.hyena import pad_lanes
from hyena_cpu.mixers.rwkv import LEAST_EXPONENT
from hyena_cpu.reference import recurrent as reference

Call = Callable[[int, int, np.ndarray], np.ndarray]
SUBNORMAL = np.finfo(np.float32).tiny
LENGTHS = (1, 2, 63, 64, 65, 150)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def linear_start(H: int, F: int, C: int) -> np.ndarray:
    return np.zeros((H, -(-F // 8) * 8, -(-C // 16) * 16), np.float32)


def f64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(a, np.float64) for a in arrays]


def wkv_start(D: int) -> np.ndarray:
    state = np.zeros((-(-D // 16), 4, 16), np.float32)
    state[:, 2] = LEAST_EXPONENT
    return state


def channel_tiles(rates: np.ndarray) -> np.ndarray:
    """[D, N] -> [G, N, 16]."""
    return np.ascontiguousarray(np.stack([pad_lanes(column) for column in rates.T], axis=1))


# ---- linear attention


@over_threads
@pytest.mark.parametrize(("H", "f", "V"), [(1, 1, 1), (2, 3, 7), (3, 8, 16), (1, 16, 33)])
def test_based(
    kernels: ModuleType, rng: np.random.Generator, H: int, f: int, V: int, threads: int
) -> None:
    F = 1 + f + f * (f + 1) // 2
    for T in LENGTHS:
        q, k, v = normal(rng, T, H * f), normal(rng, T, H * f), normal(rng, T, H * V)
        state = linear_start(H, F, V + 1)
        got = kernels.linear_scan(
            strided_rows(q), strided_rows(k), v, state, taylor=True, eps=1e-12, threads=threads
        )
        heads = [a.reshape(T, H, -1) for a in f64(q, k, v)]
        want = reference.based_parallel(*heads, 1e-12)
        assert rel_l2(got, want.reshape(T, -1)) < 2e-6
        assert (state[:, 0, V] == T).all()  # the constant feature counts tokens
        assert not state[:, F:].any()
        assert not state[:, :, V + 1 :].any()


@over_threads
@pytest.mark.parametrize(("H", "f", "V"), [(1, 2, 1), (2, 4, 16), (5, 6, 20)])
def test_retention(
    kernels: ModuleType, rng: np.random.Generator, H: int, f: int, V: int, threads: int
) -> None:
    decay = (1 - 2.0 ** (-5 - np.arange(H))).astype(np.float32)
    for T in LENGTHS:
        q, k, v = normal(rng, T, H * f), normal(rng, T, H * f), normal(rng, T, H * V)
        state = linear_start(H, f, V)
        got = kernels.linear_scan(q, k, strided_rows(v), state, decay, threads=threads)
        heads = [a.reshape(T, H, -1) for a in f64(q, k, v)]
        want, last = reference.linear_scan(*heads, *f64(decay), np.zeros((H, f, V)))
        assert rel_l2(got, want.reshape(T, -1)) < 2e-6
        assert rel_l2(state[:, :f, :V], last) < 2e-6


def test_a_worked_retention(kernels: ModuleType) -> None:
    """One head, decay 1/2: S = 2, then 1 + 3 = 4, then 2 - 1 = 1."""
    q = np.array([[1], [10], [100]], np.float32)
    k = np.array([[1], [3], [-1]], np.float32)
    v = np.array([[2], [1], [1]], np.float32)
    state = linear_start(1, 1, 1)
    y = kernels.linear_scan(q, k, v, state, np.array([0.5], np.float32))
    np.testing.assert_array_equal(y, [[2], [40], [100]])
    assert state[0, 0, 0] == 1


def test_a_worked_taylor_average(kernels: ModuleType) -> None:
    """f = 1: weights 1 + s + s^2 / 2 of s = 2 * 1 and 2 * -1 are 5 and 1."""
    q, k = np.array([[0], [2]], np.float32), np.array([[1], [-1]], np.float32)
    v = np.array([[3], [9]], np.float32)
    state = linear_start(1, 3, 2)
    y = kernels.linear_scan(q, k, v, state, taylor=True, eps=1e-12)
    np.testing.assert_allclose(y, [[3], [4]], rtol=1e-6)


def test_what_decays_becomes_zero(kernels: ModuleType, rng: np.random.Generator) -> None:
    """And at the same token, however the sequence is cut."""
    decay, silent = np.array([0.97], np.float32), np.zeros((600, 2), np.float32)
    once = np.float32(1e-26) * normal(rng, 1, 8, 16)
    single = once.copy()
    for t in range(300):  # to about 1e-30
        row = silent[t : t + 1]
        kernels.linear_scan(row, row, row, single, decay, position=100 + t)
    row = silent[:300]
    kernels.linear_scan(row, row, row, once, decay, position=100)
    assert np.array_equal(once, single)
    assert 0 < np.count_nonzero(once == 0) < once.size
    kernels.linear_scan(silent, silent, silent, once, decay, position=400)
    assert not once.any()


# ---- RWKV


def wkv(
    kernels: ModuleType, k: np.ndarray, v: np.ndarray, w: np.ndarray, u: np.ndarray, threads: int
) -> tuple[np.ndarray, np.ndarray]:
    state = wkv_start(k.shape[1])
    y = kernels.wkv_scan(k, v, pad_lanes(w), pad_lanes(u), state, threads=threads)
    return y, state


@cache
def wkv_cases(D: int, size: float) -> list[tuple[list[np.ndarray], np.ndarray]]:
    """k, v, w and u of every length, and the outputs: the same for all builds and threads."""
    rng, cases = np.random.default_rng(SEED), []
    w, u = -np.exp(normal(rng, D) - 2), normal(rng, D)
    for T in LENGTHS:
        given = [np.float32(size) * normal(rng, T, D), normal(rng, T, D), w, u]
        cases.append((given, reference.wkv_parallel(*f64(*given))))
    return cases


@over_threads
@pytest.mark.parametrize("D", [1, 16, 20, 100])
@pytest.mark.parametrize("size", [1, 30, 1e4])
def test_wkv(kernels: ModuleType, D: int, size: float, threads: int) -> None:
    for (k, v, w, u), want in wkv_cases(D, size):
        y, _ = wkv(kernels, strided_rows(k), strided_rows(v), w, u, threads)
        assert rel_l2(y, want) < 2e-6


def test_a_worked_average(kernels: ModuleType) -> None:
    """w = -ln 2, k = 0, u = ln 3: 8; (8 + 3 * 4) / (1 + 3); (8 / 2 + 4 + 3 * 0) / (1/2 + 1 + 3)."""
    k, v = np.zeros((3, 1), np.float32), np.array([[8], [4], [0]], np.float32)
    w, u = -np.log(np.full(1, 2, np.float32)), np.log(np.full(1, 3, np.float32))
    y, _ = wkv(kernels, k, v, w, u, 1)
    np.testing.assert_allclose(y, [[8], [5], [8 / 4.5]], rtol=1e-6)


@pytest.mark.parametrize("rise", [-3.0, -1e-3, 0.0, 1e-4, 40.0])
def test_exponents_that_rise_and_fall(
    kernels: ModuleType, rng: np.random.Generator, rise: float
) -> None:
    """e^k would overflow, or vanish, from the first tokens on."""
    T, D = 400, 20
    k = (90 + rise * np.arange(T)[:, None] + 0.1 * normal(rng, T, D)).astype(np.float32)
    v = normal(rng, T, D)
    w = -np.logspace(-5, 1, D).astype(np.float32)
    y, state = wkv(kernels, k, v, w, np.zeros(D, np.float32), 1)
    assert np.isfinite(state).all()
    assert rel_l2(y, reference.wkv_parallel(*f64(k, v, w, np.zeros(D)))) < 2e-6


def test_slow_decays_do_not_drift(kernels: ModuleType, rng: np.random.Generator) -> None:
    """A largest exponent that is lowered 20,000 times, and one that is replaced as often: by adding
    w to it in float32 the result would be off by 4e-4.
    """
    T, D = 20_000, 32
    w, u = np.full(D, -1.7e-5, np.float32), np.zeros(D, np.float32)
    k = 9 + 0.5 * normal(rng, T, D)
    k[:, : D // 2] = 9
    k[0, D // 2 :] = 15
    v = np.linspace(0, 1, T, dtype=np.float32)[:, None] + np.float32(0.1) * normal(rng, T, D)
    y, _ = wkv(kernels, k, v, w, u, 1)
    start = np.stack([np.zeros(D), np.zeros(D), np.full(D, -np.inf)])
    want, _ = reference.wkv_scan(*f64(k, v, w, u), start)
    assert rel_l2(y, want) < 5e-6


@pytest.mark.parametrize("rate", [0.0, -1e-30, -1e5, -1e30])
def test_decays_of_any_size(kernels: ModuleType, rng: np.random.Generator, rate: float) -> None:
    T, D = 50, 16
    k, v, w = normal(rng, T, D), normal(rng, T, D), np.full(D, rate, np.float32)
    y, state = wkv(kernels, k, v, w, np.zeros(D, np.float32), 1)
    assert np.isfinite(state).all()
    assert rel_l2(y, reference.wkv_parallel(*f64(k, v, w, np.zeros(D)))) < 2e-6


def test_a_silent_channel_leaves_no_subnormal_numbers(kernels: ModuleType) -> None:
    """Values that are zero from some time on, while every key is larger than all before."""
    T, D = 200, 16
    k = np.arange(T, dtype=np.float32)[:, None] * np.ones(D, np.float32)
    v = np.zeros((T, D), np.float32)
    v[0] = 1
    _, state = wkv(kernels, k, v, np.full(D, -1.0, np.float32), np.zeros(D, np.float32), 1)
    assert not state[:, 0].any()


# ---- Mamba


def selective(
    kernels: ModuleType,
    x: np.ndarray,
    dt: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    rates: np.ndarray,
    skip: np.ndarray,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    state = np.zeros((-(-x.shape[1] // 16), b.shape[1], 16), np.float32)
    tiles = channel_tiles(rates)
    y = kernels.selective_scan(x, dt, b, c, tiles, pad_lanes(skip), state, threads=threads)
    return y, state


@cache
def selective_cases(D: int, N: int) -> list[tuple[list[np.ndarray], np.ndarray, np.ndarray]]:
    """What the scan is given at every length, its outputs, and the state it leaves."""
    rng, cases = np.random.default_rng(SEED), []
    rates, skip = -np.exp(normal(rng, D, N)), normal(rng, D)
    for T in LENGTHS:
        x, dt = normal(rng, T, D), 2 * normal(rng, T, D) - 2
        given = [x, dt, normal(rng, T, N), normal(rng, T, N), rates, skip]
        _, last = reference.selective_scan(*f64(*given), np.zeros((D, N)))
        cases.append((given, reference.selective_parallel(*f64(*given)), last))
    return cases


@over_threads
@pytest.mark.parametrize(("D", "N"), [(1, 1), (16, 16), (20, 5), (70, 3)])
def test_selective_scan(kernels: ModuleType, D: int, N: int, threads: int) -> None:
    for (x, dt, b, c, rates, skip), want, last in selective_cases(D, N):
        y, state = selective(
            kernels, strided_rows(x), strided_rows(dt), strided_rows(b), c, rates, skip, threads
        )
        assert rel_l2(y, want) < 2e-6
        assert rel_l2(state.transpose(0, 2, 1).reshape(-1, N)[:D], last) < 2e-6


def test_a_worked_selection(kernels: ModuleType) -> None:
    """dt = 0: d = ln 2; A = -1 halves, A = -2 quarters. s = d x: (8, 8) d, then (4, 2) d."""
    x = np.array([[8], [0]], np.float32)
    one = np.ones((2, 2), np.float32)
    c = np.array([[1, 0], [1, 10]], np.float32)
    rates, skip = np.array([[-1, -2]], np.float32), np.array([0.5], np.float32)
    y, _ = selective(kernels, x, np.zeros((2, 1), np.float32), one, c, rates, skip)
    d = np.log(2)
    np.testing.assert_allclose(y, [[8 * d + 4], [24 * d]], rtol=1e-6)


def test_small_and_large_steps(kernels: ModuleType, rng: np.random.Generator) -> None:
    """Steps from e^-100, where nothing moves, to 1e4, where everything is replaced."""
    T, D, N = 300, 32, 4
    dt = np.geomspace(1e-2, 1e4, D).astype(np.float32) * np.sign(normal(rng, T, D))
    dt[:, :4] = -100
    rates = np.array([-1e-4, -1, -16, -1e30], np.float32) * np.ones((D, 1), np.float32)
    x, b, c = normal(rng, T, D), normal(rng, T, N), normal(rng, T, N)
    skip = np.zeros(D, np.float32)
    y, state = selective(kernels, x, dt, b, c, rates, skip)
    assert np.isfinite(state).all()
    want = reference.selective_parallel(*f64(x, dt, b, c, rates, skip))
    for channel in range(4, D):
        assert rel_l2(y[:, channel], want[:, channel]) < 5e-6
    assert not y[:, :4].any()
    assert np.abs(want[:, :4]).max() < 1e-30


def test_slow_states_do_not_drift(kernels: ModuleType, rng: np.random.Generator) -> None:
    """A factor e^(d A) just below 1, the same for 20,000 steps: rounded to float32 first, it would
    put the result off by 3e-4.
    """
    T, D = 20_000, 16
    dt = np.full((T, D), -7.0, np.float32)  # d = 9.1e-4
    x = 1 + 0.5 * normal(rng, T, D)
    b = c = np.ones((T, 1), np.float32)
    rates, skip = -np.logspace(-2, 1, D).astype(np.float32)[:, None], np.zeros(D, np.float32)
    y, _ = selective(kernels, x, dt, b, c, rates, skip)
    want, _ = reference.selective_scan(*f64(x, dt, b, c, rates, skip), np.zeros((D, 1)))
    assert rel_l2(y, want) < 1e-5


def test_a_silent_input_leaves_no_subnormal_numbers(kernels: ModuleType) -> None:
    T, D, N = 3000, 16, 2
    x = np.zeros((T, D), np.float32)
    x[0] = 1
    one = np.ones((T, N), np.float32)
    rates = -np.ones((D, N), np.float32)
    y, state = selective(kernels, x, x * 0 - 2, one, one, rates, np.zeros(D, np.float32))
    assert not state.any()
    assert not ((y != 0) & (np.abs(y) < SUBNORMAL)).any()


@pytest.mark.parametrize("x", [-200.0, -79.0, -20.0, -1.0, 0.0, 1e-3, 1.0, 20.0, 1e4])
def test_softplus(kernels: ModuleType, x: float) -> None:
    """Seen through a scan of one step: y = d."""
    one = np.ones((1, 1), np.float32)
    y, _ = selective(kernels, one, np.float32(x) * one, one, one, -one, one[0] * 0)
    want = np.logaddexp(0.0, float(np.float32(x)))
    np.testing.assert_allclose(y, [[want]], rtol=5e-7, atol=1e-34)


# ---- cut anywhere


def linear_parts(
    rng: np.random.Generator, T: int, D: int, kernels: ModuleType = chosen, threads: int = 1
) -> tuple[np.ndarray, Call]:
    H, f = 2, 3
    q, k, v = normal(rng, T, H * f), normal(rng, T, H * f), normal(rng, T, H * D)
    decay = np.array([0.9, 1.0], np.float32)

    def call(first: int, last: int, state: np.ndarray) -> np.ndarray:
        rows = slice(first, last)
        options = {"position": first, "taylor": True, "eps": 1e-6, "threads": threads}
        return kernels.linear_scan(q[rows], k[rows], v[rows], state, decay, **options)

    return linear_start(H, 10, D + 1), call


def wkv_parts(
    rng: np.random.Generator, T: int, D: int, kernels: ModuleType = chosen, threads: int = 1
) -> tuple[np.ndarray, Call]:
    k, v = 3 * normal(rng, T, D), normal(rng, T, D)
    w, u = pad_lanes(-np.exp(normal(rng, D))), pad_lanes(normal(rng, D))

    def call(first: int, last: int, state: np.ndarray) -> np.ndarray:
        return kernels.wkv_scan(k[first:last], v[first:last], w, u, state, threads=threads)

    return wkv_start(D), call


def selective_parts(
    rng: np.random.Generator, T: int, D: int, kernels: ModuleType = chosen, threads: int = 1
) -> tuple[np.ndarray, Call]:
    x, dt, b, c = normal(rng, T, D), normal(rng, T, D), normal(rng, T, 3), normal(rng, T, 3)
    rates, skip = channel_tiles(-np.exp(normal(rng, D, 3))), pad_lanes(normal(rng, D))

    def call(first: int, last: int, state: np.ndarray) -> np.ndarray:
        rows = slice(first, last)
        given = (x[rows], dt[rows], b[rows], c[rows], rates, skip, state)
        return kernels.selective_scan(*given, threads=threads)

    return np.zeros((-(-D // 16), 3, 16), np.float32), call


@pytest.mark.parametrize("parts", [linear_parts, wkv_parts, selective_parts])
@given(T=st.integers(1, 200), cuts=st.lists(st.integers(0, 200), max_size=5), D=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_any_split_gives_the_same_bits(
    parts: Callable[..., tuple[np.ndarray, Call]], T: int, cuts: list[int], D: int
) -> None:
    start, call = parts(np.random.default_rng(T), T, D)
    once, state = start.copy(), start.copy()
    whole = call(0, T, once)
    edges = sorted({0, T, *(cut for cut in cuts if cut < T)})
    got = [call(a, b, state) for a, b in pairwise(edges)]
    assert np.array_equal(np.concatenate(got), whole)
    assert np.array_equal(state, once)


@pytest.mark.parametrize(
    ("parts", "T", "D"),
    [(linear_parts, 900, 120), (wkv_parts, 200, 70), (selective_parts, 64, 600)],
)
def test_bits_do_not_depend_on_threads(
    kernels: ModuleType, parts: Callable[..., tuple[np.ndarray, Call]], T: int, D: int
) -> None:
    """With enough work that there are threads."""
    results = []
    for threads in (1, 2, 3, 4):
        state, call = parts(np.random.default_rng(7), T, D, kernels=kernels, threads=threads)
        results.append((call(0, T, state), state))
    for y, state in results[1:]:
        assert np.array_equal(y, results[0][0])
        assert np.array_equal(state, results[0][1])


# ---- refusals


def test_shapes_that_do_not_fit_are_named(kernels: ModuleType) -> None:
    x, state = np.zeros((4, 6), np.float32), np.zeros((2, 8, 16), np.float32)
    with pytest.raises(ValueError, match=r"linear_scan: k has shape \[4, 5\] but needs \[4, 6\]"):
        kernels.linear_scan(x, x[:, :5], x, state)
    with pytest.raises(ValueError, match=r"state has shape \[2, 8, 16\] but needs \[2, 16, 16\]"):
        kernels.linear_scan(x, x, x, state, taylor=True)
    with pytest.raises(ValueError, match="6 columns cannot be cut into 4 heads"):
        kernels.linear_scan(x, x, x, np.zeros((4, 8, 16), np.float32))
    with pytest.raises(ValueError, match=r"decay has shape \[1\] but needs \[2\]"):
        kernels.linear_scan(x, x, x, state, np.ones(1, np.float32))
    tile = np.zeros((1, 16), np.float32)
    with pytest.raises(ValueError, match=r"wkv_scan: state has shape .* needs \[1, 4, 16\]"):
        kernels.wkv_scan(x, x, tile, tile, state)
    with pytest.raises(ValueError, match=r"selective_scan: rates has shape .* \[1, 6, 16\]"):
        kernels.selective_scan(x, x, x, x, state, tile, state)
    with pytest.raises(ValueError, match="threads is 0"):
        kernels.wkv_scan(x, x, tile, tile, np.zeros((1, 4, 16), np.float32), threads=0)
