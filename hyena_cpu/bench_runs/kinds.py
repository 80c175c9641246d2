"""Every kind of mixer as a benchmark builds it: a config of some width, and random tensors.

A new kind is a line in KINDS; what its tensors must not be is a line in `_tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import (
    AttentionConfig,
    BaseConvConfig,
    FilterConfig,
    H3ConvConfig,
    HyenaConfig,
    LayerConfig,
    LongConvConfig,
    MixerConfig,
    ModelConfig,
    NormConfig,
    RotaryConfig,
)
from ..config_recurrent import (
    BasedConfig,
    MambaConfig,
    RetNetConfig,
    RwkvChannelConfig,
    RwkvTimeConfig,
)
from ..config_selection import AutocorrelationConfig, SelectionConfig
from ..config_ssm import H3Config, S4DConfig
from ..model import Model
from ..weights import Weights
from ..weights.native import mixer_shapes, shapes

Floats = NDArray[np.float32]

VOCAB = 256
HEAD = 64  # channels of a head


def _heads(width: int) -> int:
    return width // HEAD if width % HEAD == 0 else 1


def _implicit(length: int) -> FilterConfig:
    """HyenaDNA's filter network."""
    return FilterConfig("implicit", taps=length, width=64, bands=2, sine_layers=3, shift=0.05)


def _explicit(length: int) -> FilterConfig:
    return FilterConfig("explicit", taps=length)


def _nothing(config: Any, width: int, length: int) -> float:  # noqa: ARG001
    """All its operations are products with weights and long convolutions."""
    return 0.0


def _pairs(config: AttentionConfig, width: int, length: int) -> float:
    """Scores and sums over the pairs of positions that see each other, two operations a term; for
    windows that slide.
    """
    reach = min(length, config.window or length)
    pairs = reach * (reach + 1) / 2 + (length - reach) * reach
    return 4.0 * pairs * width


def _features(config: BasedConfig, width: int, length: int) -> float:
    """Sums of keys' features times values, updated and read for every token."""
    features = 1 + config.feature_width + config.feature_width * (config.feature_width + 1) // 2
    return 4.0 * features * (width + config.heads) * length


def _retention(config: RetNetConfig, width: int, length: int) -> float:
    """A state of key times value numbers a head, updated and read for every token."""
    return 4.0 * width * config.value_width / config.heads * length


def _scan(config: MambaConfig, width: int, length: int) -> float:  # noqa: ARG001
    """Six operations for each number of the state and token; exponentials are free."""
    return 6.0 * config.inner * config.state * length


def _chosen(config: SelectionConfig, width: int, length: int) -> float:
    """Attention for the share of positions that are chosen."""
    return (config.share or 0.0) * 4.0 * length * (length + 1) / 2 * width


def _lags(config: AutocorrelationConfig, width: int, length: int) -> float:
    """A product for each lag that is looked at, and for each that is taken."""
    return 2.0 * width * ((config.max_lag or length) + config.top_k) * length


@dataclass(frozen=True)
class Kind:
    """config: (width, length) -> the mixer. mixing: (config, width, length) -> operations beside
    products with weights and long convolutions, which are counted for all alike.
    """

    config: Callable[[int, int], MixerConfig]
    mixing: Callable[[Any, int, int], float] = _nothing


KINDS: dict[str, Kind] = {
    "hyena": Kind(lambda _, length: HyenaConfig(_implicit(length))),
    "attention": Kind(
        lambda width, _: AttentionConfig(_heads(width), rotary=RotaryConfig()), _pairs
    ),
    "long_conv": Kind(lambda _, length: LongConvConfig(_explicit(length))),
    "h3_conv": Kind(lambda _, length: H3ConvConfig(_explicit(length))),
    "base_conv": Kind(lambda _, length: BaseConvConfig(_explicit(length))),
    "h3": Kind(lambda *_: H3Config(d_state=64)),
    "s4d": Kind(lambda *_: S4DConfig(d_state=64)),
    "based": Kind(lambda width, _: BasedConfig(_heads(width), feature_width=16), _features),
    "retnet": Kind(lambda width, _: RetNetConfig(_heads(width), 2 * width, 1e-5), _retention),
    "rwkv_time": Kind(lambda *_: RwkvTimeConfig()),
    "rwkv_channel": Kind(lambda width, _: RwkvChannelConfig(4 * width)),
    "mamba": Kind(lambda width, _: MambaConfig(2 * width, width // 16), _scan),
    "selection": Kind(
        lambda width, _: SelectionConfig(_heads(width), "random", share=1 / 16, seed=0), _chosen
    ),
    "autocorrelation": Kind(
        lambda *_: AutocorrelationConfig(top_k=4, lags="running", max_lag=64), _lags
    ),
}


def build(kind: str, width: int, length: int, **options: Any) -> Model:
    """A model of one layer without MLP: the mixer, with random weights, for so long a sequence.

    Options are those of `Network`: threads, max_memory.
    """
    layer = LayerConfig(KINDS[kind].config(width, length), None)
    norm = NormConfig("layernorm", 1e-5)
    config = ModelConfig(width, VOCAB, VOCAB, None, True, norm, (layer,), name=kind)
    rng = np.random.default_rng(0)
    tensors = {name: _tensor(rng, name, shape) for name, shape in shapes(config).items()}
    return Model(Weights(config, tensors, Path(kind), {}, (), f"bench-{kind}"), None, **options)


def operations(kind: str, model: Model, length: int) -> float:
    """Floating-point operations of the layer on one sequence, by convention.

    Products with weights at 2 a weight and token; a long convolution as two real transforms of
    M = 2 N points at 2.5 M log2 M each, its filter's own made beforehand; and what else the kind
    counts. Norms and gates are free.
    """
    (layer,), width = model.config.layers, model.config.d_model
    weights = sum(
        int(np.prod(shape))
        for name, shape in mixer_shapes(layer.mixer, width).items()
        if name.endswith(".weight") and "filter." not in name
    )
    channels = sum(taps.bank.channels for block in model.blocks for taps in block.mixer.taps)
    M = 2 * length
    convolutions = channels * 2 * 2.5 * M * log2(M)
    return 2.0 * weights * length + convolutions + KINDS[kind].mixing(layer.mixer, width, length)


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Floats:
    """Random numbers of a sensible size: activations stay near 1, filters decay."""
    part = name.rpartition(".")[2]
    normal = rng.standard_normal(shape, np.float32)
    if part == "weight" and len(shape) == 1:  # of a norm
        return np.ones(shape, np.float32)
    if part == "weight":
        return normal * np.float32(shape[-1] ** -0.5)
    if part == "taps":
        decay = np.exp(-4 * np.linspace(0, 1, shape[-1], dtype=np.float32))
        return normal * decay * np.float32(shape[-1] ** -0.5)
    if part == "times":
        return np.linspace(0, 1, shape[0], dtype=np.float32)
    if part in ("deltas", "log_rate"):
        return np.linspace(-3, -15, shape[0], dtype=np.float32)
    return normal * np.float32(0.1)
