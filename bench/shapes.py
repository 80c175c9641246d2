"""The models that benchmarks run: HyenaDNA shapes with random weights, in our native names."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from hyena_cpu.config import (
    FilterConfig,
    HyenaConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
)
from hyena_cpu.weights import Weights

SIZES = {"tiny": (128, 2), "small": (256, 4), "medium": (256, 8)}  # name: (D, layers)


def hyenadna(size: str, max_length: int) -> Weights:
    """Random weights of a HyenaDNA size for sequences up to `max_length`."""
    width, depth = SIZES[size]
    long_filter = FilterConfig(
        "implicit", taps=max_length, width=64, bands=2, sine_layers=3, shift=0.05
    )
    layer = LayerConfig(HyenaConfig(long_filter), MlpConfig("gelu_tanh", 4 * width))
    config = ModelConfig(
        d_model=width,
        vocab_size=12,
        logits_width=16,
        max_length=max_length,
        tie_embeddings=True,
        norm=NormConfig("layernorm", 1e-5),
        layers=(layer,) * depth,
        name=f"hyenadna-{size}",
        family="hyenadna",
    )
    rng = np.random.default_rng(0)
    tensors: dict[str, np.ndarray] = {}

    def normal(name: str, *shape: int, scale: float) -> None:
        tensors[name] = (scale * rng.standard_normal(shape)).astype(np.float32)

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        normal(f"{name}.weight", rows, columns, scale=columns**-0.5)
        if bias:
            normal(f"{name}.bias", rows, scale=0.1)

    def norm(name: str) -> None:
        tensors[f"{name}.weight"] = np.ones(width, np.float32)
        tensors[f"{name}.bias"] = np.zeros(width, np.float32)

    times = np.linspace(0, 1, max_length, dtype=np.float32)
    angle = 2 * np.pi * np.arange(max_length)[:, None] / max_length * np.linspace(1e-4, 1, 2)
    features = np.concatenate([times[:, None], np.cos(angle), -np.sin(angle)], 1)
    normal("embedding.weight", 16, width, scale=0.5)
    for i in range(depth):
        mixer = f"layers.{i}.mixer"
        norm(f"layers.{i}.norm1")
        linear(f"{mixer}.in_proj", 3 * width, width)
        normal(f"{mixer}.short_conv.weight", 3 * width, 3, scale=3**-0.5)
        normal(f"{mixer}.short_conv.bias", 3 * width, scale=0.1)
        normal(f"{mixer}.skip", 1, width, scale=0.5)
        tensors[f"{mixer}.filter.features"] = features.astype(np.float32)
        tensors[f"{mixer}.filter.times"] = times
        for k, columns in enumerate((5, 64, 64)):
            linear(f"{mixer}.filter.linear.{k}", 64, columns)
            tensors[f"{mixer}.filter.freq.{k}"] = np.full(64, 10, np.float32)
        linear(f"{mixer}.filter.linear.3", width, 64, bias=False)
        ends = math.log(0.01) / 1.5, math.log(0.01) / 0.3
        tensors[f"{mixer}.filter.deltas"] = np.linspace(*ends, width, dtype=np.float32)
        linear(f"{mixer}.out_proj", width, width)
        norm(f"layers.{i}.norm2")
        linear(f"layers.{i}.mlp.up", 4 * width, width)
        linear(f"layers.{i}.mlp.down", width, 4 * width)
    norm("norm")
    return Weights(config, tensors, Path(f"hyenadna-{size}"), {}, (), "bench")


def operations(size: str, length: int) -> float:
    """Floating-point operations of one forward: 24 D^2 dense and 10 D log2(2 L) in the long
    convolution, per token and layer (two real transforms at 2.5 M log2 M, M = 2 L)."""
    width, depth = SIZES[size]
    per_token = 24 * width * width + 10 * width * math.log2(2 * length)
    return depth * length * per_token
