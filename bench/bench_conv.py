"""One gated long convolution against scipy.fft, torch.fft, mkl_fft and pyfftw, one thread.

    pytest bench/bench_conv.py --benchmark-only

The libraries and what they are given are in `convs.py`; those that are not installed are skipped.
`gflops` counts transforms alone; `floor` is the part of the median that the machine itself needs.
"""

from __future__ import annotations

import convs
import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from threadpoolctl import threadpool_limits


@pytest.mark.parametrize("peer", [*convs.OURS, *convs.PEERS])
@pytest.mark.parametrize("N", convs.CHANNELS)
def test_long_conv(benchmark: BenchmarkFixture, N: int, peer: str) -> None:
    with threadpool_limits(1):
        try:
            conv, block = convs.build(peer, N)
        except ImportError as error:
            pytest.skip(f"{peer} is not installed: {error}")
        got, want = convs.result(conv), convs.scipy_fft(N, 1)()
        assert np.linalg.norm(got - want) <= 1e-5 * np.linalg.norm(want)
        benchmark.group = f"long_conv N={N}"
        benchmark.extra_info["peer"] = peer
        benchmark.extra_info["ours"] = peer == "LongConv"
        benchmark.pedantic(conv, rounds=3 if N > 1 << 16 else 15, warmup_rounds=1)
    median = float(benchmark.stats.stats.median)
    benchmark.extra_info["us_per_channel"] = median / convs.CHANNELS[N] * 1e6
    benchmark.extra_info["gflops"] = convs.flops(N) / median / 1e9
    benchmark.extra_info["floor"] = convs.floor_seconds(N) / median
    if block:
        benchmark.extra_info["block"] = block
