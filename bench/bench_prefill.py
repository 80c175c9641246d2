"""Prefill of HyenaDNA-small shapes: ours against the PyTorch structure, both in this process.

    pytest bench/bench_prefill.py --benchmark-only

The whole forward to the last hidden states, ids in, float32, 2 threads on both sides. The floor is
operations (24 D^2 + 10 D log2 2L per token and layer) over the rate of a large float32 matrix
product, the faster of PyTorch's and ours, measured in the same run.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from shapes import SIZES, hyenadna, operations

from hyena_cpu import kernels
from hyena_cpu.model import Model

torch = pytest.importorskip("torch", reason="the peer needs PyTorch: pip install '.[bench]'")

THREADS = 2
LENGTHS = (1024, 8192, 32768)


def best_seconds(run: Callable[[], object]) -> float:
    """The shortest of ten runs."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@functools.lru_cache(maxsize=1)
def ceiling() -> float:
    """Operations per second of a 1,024-cubed float32 product on THREADS threads."""
    torch.set_num_threads(THREADS)
    a = np.ones((1024, 1024), np.float32)
    packed, tensor = kernels.PackedLinear(a), torch.from_numpy(a)
    ours = best_seconds(lambda: kernels.linear(a, packed, threads=THREADS))
    theirs = best_seconds(lambda: tensor @ tensor)
    return 2 * 1024**3 / min(ours, theirs)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("peer", ["hyena-cpu", "pytorch eager"])
def test_prefill(benchmark: BenchmarkFixture, peer: str, length: int) -> None:
    from torch_hyenadna import TorchHyenaDna

    torch.set_num_threads(THREADS)
    weights = hyenadna("small", length)
    ours = Model(weights, None, threads=THREADS)
    theirs = TorchHyenaDna(weights.tensors, SIZES["small"][1])
    ids = np.random.default_rng(1).integers(7, 11, length).astype(np.int32)
    want = theirs(ids)
    # Their filter networks run in float32 and are ill-conditioned; ours run in float64.
    assert np.abs(ours.hidden(ids) - want).max() <= 5e-3 * np.abs(want).max()
    runs = {"hyena-cpu": lambda: ours.hidden(ids), "pytorch eager": lambda: theirs(ids)}
    benchmark.group = f"prefill of hyenadna-small, {length} tokens"
    benchmark.extra_info["peer"] = peer
    if peer == "hyena-cpu":
        benchmark.extra_info["ours"] = True
        benchmark.extra_info["floor ms"] = 1e3 * operations("small", length) / ceiling()
    benchmark.pedantic(runs[peer], rounds=5, warmup_rounds=1)
