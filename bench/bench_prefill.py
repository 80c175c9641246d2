"""Prefill of HyenaDNA-small shapes: ours against its PyTorch structure and attention of equal size.

    pytest bench/bench_prefill.py --benchmark-only

The whole forward to the last hidden states, ids in, float32, 2 threads on all sides, all in this
process. The floor is operations (24 D^2 + 10 D log2 2L per token and layer) over the rate of a
large float32 matrix product, measured in the same run. `run.py` compares the same sides in
processes of their own, at more lengths, and their memory.
"""

from __future__ import annotations

import numpy as np
import pytest
import sides
from limits import product_rate
from pytest_benchmark.fixture import BenchmarkFixture
from shapes import operations

pytest.importorskip("torch", reason="the peers need PyTorch: pip install '.[bench]'")

THREADS = 2
LENGTHS = (1024, 8192, 32768)
PEERS = ("hyena-cpu", "PyTorch Hyena", "PyTorch attention", "llama.cpp")


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("peer", PEERS)
def test_prefill(benchmark: BenchmarkFixture, peer: str, length: int) -> None:
    try:
        run = sides.SIDES[peer]({"size": "small", "threads": THREADS}, "prefill", length)
    except sides.AbsentError as reason:
        pytest.skip(str(reason))
    benchmark.group = f"prefill of hyenadna-small, {length} tokens"
    benchmark.extra_info["peer"] = peer
    if peer == "hyena-cpu":
        benchmark.extra_info["ours"] = True
        seconds = operations("small", length) / product_rate(THREADS)
        benchmark.extra_info["floor ms"] = 1e3 * seconds
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


def test_numbers_of_the_original() -> None:
    """Their filter networks run in float32 and are ill-conditioned; ours run in float64."""
    options = {"size": "small", "threads": THREADS}
    got, want = (
        np.asarray(sides.SIDES[peer](options, "prefill", 1024)())
        for peer in ("hyena-cpu", "PyTorch Hyena")
    )
    assert np.abs(got - want).max() <= 5e-3 * np.abs(want).max()


def test_attention_goes_on_as_it_began() -> None:
    """The peer is no easier for being wrong: steps on its cache give the numbers of the whole."""
    from torch_attention import TorchAttention

    model, ids = TorchAttention(128, 2, 64), sides.random_ids(40)
    whole = model.hidden(ids) @ model.embedding.numpy().T
    model.begin(ids[:30], 10)
    for t in range(30, 40):
        assert np.abs(model.step(int(ids[t])) - whole[t]).max() <= 1e-4 * np.abs(whole).max()
