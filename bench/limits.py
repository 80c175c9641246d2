"""What this machine could do at best, measured: the floors beside the figures."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from hyena_cpu import kernels


def best_seconds(run: Callable[[], object], rounds: int) -> float:
    """The shortest of several runs."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


@functools.lru_cache
def product_rate(threads: int) -> float:
    """Operations per second of a 1,024-cubed float32 product: the faster of PyTorch's, where it is
    installed, and ours.
    """
    a = np.ones((1024, 1024), np.float32)
    packed = kernels.PackedLinear(a, "thirds")
    best = best_seconds(lambda: kernels.linear(a, packed, threads=threads), 10)
    try:
        import torch
    except ImportError:
        return 2 * 1024**3 / best
    torch.set_num_threads(threads)
    tensor = torch.from_numpy(a)
    return 2 * 1024**3 / min(best, best_seconds(lambda: tensor @ tensor, 10))


@functools.lru_cache
def copy_seconds(size: int) -> float:
    """One thread: a plain copy that reads and writes `size` bytes together."""
    source = np.ones(size // 8, np.float32)
    target = np.zeros_like(source)
    return best_seconds(lambda: np.copyto(target, source), 4 if size > 1 << 26 else 50)


@functools.lru_cache
def cache_rate() -> float:
    """One thread: operations per second of our direct sums in cache."""
    z = np.ones((1, 512, 16), np.float32)
    out = kernels.direct_conv(z, z)
    return 512 * 513 * 16 / best_seconds(lambda: kernels.direct_conv(z, z, out=out), 200)
