"""One gated long convolution against scipy.fft and torch.fft, one thread.

    pytest bench/bench_conv.py --benchmark-only

y = post * (taps conv (pre * x)) on float32 [C, N], filter transforms computed beforehand for
everybody, padding to 2N. `gflops` is by convention: two real transforms of M = 2N points at
2.5 M log2 M each, everything else free. The floor is the larger of bytes over the bandwidth of
a plain copy (24 N bytes per channel: input, two gates, output, spectrum) and convention flops
over the fastest rate our direct sums reach in cache; both are measured in the same run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import pytest
import scipy.fft
from pytest_benchmark.fixture import BenchmarkFixture

from hyena_cpu import kernels
from hyena_cpu.longconv import LongConv

Array = np.ndarray
Conv = Callable[[], Array]
LENGTHS = {1 << 10: 64, 1 << 11: 64, 1 << 13: 32, 1 << 15: 16, 1 << 17: 16, 1 << 20: 16}
BLOCKS = (1, 4, 16, 64)


@functools.lru_cache(maxsize=1)
def problem(N: int) -> tuple[Array, Array, Array, Array]:
    """x, pre, post [C, N] and taps [C, N] of unit energy, decaying."""
    rng = np.random.default_rng(N)
    x, pre, post, taps = (rng.standard_normal((LENGTHS[N], N), np.float32) for _ in range(4))
    taps *= np.exp(-4 * np.arange(N, dtype=np.float32) / N)
    taps /= np.linalg.norm(taps, axis=1, keepdims=True)
    return x, pre, post, taps


def longconv(N: int) -> Conv:
    """The public operator: channels to tiles, convolution, and back."""
    x, pre, post, taps = problem(N)
    conv = LongConv(taps, threads=1)
    return lambda: conv(x, pre_gate=pre, post_gate=post)


def tile_kernel(N: int) -> Conv:
    """The kernel on tiles, as models use it."""
    x, pre, post, taps = (kernels.channels_to_tiles(a) for a in problem(N))
    spectrum, out = kernels.spectrum(taps, 2 * N), np.empty_like(x)
    channels = LENGTHS[N]

    def convolve() -> Array:
        kernels.long_conv(x, spectrum, pre=pre, post=post, out=out)
        return out

    convolve.finish = lambda z: kernels.tiles_to_channels(z, channels)  # type: ignore[attr-defined]
    return convolve


def scipy_fft(N: int, block: int) -> Conv:
    x, pre, post, taps = problem(N)
    spectrum, y = scipy.fft.rfft(taps, 2 * N), np.empty_like(x)

    def convolve() -> Array:
        for c in range(0, len(x), block):
            s = slice(c, c + block)
            product = scipy.fft.rfft(x[s] * pre[s], 2 * N)
            product *= spectrum[s]
            np.multiply(scipy.fft.irfft(product, 2 * N)[:, :N], post[s], out=y[s])
        return y

    return convolve


def torch_fft(N: int, block: int) -> Conv:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    x, pre, post, taps = (torch.from_numpy(a) for a in problem(N))
    spectrum, y = torch.fft.rfft(taps, 2 * N), torch.empty_like(x)

    def convolve() -> Array:
        for c in range(0, len(x), block):
            s = slice(c, c + block)
            product = torch.fft.rfft(x[s] * pre[s], 2 * N) * spectrum[s]
            torch.mul(torch.fft.irfft(product, 2 * N)[:, :N], post[s], out=y[s])
        return y.numpy()

    return convolve


def best_block(make: Callable[[int, int], Conv], N: int) -> tuple[Conv, int]:
    """The peer with the number of channels per call that suits it best."""
    tried = []
    for block in BLOCKS:
        if block <= LENGTHS[N]:
            conv = make(N, block)
            tried.append((seconds(conv, 2 if N > 1 << 16 else 5), block, conv))
    _, block, conv = min(tried, key=lambda one: one[:2])
    return conv, block


def seconds(f: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        f()
        times.append(time.perf_counter() - begin)
    return min(times)


@functools.lru_cache(maxsize=1)
def limits() -> tuple[float, float]:
    """Bytes per second of a plain copy (read and write counted) and flops per second in cache."""
    source = np.ones(1 << 26, np.float32)
    target = np.zeros_like(source)
    copy = 2 * source.nbytes / seconds(lambda: np.copyto(target, source), 4)
    z = np.ones((1, 512, 16), np.float32)
    history = kernels.direct_conv(z, z)
    rate = 512 * 513 * 16 / seconds(lambda: kernels.direct_conv(z, z, out=history), 200)
    return copy, rate


@pytest.mark.parametrize("peer", ["LongConv", "long_conv kernel", "scipy.fft", "torch.fft"])
@pytest.mark.parametrize("N", LENGTHS)
def test_long_conv(benchmark: BenchmarkFixture, N: int, peer: str) -> None:
    block = 0
    if peer == "LongConv":
        conv = longconv(N)
    elif peer == "long_conv kernel":
        conv = tile_kernel(N)
    else:
        conv, block = best_block(scipy_fft if peer == "scipy.fft" else torch_fft, N)
    got, want = getattr(conv, "finish", lambda y: y)(conv()), scipy_fft(N, 1)()
    assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)

    M, channels = 2 * N, LENGTHS[N]
    flops = 2 * 2.5 * M * np.log2(M) * channels
    bandwidth, rate = limits()
    benchmark.group = f"long_conv N={N}"
    benchmark.extra_info["peer"] = peer
    benchmark.extra_info["ours"] = peer == "LongConv"
    benchmark.pedantic(conv, rounds=3 if N > 1 << 16 else 15, warmup_rounds=1)
    median = float(benchmark.stats.stats.median)
    benchmark.extra_info["us_per_channel"] = median / channels * 1e6
    benchmark.extra_info["gflops"] = float(flops / median / 1e9)
    benchmark.extra_info["floor"] = float(max(24 * N * channels / bandwidth, flops / rate) / median)
    if block:
        benchmark.extra_info["block"] = block
