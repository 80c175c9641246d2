"""Attention for chosen positions against attention for all, and that against PyTorch's.

    pytest bench/bench_selection.py --benchmark-only

Width 256 in 4 heads, float32, 2 threads on both sides. Goals: 256 chosen positions of 16,384 in at
most 1/8 of the time of all of them, the whole layer each (norm and projections too); full attention
in at most 1.5 times the time of torch scaled_dot_product_attention. The floor of full attention is
its 2 T^2 D multiplications and additions over the rate of a large float32 matrix product.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from hyena_cpu import kernels
from hyena_cpu.config import LayerConfig, ModelConfig, NormConfig
from hyena_cpu.config_selection import SelectionConfig
from hyena_cpu.context import context
from hyena_cpu.model import Model
from hyena_cpu.weights import Weights
from hyena_cpu.weights.native import shapes

THREADS = 2
WIDTH, HEADS, CHOSEN, LENGTH = 256, 4, 256, 16384


def layer(mixer: SelectionConfig) -> Model:
    """A model of one layer with random weights."""
    config = ModelConfig(
        d_model=WIDTH,
        vocab_size=64,
        logits_width=64,
        max_length=None,
        tie_embeddings=True,
        norm=NormConfig("layernorm", 1e-5),
        layers=(LayerConfig(mixer, None),),
        name="selection",
    )
    rng = np.random.default_rng(0)
    tensors = {
        name: (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
        for name, shape in shapes(config).items()
    }
    return Model(
        Weights(config, tensors, Path("selection"), {}, (), "bench"), None, threads=THREADS
    )


@functools.lru_cache(maxsize=1)
def ceiling() -> float:
    """Operations per second of a 1,024-cubed float32 product on THREADS threads."""
    a = np.ones((1024, 1024), np.float32)
    packed = kernels.PackedLinear(a)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        kernels.linear(a, packed, threads=THREADS)
        times.append(time.perf_counter() - start)
    return 2 * 1024**3 / min(times)


@pytest.mark.parametrize("peer", ["256 chosen", "all positions"])
def test_chosen_positions(benchmark: BenchmarkFixture, peer: str) -> None:
    mixers = {
        "256 chosen": SelectionConfig(HEADS, "sigmoid_top", count=CHOSEN),
        "all positions": SelectionConfig(HEADS, "all"),
    }
    block = layer(mixers[peer]).blocks[0]
    ids = np.zeros(LENGTH, np.int32)
    x = np.random.default_rng(1).standard_normal((LENGTH, WIDTH), np.float32)
    ctx = context([ids], [0], THREADS)
    benchmark.group = f"selection layer, {LENGTH} tokens"
    benchmark.extra_info["peer"] = peer
    if peer == "256 chosen":
        benchmark.extra_info["ours"] = True
        benchmark.extra_info["goal"] = "all positions at least 8x"
    benchmark.pedantic(
        lambda y: block.mixer.extend(None, y, block.norm1, ctx),
        setup=lambda: ((x.copy(),), {}),
        rounds=5,
        warmup_rounds=1,
    )


@pytest.mark.parametrize("length", [1024, 4096, LENGTH])
@pytest.mark.parametrize("peer", ["hyena-cpu", "torch sdpa"])
def test_full_attention(benchmark: BenchmarkFixture, peer: str, length: int) -> None:
    """Ours takes keys and values into its cache as well."""
    torch = pytest.importorskip("torch", reason="the peer needs PyTorch: pip install '.[bench]'")
    torch.set_num_threads(THREADS)
    q, k, v = np.random.default_rng(2).standard_normal((3, length, WIDTH), np.float32)
    head = WIDTH // HEADS
    keys = np.zeros((HEADS, length // 16, head, 16), np.float32)
    values = np.zeros((HEADS, length, head), np.float32)

    def ours() -> np.ndarray:
        kernels.kv_append(keys, values, k, v, 0)
        return kernels.attend(q, keys, values, 0, threads=THREADS)

    heads = [torch.from_numpy(a).view(1, length, HEADS, head).transpose(1, 2) for a in (q, k, v)]

    def theirs() -> np.ndarray:
        y = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        found: np.ndarray = y.transpose(1, 2).reshape(length, WIDTH).numpy()
        return found

    assert np.abs(ours() - theirs()).max() <= 1e-5
    runs: dict[str, Callable[[], np.ndarray]] = {"hyena-cpu": ours, "torch sdpa": theirs}
    benchmark.group = f"causal attention, {length} tokens"
    benchmark.extra_info["peer"] = peer
    if peer == "hyena-cpu":
        benchmark.extra_info["ours"] = True
        benchmark.extra_info["floor ms"] = 1e3 * 2 * length**2 * WIDTH / ceiling()
    benchmark.pedantic(runs[peer], rounds=5, warmup_rounds=1)
