"""One gated long convolution by many libraries: y = post * (taps conv (pre * x)), float32 [C, N].

Filter transforms, and plans where a library has them, are made beforehand for everybody; padding is
to 2 N; one thread. A library is absent where it is not installed: ImportError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from limits import best_seconds, cache_rate, copy_seconds

from hyena_cpu import kernels
from hyena_cpu.longconv import LongConv

Array = np.ndarray
Conv = Callable[[], Array]
CHANNELS = {1 << 10: 64, 1 << 11: 64, 1 << 13: 32, 1 << 15: 16, 1 << 17: 16, 1 << 20: 16}
BLOCKS = (1, 4, 16, 64)  # channels per call
PLANNING_S = 10.0  # that FFTW may take to find its best plan


@functools.lru_cache(maxsize=1)
def problem(N: int) -> tuple[Array, Array, Array, Array]:
    """x, pre, post [C, N] and taps [C, N] of unit energy, decaying."""
    rng = np.random.default_rng(N)
    x, pre, post, taps = (rng.standard_normal((CHANNELS[N], N), np.float32) for _ in range(4))
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
    channels = CHANNELS[N]

    def convolve() -> Array:
        kernels.long_conv(x, spectrum, pre=pre, post=post, out=out)
        return out

    convolve.finish = lambda z: kernels.tiles_to_channels(z, channels)  # type: ignore[attr-defined]
    return convolve


def scipy_fft(N: int, block: int) -> Conv:
    """scipy.fft (pocketfft)."""
    from scipy import fft

    return _by_numpy(fft.rfft, fft.irfft, N, block)


def mkl_fft(N: int, block: int) -> Conv:
    """Intel MKL through mkl_fft."""
    from mkl_fft.interfaces import scipy_fft as fft

    return _by_numpy(fft.rfft, fft.irfft, N, block)


def _by_numpy(rfft: Callable, irfft: Callable, N: int, block: int) -> Conv:
    x, pre, post, taps = problem(N)
    spectrum, y = rfft(taps, 2 * N), np.empty_like(x)

    def convolve() -> Array:
        for c in range(0, len(x), block):
            s = slice(c, c + block)
            product = rfft(x[s] * pre[s], 2 * N)
            product *= spectrum[s]
            np.multiply(irfft(product, 2 * N)[:, :N], post[s], out=y[s])
        return y

    return convolve


def fftw(N: int, block: int) -> Conv:
    """FFTW through pyfftw: measured plans on aligned arrays of their own."""
    import pyfftw

    x, pre, post, taps = problem(N)
    padded = pyfftw.zeros_aligned((block, 2 * N), "float32")
    product = pyfftw.empty_aligned((block, N + 1), "complex64")
    plan = {"flags": ("FFTW_MEASURE",), "threads": 1, "planning_timelimit": PLANNING_S}
    forward = pyfftw.FFTW(padded, product, direction="FFTW_FORWARD", **plan)
    backward = pyfftw.FFTW(product, padded, direction="FFTW_BACKWARD", **plan)
    spectrum, y = np.empty((len(x), N + 1), np.complex64), np.empty_like(x)
    for c in range(0, len(x), block):
        padded[:, :N], padded[:, N:] = taps[c : c + block], 0
        spectrum[c : c + block] = forward()

    def convolve() -> Array:
        for c in range(0, len(x), block):
            s = slice(c, c + block)
            np.multiply(x[s], pre[s], out=padded[:, :N])
            padded[:, N:] = 0
            forward()
            np.multiply(product, spectrum[s], out=product)
            backward()
            np.multiply(padded[:, :N], post[s], out=y[s])
        return y

    return convolve


def torch_fft(N: int, block: int) -> Conv:
    """torch.fft, eager."""
    import torch

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


OURS = {"LongConv": longconv, "long_conv kernel": tile_kernel}
PEERS = {"scipy.fft": scipy_fft, "torch.fft": torch_fft, "mkl_fft": mkl_fft, "pyfftw": fftw}


def build(name: str, N: int) -> tuple[Conv, int]:
    """The convolution, and the number of channels per call that suits a peer best (ours: 0)."""
    if name in OURS:
        return OURS[name](N), 0
    tried = []
    for block in BLOCKS:
        if block <= CHANNELS[N]:
            conv = PEERS[name](N, block)
            conv()
            tried.append((best_seconds(conv, 2 if N > 1 << 16 else 5), block, conv))
    _, block, conv = min(tried, key=lambda one: one[:2])
    return conv, block


def result(conv: Conv) -> Array:
    """What it computes, [C, N]."""
    finish = getattr(conv, "finish", lambda y: y)
    return finish(conv())


def flops(N: int) -> float:
    """By convention: two real transforms of M = 2 N points at 2.5 M log2 M, for every channel."""
    M = 2 * N
    return float(2 * 2.5 * M * np.log2(M) * CHANNELS[N])


def floor_seconds(N: int) -> float:
    """The larger of a copy of 24 N bytes a channel (input, gates, output, spectrum), and `flops` at
    the rate of direct sums in cache.
    """
    return max(copy_seconds(24 * N * CHANNELS[N]), flops(N) / cache_rate())
