"""Prefill of HyenaDNA-small shapes: ours against the PyTorch structure, both in this process."""

from __future__ import annotations

import time

import numpy as np
import pytest
from shapes import SIZES, hyenadna, operations

from hyena_cpu.model import Model

THREADS = 2
LENGTHS = (1024, 8192, 32768)

torch = pytest.importorskip("torch", reason="the peer needs PyTorch: pip install '.[bench]'")


def ceiling() -> float:
    """Operations per second of a large float32 matrix product on `THREADS` threads, measured."""
    torch.set_num_threads(THREADS)
    a = torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("engine", ["hyena-cpu", "pytorch eager"])
def test_prefill(benchmark, engine: str, length: int) -> None:  # type: ignore[no-untyped-def]
    from torch_hyenadna import TorchHyenaDna

    torch.set_num_threads(THREADS)
    benchmark.group = f"prefill hyenadna-small {length}"
    weights = hyenadna("small", length)
    ours = Model(weights, None, threads=THREADS)
    theirs = TorchHyenaDna(weights.tensors, SIZES["small"][1])
    ids = np.random.default_rng(1).integers(7, 11, length).astype(np.int32)
    want = theirs(ids)
    got = ours.hidden(ids)
    assert np.abs(got - want).max() <= 1e-3 * np.abs(want).max()  # their filters are float32
    run = {"hyena-cpu": lambda: ours.hidden(ids), "pytorch eager": lambda: theirs(ids)}[engine]
    benchmark.extra_info["name"] = engine
    benchmark.extra_info["floor_s"] = operations("small", length) / ceiling()
    benchmark.extra_info["floor_is"] = "operations / measured float32 matrix-product rate"
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
