"""Gated convolutions by transform and by direct sums."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import EPS, SEED, causal, misaligned, over_threads, rel_l2, strided_tiles
from hypothesis import given, settings
from hypothesis import strategies as st

from hyena_cpu import kernels as chosen
from hyena_cpu.reference import conv as reference

# Around the sizes where other engines had limits, and prime or twice a prime.
AWKWARD = [8191, 8192, 8193, 8755, 8760, 4099, 16381, 16384, 16385, 65536, 1 << 17]


def bound(length: int) -> float:
    """Promised relative L2 error of a causal convolution of this length in float32."""
    return float(0.6 * EPS * np.sqrt(np.log2(2 * max(length, 2))))


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def decaying(rng: np.random.Generator, groups: int, K: int) -> np.ndarray:
    """Taps [groups, K, 16] of unit energy, decaying with time constant K / 4."""
    taps = rng.standard_normal((groups, K, 16)) * np.exp(-4 * np.arange(K) / K)[:, None]
    return (taps / np.linalg.norm(taps, axis=1, keepdims=True)).astype(np.float32)


def by_transform(kernels: ModuleType, z: np.ndarray, taps: np.ndarray, **options) -> np.ndarray:
    """The causal convolution of whole sequences by long_conv, whatever the plan says."""
    size = kernels.transform_size(z.shape[1] + min(z.shape[1], taps.shape[1]) - 1)
    return kernels.long_conv(z, kernels.spectrum(taps[:, : max(1, size // 2)], size), **options)


def test_worked_example(kernels: ModuleType) -> None:
    v, h = np.zeros((1, 4, 16), np.float32), np.zeros((1, 4, 16), np.float32)
    v[0, :, 5], h[0, :, 5] = [1, 0, 2, 1], [1, 0.5, 0.25, 0.125]
    want = np.zeros_like(v)
    want[0, :, 5] = [1, 0.5, 2.25, 2.125]
    np.testing.assert_array_equal(kernels.direct_conv(v, h), want)
    np.testing.assert_allclose(by_transform(kernels, v, h), want, atol=1e-6)
    wrapped = kernels.long_conv(v, kernels.spectrum(h, 4))
    np.testing.assert_allclose(wrapped[0, :, 5], [0, 0, 2.125, 2.125], atol=1e-6)


def test_every_small_length(kernels: ModuleType, rng: np.random.Generator) -> None:
    z, taps = normal(rng, 1, 70, 16), decaying(rng, 1, 70)
    for S in range(1, 71):
        for K in {1, 2, S // 2 + 1, S, 70}:
            want = reference.direct_conv(z[:, :S], taps[:, :K])
            assert rel_l2(kernels.direct_conv(z[:, :S], taps[:, :K]), want) <= 2e-7
            assert rel_l2(by_transform(kernels, z[:, :S], taps[:, :K]), want) <= 3e-7


@pytest.mark.parametrize("S", [127, 128, 129, 511, 521, 1024, 2039, 2048])
def test_error_against_direct_sums_in_float64(
    kernels: ModuleType, rng: np.random.Generator, S: int
) -> None:
    z, taps = normal(rng, 1, S, 16), decaying(rng, 1, S)
    want = reference.direct_conv(z, taps)
    assert rel_l2(kernels.direct_conv(z, taps), want) <= bound(S)
    assert rel_l2(by_transform(kernels, z, taps), want) <= bound(S)


@cache
def awkward(S: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, taps and outputs, for all builds."""
    rng = np.random.default_rng(SEED)
    z, taps = normal(rng, 1, S, 16), decaying(rng, 1, S)
    return z, taps, causal(z, taps)


@pytest.mark.parametrize("S", AWKWARD)
def test_error_at_awkward_lengths(kernels: ModuleType, S: int) -> None:
    z, taps, want = awkward(S)
    assert rel_l2(by_transform(kernels, z, taps), want) <= bound(S)


def test_error_at_a_million(rng: np.random.Generator) -> None:
    z, taps = normal(rng, 1, 1 << 20, 16), decaying(rng, 1, 1 << 20)
    y = by_transform(chosen.module, z, taps, threads=2)
    lanes = [0, 15]
    assert rel_l2(y[..., lanes], causal(z[..., lanes], taps[..., lanes])) <= bound(1 << 20)


@over_threads
@pytest.mark.parametrize("start", [0, 1, 37, 99, 100])
@pytest.mark.parametrize("K", [1, 30, 100, 150])
def test_gates_skip_and_start(
    kernels: ModuleType, rng: np.random.Generator, start: int, K: int, threads: int
) -> None:
    G, S = 3, 100
    z, pre, taps = normal(rng, G, S, 16), normal(rng, G, S, 16), decaying(rng, G, K)
    post, skip = normal(rng, G, S - start, 16), normal(rng, G, 16)
    lags = min(K, S)
    spectrum = kernels.spectrum(taps[:, :lags], kernels.transform_size(S - start + lags + S))
    for gates in (
        {},
        {"skip": skip},
        {"pre": misaligned(pre)},
        {"post": strided_tiles(post)},
        {"skip": skip, "pre": strided_tiles(pre), "post": post},
    ):
        want = reference.direct_conv(z, taps, start, **gates)
        for view in (z, misaligned(z), strided_tiles(z)):
            through = kernels.long_conv(view, spectrum, start, threads=threads, **gates)
            direct = kernels.direct_conv(view, taps, start, threads=threads, **gates)
            assert rel_l2(through, want) <= 4e-7
            assert rel_l2(direct, want) <= 3e-7


@over_threads
@pytest.mark.parametrize("way", ["direct sums", "by time", "by channel"])
def test_spans_are_sequences_by_themselves(
    kernels: ModuleType, rng: np.random.Generator, way: str, threads: int
) -> None:
    shortest = 1 << 18 if kernels.lanes == 16 else 1 << 20  # of those by channel
    size = {"direct sums": 0, "by time": 512, "by channel": shortest}[way]
    G, taps, skip = 2, decaying(rng, 2, 100), normal(rng, 2, 16)
    spans = np.array([[0, 1], [1, 60], [64, 65], [65, 200], [220, 300]])
    spans = spans[1::2] if way == "by channel" else spans  # each of which takes as long as size
    z, pre, post = (normal(rng, G, 300, 16) for _ in range(3))
    spectrum = kernels.spectrum(taps, size) if size else None
    out = np.full((G, 300, 16), 7, np.float32)

    def convolve(rows: slice, to: np.ndarray, spans: np.ndarray | None = None) -> None:
        gates = {"skip": skip, "pre": pre[:, rows], "post": post[:, rows], "out": to}
        if spectrum is None:
            kernels.direct_conv(z[:, rows], taps, **gates, spans=spans, threads=threads)
        else:
            kernels.long_conv(z[:, rows], spectrum, **gates, spans=spans, threads=threads)

    convolve(slice(None), out, spans)
    want = np.full((G, 300, 16), 7, np.float32)
    for first, last in spans:
        convolve(slice(first, last), want[:, first:last])
    np.testing.assert_array_equal(out, want)
    for wrong in ([[0, 0]], [[5, 9], [8, 12]], [[0, 301]], [[-1, 3]], [3, 4]):
        with pytest.raises(ValueError, match="spans need to be rows"):
            convolve(slice(None), out, np.array(wrong))


@pytest.mark.parametrize("S", [5, 900, 9000])
def test_bits_do_not_depend_on_threads_or_companions(
    kernels: ModuleType, rng: np.random.Generator, S: int
) -> None:
    z, taps, post = normal(rng, 4, S, 16), decaying(rng, 4, min(S, 700)), normal(rng, 4, S, 16)
    spectrum = kernels.spectrum(taps, kernels.transform_size(2 * S))
    for kernel, filters in ((kernels.long_conv, spectrum), (kernels.direct_conv, taps)):
        whole = kernel(z, filters, post=post)
        for threads in (2, 3):
            np.testing.assert_array_equal(kernel(z, filters, post=post, threads=threads), whole)
        for g in range(4):
            one = slice(g, g + 1)
            np.testing.assert_array_equal(kernel(z[one], filters[one], post=post[one]), whole[one])


@pytest.mark.parametrize(("S", "period"), [(37, 74), (37, 41), (4, 4), (700, 1400)])
def test_filter_on_a_circle_of_any_length(
    kernels: ModuleType, rng: np.random.Generator, S: int, period: int
) -> None:
    """Wrap-around at a period that is no transform size, by taps at negative lags."""
    z, taps = normal(rng, 1, S, 16), normal(rng, 1, period, 16)
    size = kernels.transform_size(2 * S)
    folded = np.zeros((1, size, 16), np.float32)
    folded[:, :S] = taps[:, :S]
    folded[:, size - S + 1 :] = -taps[:, period - S + 1 :]
    product = np.fft.rfft(z, period, axis=1) * np.fft.rfft(taps, axis=1)
    want = np.fft.irfft(product, period, axis=1)[:, :S]
    assert rel_l2(kernels.long_conv(z, kernels.spectrum(folded, size)), want) <= 5e-7


def test_matches_the_reference_where_it_wraps(
    kernels: ModuleType, rng: np.random.Generator
) -> None:
    for S in (1, 3, 5, 6, 20, 33, 40):  # below, at and above half the size
        z, taps = normal(rng, 2, S, 16), normal(rng, 2, 40, 16)
        want = reference.long_conv(z, reference.spectrum(taps, 40))
        assert rel_l2(kernels.long_conv(z, kernels.spectrum(taps, 40)), want) <= 4e-7


def test_long_conv_in_place(kernels: ModuleType, rng: np.random.Generator) -> None:
    for S in (50, 9000):
        z, pre, skip = normal(rng, 2, S, 16), normal(rng, 2, S, 16), normal(rng, 2, 16)
        spectrum = kernels.spectrum(decaying(rng, 2, S), kernels.transform_size(2 * S))
        want = kernels.long_conv(z, spectrum, pre=pre, post=pre, skip=skip)
        for target in (z, pre):
            args = [z.copy(), pre.copy()]
            out = args[0] if target is z else args[1]
            got = kernels.long_conv(
                args[0], spectrum, pre=args[1], post=args[1], skip=skip, out=out
            )
            assert got is out
            np.testing.assert_array_equal(got, want)


@settings(max_examples=30, deadline=None)
@given(S=st.integers(1, 700), K=st.integers(1, 700), cuts=st.lists(st.integers(0, 700), max_size=4))
def test_direct_sums_have_the_same_bits_however_split(S: int, K: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(S)
    z, taps, skip = normal(rng, 1, S, 16), decaying(rng, 1, K), normal(rng, 1, 16)
    whole = chosen.direct_conv(z, taps, skip=skip)
    edges = [0, *sorted(min(cut, S) for cut in cuts), S]
    parts = [
        chosen.direct_conv(z[:, :end], taps, start, skip=skip)
        for start, end in itertools.pairwise(edges)
    ]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), whole)
    last = chosen.direct_conv(z, taps, S - 1, skip=skip)
    np.testing.assert_array_equal(last, whole[:, -1:])
    oldest = max(0, S - K)  # rows before it are out of every tap's reach
    np.testing.assert_array_equal(
        chosen.direct_conv(z[:, oldest:], taps, S - 1 - oldest, skip=skip), last
    )


def test_token_by_token_equals_all_at_once(kernels: ModuleType, rng: np.random.Generator) -> None:
    """One new row against a history that is a growing view of a larger buffer."""
    buffer, taps, pre = normal(rng, 2, 400, 16), decaying(rng, 2, 300), normal(rng, 2, 400, 16)
    whole = kernels.direct_conv(buffer[:, :350], taps, pre=pre[:, :350])
    for t in range(350):
        now = kernels.direct_conv(buffer[:, : t + 1], taps, t, pre=pre[:, : t + 1])
        np.testing.assert_array_equal(now, whole[:, t : t + 1])


@given(new=st.integers(1, 10**6), history=st.integers(0, 10**6), taps=st.integers(1, 10**6))
def test_plan_is_direct_or_misses_the_wrap_around(new: int, history: int, taps: int) -> None:
    size = chosen.conv_plan(new, history, taps)
    length = new + history
    if size:
        assert size == chosen.transform_size(max(length, new + min(taps, length) - 1))
    else:
        # Direct sums are for few products: never more than what a transform would cost.
        assert new == 1 or new * min(taps, length) < 10**9
    assert chosen.conv_plan(1, history, taps) == 0


@settings(max_examples=25, deadline=None)
@given(new=st.integers(1, 600), history=st.integers(0, 600), taps=st.integers(1, 1200))
def test_plans_give_the_causal_convolution(new: int, history: int, taps: int) -> None:
    rng = np.random.default_rng(new)
    S = new + history
    z, h = normal(rng, 1, S, 16), decaying(rng, 1, taps)
    size = chosen.conv_plan(new, history, taps) or chosen.transform_size(S + new + min(taps, S))
    kept = min(taps, size - new + 1)
    got = chosen.long_conv(z, chosen.spectrum(h[:, :kept], size), history)
    want = causal(z, h)[:, history:]
    scale = np.linalg.norm(causal(z, h)) * np.sqrt(new / S)
    assert np.linalg.norm(got - want) <= 1e-6 * scale


def test_plan_refuses_what_no_transform_holds(kernels: ModuleType) -> None:
    assert kernels.conv_plan(2**30, 0, 2**30) == 2**31
    with pytest.raises(ValueError, match=rf"conv_plan: .*{2**31} points: convolve shorter chunks"):
        kernels.conv_plan(2**30 + 1, 0, 2**40)
    with pytest.raises(ValueError, match="conv_plan: needs new >= 1"):
        kernels.conv_plan(0, 5, 5)


def test_offsets_beyond_32_bits(
    kernels: ModuleType, rng: np.random.Generator, tmp_path: Path
) -> None:
    """Groups 2^32 floats apart, in a sparse file of which a few pages exist."""
    apart, S = 2**32 + 16, 40
    store = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=(apart + S * 16,))
    shape, strides = (2, S, 16), (apart * 4, 64, 4)
    far = np.lib.stride_tricks.as_strided(np.asarray(store), shape, strides)
    near, taps = normal(rng, 2, S, 16), decaying(rng, 2, S)
    far[...] = near
    want = by_transform(kernels, near, taps)
    np.testing.assert_array_equal(by_transform(kernels, far, taps), want)
    np.testing.assert_array_equal(kernels.direct_conv(far, taps), kernels.direct_conv(near, taps))
    by_transform(kernels, near, taps, out=far)
    np.testing.assert_array_equal(far, want)


def test_wrong_shapes_are_named(kernels: ModuleType) -> None:
    z = np.zeros((2, 10, 16), np.float32)
    spectrum = kernels.spectrum(z, 20)
    with pytest.raises(ValueError, match=r"long_conv: spectrum has shape \[1, 20, 16\] but z has"):
        kernels.long_conv(z, spectrum[:1])
    with pytest.raises(ValueError, match=r"long_conv: spectrum has shape \[2, 8, 16\] but z has"):
        kernels.long_conv(z, spectrum[:, :8])
    with pytest.raises(ValueError, match="long_conv: size is 18"):
        kernels.long_conv(z, spectrum[:, :18])
    with pytest.raises(ValueError, match="start is 11 but z has 10 rows"):
        kernels.long_conv(z, spectrum, 11)
    with pytest.raises(ValueError, match=r"post has shape \[2, 10, 16\] but needs \[2, 7, 16\]"):
        kernels.direct_conv(z, z, 3, post=z)
    with pytest.raises(ValueError, match=r"direct_conv: taps has shape \[1, 10, 16\]"):
        kernels.direct_conv(z, z[:1])
    with pytest.raises(ValueError, match=r"direct_conv: skip has shape \[16\] but needs \[2, 16\]"):
        kernels.direct_conv(z, z, skip=np.zeros(16, np.float32))
    with pytest.raises(ValueError, match="direct_conv: out overlaps an input"):
        kernels.direct_conv(z, z.copy(), out=z)
    with pytest.raises(TypeError):
        kernels.direct_conv(z.astype(np.float64), z)
