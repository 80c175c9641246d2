"""Attention over a cache, appending to it, and rotary positions."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
from conftest import EPS, misaligned, over_threads, rel_l2, strided_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.reference import attention

Floats = npt.NDArray[np.float32]


def empty_cache(H: int, slots: int, hd: int) -> tuple[Floats, Floats]:
    """Keys and values of nothing but NaN: slots that were not written must not be felt."""
    slots = -(-slots // 16) * 16
    keys = np.full((H, slots // 16, hd, 16), np.nan, np.float32)
    return keys, np.full((H, slots, hd), np.nan, np.float32)


def filled_cache(
    kernels: ModuleType, rng: np.random.Generator, H: int, t: int, hd: int, spare: int = 0
) -> tuple[Floats, Floats]:
    keys, values = empty_cache(H, t + spare, hd)
    k, v = rng.standard_normal((2, t, H * hd), np.float32)
    kernels.kv_append(keys, values, k, v, 0)
    return keys, values


@pytest.mark.parametrize("hd", [*range(1, 20), 24, 31, 32, 33, 48, 64, 80, 128, 129])
def test_every_head_width(kernels: ModuleType, rng: np.random.Generator, hd: int) -> None:
    keys, values = filled_cache(kernels, rng, 2, 150, hd, spare=20)
    q = rng.standard_normal((150, 2 * hd), np.float32)
    want = attention.attend(q, keys, values, 0)
    got = kernels.attend(q, keys, values, 0)
    assert rel_l2(got, want) < 4 * EPS
    assert np.abs(got - want).max() < 16 * EPS
    np.testing.assert_array_equal(kernels.attend(q[149:], keys, values, 149), got[149:])


@pytest.mark.parametrize("n", [*range(1, 41), 47, 48, 49, 127, 128, 129, 200])
def test_every_query_count(kernels: ModuleType, rng: np.random.Generator, n: int) -> None:
    for first in (0, 1, 15, 16, 119):
        keys, values = filled_cache(kernels, rng, 2, first + n, 8)
        q = 2 * rng.standard_normal((n, 16), np.float32)
        want = attention.attend(q, keys, values, first)
        assert rel_l2(kernels.attend(q, keys, values, first), want) < 6 * EPS


@pytest.mark.parametrize("window", [0, 1, 2, 5, 16, 31, 127, 128, 129, 300])
@pytest.mark.parametrize("start", [0, 1, 17, 130, 140])
def test_windows_and_starts(
    kernels: ModuleType, rng: np.random.Generator, window: int, start: int
) -> None:
    keys, values = filled_cache(kernels, rng, 3, 290, 16)
    nothing = np.full((start, 48), np.nan, np.float32)
    kernels.kv_append(keys, values, nothing, nothing, 0)
    q = rng.standard_normal((150, 48), np.float32)
    want = attention.attend(q, keys, values, 140, start, window)
    got = kernels.attend(q, keys, values, 140, start, window)
    assert rel_l2(got, want) < 6 * EPS
    for i in (0, 1, 77, 149):
        one = kernels.attend(q[i : i + 1], keys, values, 140 + i, start, window)
        np.testing.assert_array_equal(one[0], got[i])


@over_threads
@pytest.mark.parametrize("hd", [16, 20])
def test_bits_do_not_depend_on_split_or_threads(
    kernels: ModuleType, rng: np.random.Generator, hd: int, threads: int
) -> None:
    t, H = 333, 3
    keys, values = filled_cache(kernels, rng, H, t, hd, spare=40)
    q = rng.standard_normal((t, H * hd), np.float32)
    whole = kernels.attend(q, keys, values, 0)
    np.testing.assert_array_equal(kernels.attend(q, keys, values, 0, threads=threads), whole)
    for cuts in ([1] * t, [7] * 47 + [4], [100, 1, 132, 100], [48, 285]):
        parts, at = [], 0
        for n in cuts:
            parts.append(kernels.attend(q[at : at + n], keys, values, at, threads=threads))
            at += n
        assert at == t
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 60),
    first=st.integers(0, 200),
    hd=st.integers(1, 20),
    window=st.integers(0, 70),
    threads=st.integers(1, 4),
    data=st.data(),
)
def test_calls_at_random(
    n: int, first: int, hd: int, window: int, threads: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, first))
    rng = np.random.default_rng([n, first, hd, window])
    keys, values = filled_cache(chosen, rng, 2, first + n, hd)
    q = rng.standard_normal((n, 2 * hd), np.float32)
    got = chosen.attend(q, keys, values, first, start, window, threads=threads)
    want = attention.attend(q, keys, values, first, start, window)
    # Values of both signs may cancel: rounding is relative to their sizes, not to what is left.
    sizes = attention.attend(q, keys, np.abs(values), first, start, window)
    assert np.linalg.norm(got - want) < 8 * EPS * np.linalg.norm(sizes)


def test_later_tokens_are_not_felt(kernels: ModuleType, rng: np.random.Generator) -> None:
    keys, values = filled_cache(kernels, rng, 2, 140, 16)
    q = rng.standard_normal((140, 32), np.float32)
    clean = kernels.attend(q, keys, values, 0)
    bad = np.full((1, 32), np.inf, np.float32)
    kernels.kv_append(keys, values, bad, bad, 77)
    got = kernels.attend(q, keys, values, 0)
    np.testing.assert_array_equal(got[:77], clean[:77])
    assert np.isnan(got[77:]).all()


def test_large_scores(kernels: ModuleType, rng: np.random.Generator) -> None:
    keys, values = filled_cache(kernels, rng, 1, 200, 16)
    q = 500 * rng.standard_normal((200, 16), np.float32)
    got = kernels.attend(q, keys, values, 0)
    assert rel_l2(got, attention.attend(q, keys, values, 0)) < 2e-3  # scores near 1e3 round at 6e-5


def test_equal_scores_give_the_mean(kernels: ModuleType, rng: np.random.Generator) -> None:
    keys, values = filled_cache(kernels, rng, 1, 200, 16, spare=50)
    got = kernels.attend(np.zeros((1, 16), np.float32), keys, values, 199)
    np.testing.assert_allclose(got[0], values[0, :200].astype(np.float64).mean(axis=0), atol=EPS)


def test_worked_numbers(kernels: ModuleType) -> None:
    keys, values = empty_cache(1, 16, 4)
    k = np.array([[0, 0, 0, 0], [2, 0, 0, 0]], np.float32)
    v = np.array([[1, 0, 0, 5], [0, 1, 0, 9]], np.float32)
    kernels.kv_append(keys, values, k, v, 0)
    q = np.array([[1, 7, 7, 7], [1, 0, 0, 0]], np.float32)
    p = 1 / (1 + np.exp(-1.0))  # scores 0 and 2 / sqrt(4)
    want = [[1, 0, 0, 5], [1 - p, p, 0, 5 + 4 * p]]
    np.testing.assert_allclose(kernels.attend(q, keys, values, 0), want, rtol=3e-7)


@pytest.mark.parametrize("at", [0, 1, 15, 16, 21])
@pytest.mark.parametrize("n", [0, 1, 2, 16, 17, 37])
def test_append(kernels: ModuleType, rng: np.random.Generator, at: int, n: int) -> None:
    got, want = empty_cache(3, 64, 5), empty_cache(3, 64, 5)
    qkv = rng.standard_normal((n, 45), np.float32)
    kernels.kv_append(*got, qkv[:, 15:30], qkv[:, 30:], at)
    attention.kv_append(*want, qkv[:, 15:30], qkv[:, 30:], at)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_array_equal(got[1], want[1])


def test_strided_queries_and_outputs(kernels: ModuleType, rng: np.random.Generator) -> None:
    keys, values = filled_cache(kernels, rng, 2, 60, 24)
    q = rng.standard_normal((60, 48), np.float32)
    want = kernels.attend(q, keys, values, 0)
    out = strided_rows(np.zeros_like(q))
    frame = out.base.copy()
    assert kernels.attend(strided_rows(q), keys, values, 0, out=out) is out
    frame[:, 3:51] = want
    np.testing.assert_array_equal(out.base, frame)
    got = kernels.attend(misaligned(q), misaligned(keys), misaligned(values), 0)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(kernels.attend(q, keys, values, 0, out=q), want)


@pytest.mark.parametrize("hd", [2, 4, 6, 16, 30, 64, 66])
def test_rotary(kernels: ModuleType, rng: np.random.Generator, hd: int) -> None:
    positions = np.array([0, 1, 2, 100, 7, 99_999, 1_000_000_007])
    x = rng.standard_normal((7, 3 * hd), np.float32)
    want = attention.rotary(x, positions, 3, 10000.0)
    for view in (x.copy(), strided_rows(x), misaligned(x)):
        assert kernels.rotary(view, positions, 3, 10000.0) is view
        assert rel_l2(view, want) < EPS
        np.testing.assert_array_equal(view[0], x[0])


@pytest.mark.parametrize("dims", [2, 6, 16])
def test_rotary_of_some_dimensions(
    kernels: ModuleType, rng: np.random.Generator, dims: int
) -> None:
    positions = np.array([0, 1, 100, 99_999])
    x = rng.standard_normal((4, 3 * 16), np.float32)
    got = kernels.rotary(x.copy(), positions, 3, 10000.0, dims)
    assert rel_l2(got, attention.rotary(x, positions, 3, 10000.0, dims)) < EPS
    heads = x.reshape(4, 3, 16), got.reshape(4, 3, 16)
    np.testing.assert_array_equal(heads[1][..., dims:], heads[0][..., dims:])
    alone = np.ascontiguousarray(heads[0][..., :dims]).reshape(4, -1)
    turned = kernels.rotary(alone, positions, 3, 10000.0)
    np.testing.assert_array_equal(heads[1][..., :dims].reshape(4, -1), turned)


def test_rotary_pairs_the_halves(kernels: ModuleType) -> None:
    x = np.array([[1, 0, 0, 1]], np.float32)
    got = kernels.rotary(x, np.array([3]), 1, 100.0)  # angles 3 and 0.3
    want = [[np.cos(3), -np.sin(0.3), np.sin(3), np.cos(0.3)]]
    np.testing.assert_allclose(got, want, rtol=2e-7)


@over_threads
def test_rotary_bits(kernels: ModuleType, rng: np.random.Generator, threads: int) -> None:
    x = rng.standard_normal((500, 2 * 22), np.float32)
    positions = rng.integers(0, 5000, 500)
    whole = kernels.rotary(x.copy(), positions, 2, 10000.0)
    got = kernels.rotary(x.copy(), positions, 2, 10000.0, threads=threads)
    np.testing.assert_array_equal(got, whole)
    got = kernels.rotary(x[40:43].copy(), positions[40:43], 2, 10000.0)
    np.testing.assert_array_equal(got, whole[40:43])


def test_scores_depend_on_distance_alone(kernels: ModuleType, rng: np.random.Generator) -> None:
    q, k = rng.standard_normal((2, 1, 64), np.float32)
    dots = []
    for shift in (0, 10, 1000):
        a = kernels.rotary(q.copy(), np.array([5 + shift]), 1, 10000.0)
        b = kernels.rotary(k.copy(), np.array([2 + shift]), 1, 10000.0)
        dots.append(float(a[0].astype(np.float64) @ b[0]))
    np.testing.assert_allclose(dots, dots[0], atol=64 * EPS)


@pytest.mark.parametrize("hd", [5, 16, 64])
@pytest.mark.parametrize("window", [0, 1, 17, 200])
def test_chosen_queries_get_the_bits_of_all_queries(
    kernels: ModuleType, rng: np.random.Generator, hd: int, window: int
) -> None:
    keys, values = filled_cache(kernels, rng, 2, 700, hd)
    q = rng.standard_normal((700, 2 * hd), np.float32)
    whole = kernels.attend(q, keys, values, 0, 0, window)
    choices = [[0], [699], [5, 6], [0, 127, 128, 699], range(0, 700, 3), range(100, 150)]
    choices += [np.flatnonzero(rng.random(700) < p) for p in (0.02, 0.1, 0.5, 0.95, 1)]
    for at in (np.array(choice, np.int64) for choice in choices):
        for threads in (1, 2, 3):
            got = kernels.attend_at(q[at], at, keys, values, 0, window, threads=threads)
            np.testing.assert_array_equal(got, whole[at])
    at = np.array([20, 300, 301, 650])
    want = attention.attend_at(q[at], at, keys, values, 20, window)
    assert rel_l2(kernels.attend_at(q[at], at, keys, values, 20, window), want) < 8 * EPS
    none = kernels.attend_at(q[:0], np.zeros(0, np.int64), keys, values)
    assert none.shape == (0, 2 * hd)


def test_chosen_queries_do_not_feel_what_they_do_not_see(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    keys, values = filled_cache(kernels, rng, 2, 300, 16, spare=40)
    q = rng.standard_normal((3, 32), np.float32)
    at = np.array([10, 150, 290])
    clean = kernels.attend_at(q, at, keys, values)
    bad = np.full((1, 32), np.inf, np.float32)
    kernels.kv_append(keys, values, bad, bad, 151)
    got = kernels.attend_at(q, at, keys, values)
    np.testing.assert_array_equal(got[:2], clean[:2])
    assert np.isnan(got[2]).all()
    assert not np.isnan(clean).any()


def test_errors(kernels: ModuleType) -> None:
    keys, values = empty_cache(2, 32, 4)
    x = np.ones((3, 8), np.float32)
    with pytest.raises(ValueError, match=r"attend: q has shape \[3, 7\] but needs \[any, 8\]"):
        kernels.attend(x[:, :7], keys, values, 0)
    with pytest.raises(ValueError, match=r"values has shape \[2, 31, 4\] but needs \[2, 32, 4\]"):
        kernels.attend(x, keys, np.ones((2, 31, 4), np.float32), 0)
    with pytest.raises(ValueError, match=r"keys has shape \[2, 32, 4\]"):
        kernels.attend(x, values, values, 0)
    with pytest.raises(ValueError, match=r"attend: slots 30 \.\. 33 do not fit a cache of 32"):
        kernels.attend(x, keys, values, 30)
    with pytest.raises(ValueError, match="start is 5"):
        kernels.attend(x, keys, values, 4, 5)
    with pytest.raises(ValueError, match="window is -1"):
        kernels.attend(x, keys, values, 4, 0, -1)
    at = np.array([3, 4, 4])
    with pytest.raises(ValueError, match="attend_at: at does not increase: 4 follows 4"):
        kernels.attend_at(x, at, keys, values)
    with pytest.raises(ValueError, match=r"at has shape \[2\] but needs contiguous \[3\]"):
        kernels.attend_at(x, at[:2], keys, values)
    with pytest.raises(ValueError, match=r"attend_at: slots 32 \.\. 33 do not fit a cache of 32"):
        kernels.attend_at(x[:1], np.array([32]), keys, values)
    with pytest.raises(ValueError, match="start is 4 but needs to be in 0"):
        kernels.attend_at(x[:2], at[:2], keys, values, 4)
    with pytest.raises(TypeError):
        kernels.attend_at(x, np.arange(3.0), keys, values)
    with pytest.raises(ValueError, match=r"kv_append: slots -1 \.\. 2 do not"):
        kernels.kv_append(keys, values, x, x, -1)
    with pytest.raises(ValueError, match=r"kv_append: v has shape \[2, 8\] but needs \[3, 8\]"):
        kernels.kv_append(keys, values, x, x[:2], 0)
    with pytest.raises(ValueError, match="heads of even width"):
        kernels.rotary(x[:, :6], np.arange(3), 2, 10000.0)
    with pytest.raises(ValueError, match=r"positions has shape \[2\]"):
        kernels.rotary(x, np.arange(2), 2, 10000.0)
    for dims in (0, 3, 6):
        with pytest.raises(ValueError, match=f"dims is {dims} but needs to be even and at most"):
            kernels.rotary(x, np.arange(3), 2, 10000.0, dims)
    with pytest.raises(ValueError, match="base is"):
        kernels.rotary(x, np.arange(3), 2, 0.0)
    with pytest.raises(TypeError):
        kernels.rotary(x, np.arange(3.0), 2, 10000.0)
