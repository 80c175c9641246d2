"""The typed description of a model: what `config.json` of a native folder holds.

Format version 1. Plain frozen dataclasses; `config_json.parse` turns JSON into them and
`config_json.to_json` back. Foreign configurations are translated into this by
`hyena_cpu/weights/<family>.py`, and nothing after that sees a foreign key.

Shapes use: D width, N order, K short taps, L filter taps, P filter width, E positional features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from . import config_selection, config_ssm
from .config_recurrent import (
    BasedConfig,
    MambaConfig,
    RecurrentConfig,
    RetNetConfig,
    RwkvChannelConfig,
    RwkvTimeConfig,
    check_recurrent,
)
from .config_selection import AutocorrelationConfig, SelectionConfig
from .config_ssm import H3Config, S4DConfig
from .errors import ModelError

FORMAT_VERSION = 1
MAX_TAPS = 1 << 26  # of a filter; bounds what a small, wrong file can make us allocate
MAX_SINE_LAYERS = 64


@dataclass(frozen=True)
class NormConfig:
    """LayerNorm (weight, bias) or RMSNorm (weight); eps is never defaulted."""

    kind: Literal["layernorm", "rmsnorm"]
    eps: float


@dataclass(frozen=True)
class FilterConfig:
    """One family of long filters; a filter is zero beyond `taps`.

    implicit     sine MLP over stored positional features, exponential window plus `shift`
                 (arXiv 2302.10866 and 2306.15794)
    sine_window  sine MLP over features rebuilt from `taps` and `bands`, learned log-rate window
    explicit     the taps themselves, soft-thresholded by `threshold`
    modal        sums of `modes` complex exponentials
    relu_mlp     MLP of one hidden layer of ReLUs over stored features (arXiv 2312.04927)
    ssm_diag     a diagonal state space of `modes` conjugate pairs (arXiv 2206.11893)
    shift        a shift state space of `taps` states (arXiv 2212.14052)
    """

    kind: Literal["implicit", "sine_window", "explicit", "modal", "relu_mlp", "ssm_diag", "shift"]
    taps: int
    width: int = 0  # P, of the MLP
    bands: int = 0  # E = 2 * bands + 1
    sine_layers: int = 0  # sine activations; the MLP has one more linear layer than these
    modulate: bool = True
    shift: float = 0.0
    normalize: Literal["none", "channel_l1", "time_l2"] = "none"
    threshold: float = 0.0
    modes: int = 0
    discretization: Literal["bilinear", "zoh"] = "bilinear"


@dataclass(frozen=True)
class HyenaConfig:
    """Hyena operator of order N: N - 1 long convolutions, N gates. Chunks x_0 .. x_{N-1}, v.

    Order 1 has no long convolution; `filter` and `skip` then describe nothing and have no tensors.
    """

    filter: FilterConfig
    kind: Literal["hyena"] = "hyena"
    order: int = 2
    short_taps: int = 3
    short_bias: bool = True
    bias: bool = True
    skip: bool = True
    bidirectional: bool = False


@dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions; the first half of a head turns with its second half, or those of its first
    `dims` dimensions do.
    """

    base: float = 10000.0
    dims: int | None = None


@dataclass(frozen=True)
class AttentionConfig:
    """Causal softmax attention over the last `window` positions (None: all of them).

    blocked: over the own block instead, of positions floor(i / window) window and later.
    """

    heads: int
    kind: Literal["attention"] = "attention"
    window: int | None = None
    rotary: RotaryConfig | None = None
    bias: bool = True
    blocked: bool = False


@dataclass(frozen=True)
class LongConvConfig:
    """safari LongConv: `channels` explicit filters a channel, GELU (erf), linear, GLU."""

    filter: FilterConfig
    kind: Literal["long_conv"] = "long_conv"
    channels: int = 1


@dataclass(frozen=True)
class H3ConvConfig:
    """safari H3Conv with head size 1: two explicit filters, y = q * conv(conv(k) * v)."""

    filter: FilterConfig
    kind: Literal["h3_conv"] = "h3_conv"


@dataclass(frozen=True)
class BaseConvConfig:
    """Zoology's BaseConv, y = conv(u) * (W u + b) + u; `activation`: SiLU of both factors.

    conv has either `short_taps` taps and a bias, or a long `filter` and a skip of 1.
    """

    filter: FilterConfig | None = None
    kind: Literal["base_conv"] = "base_conv"
    short_taps: int = 0
    activation: bool = False


MixerConfig = (
    HyenaConfig
    | AttentionConfig
    | LongConvConfig
    | H3ConvConfig
    | BaseConvConfig
    | BasedConfig
    | RetNetConfig
    | RwkvTimeConfig
    | RwkvChannelConfig
    | MambaConfig
    | SelectionConfig
    | AutocorrelationConfig
    | H3Config
    | S4DConfig
)


def diagonal_filter(mixer: H3Config | S4DConfig) -> FilterConfig:
    """The filter that their recurrence is, of no other end than a filter can have."""
    return FilterConfig(
        "ssm_diag", MAX_TAPS, modes=mixer.d_state // 2, discretization=mixer.discretization
    )


def shift_filter(mixer: H3Config) -> FilterConfig:
    """The filter of the keys."""
    return FilterConfig("shift", mixer.d_state)


@dataclass(frozen=True)
class MlpConfig:
    """gelu_*: down(act(up x)). swiglu: down(silu(a) * b), where a and b are the halves of up x.

    identity: x itself, so that the layer adds norm2(x); width 0, no tensors.
    """

    kind: Literal["gelu_tanh", "gelu_erf", "swiglu", "identity"]
    width: int
    bias: bool = True


@dataclass(frozen=True)
class LayerConfig:
    """norm1 -> mixer -> + -> norm2 -> mlp -> +; without an MLP the second half is absent."""

    mixer: MixerConfig
    mlp: MlpConfig | None


@dataclass(frozen=True)
class ClassifierConfig:
    """Head of a classifier: `labels` outputs of one pooled position or of the pooled sequence.

    pad_last takes the position before the first pad token (the last one if there is none),
    as the Hugging Face port does; mean, sum, first and last are those of the original.
    """

    labels: int
    pool: Literal["pad_last", "mean", "sum", "first", "last"]
    bias: bool


@dataclass(frozen=True)
class TokenizerConfig:
    """bytes, dna, or hf: a tokenizer.json beside the config."""

    kind: Literal["bytes", "dna", "hf"]
    file: str | None = None


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a meaning; styles may be put in front of a prompt by name."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    styles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelConfig:
    """A whole model. `vocab_size` ids have a meaning; the stored head has `logits_width` rows."""

    d_model: int
    vocab_size: int
    logits_width: int
    max_length: int | None
    tie_embeddings: bool
    norm: NormConfig
    layers: tuple[LayerConfig, ...]
    positions: int | None = None  # rows of a learned position table
    classifier: ClassifierConfig | None = None
    tokenizer: TokenizerConfig | None = None
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    name: str = ""
    family: str = "native"
    format_version: int = FORMAT_VERSION
    model_type: str = "hyena-cpu"


def check(config: ModelConfig, where: str = "config.json") -> None:
    """Rules that span several keys. Raises ModelError."""

    def require(holds: bool, rule: str) -> None:
        if not holds:
            raise ModelError(f"{where}: {rule}")

    require(config.d_model > 0, f"d_model is {config.d_model}, must be positive")
    require(config.vocab_size > 0, f"vocab_size is {config.vocab_size}, must be positive")
    require(
        config.logits_width >= config.vocab_size,
        f"logits_width {config.logits_width} is smaller than vocab_size {config.vocab_size}",
    )
    require(len(config.layers) > 0, "layers is empty")
    require(config.norm.eps > 0, f"norm.eps is {config.norm.eps}, must be positive")
    require(
        config.max_length is None or config.max_length > 0,
        f"max_length is {config.max_length}, must be positive or null",
    )
    require(
        config.positions is None or config.positions > 0,
        f"positions is {config.positions}, must be positive or null",
    )
    require(
        config.positions is None or (config.max_length or math.inf) <= config.positions,
        f"max_length is {config.max_length}, must be at most the {config.positions} positions",
    )
    require(
        config.classifier is None or config.classifier.labels > 0,
        "classifier.labels must be positive",
    )
    tokens = config.special_tokens
    for name, token in {
        "bos": tokens.bos,
        "eos": tokens.eos,
        "pad": tokens.pad,
        **tokens.styles,
    }.items():
        require(
            token is None or 0 <= token < config.vocab_size,
            f"special_tokens: {name} is {token}, must be below vocab_size {config.vocab_size}",
        )
    for i, layer in enumerate(config.layers):
        _check_mixer(config, layer.mixer, f"{where}: layers[{i}].mixer")
        if layer.mlp is not None:
            empty = layer.mlp.kind == "identity"
            require(
                layer.mlp.width == 0 if empty else layer.mlp.width > 0,
                f"layers[{i}].mlp.width is {layer.mlp.width}, "
                f"must be {'0 for identity' if empty else 'positive'}",
            )


def _check_mixer(config: ModelConfig, mixer: MixerConfig, where: str) -> None:
    if isinstance(mixer, SelectionConfig | AutocorrelationConfig):
        config_selection.check(mixer, config.d_model, where)
        return
    if isinstance(mixer, AttentionConfig):
        if mixer.heads < 1 or config.d_model % mixer.heads:
            raise ModelError(
                f"{where}: d_model {config.d_model} is not divisible by heads {mixer.heads}"
            )
        if mixer.rotary is not None and (config.d_model // mixer.heads) % 2:
            raise ModelError(f"{where}: rotary positions need an even head width")
        dims = None if mixer.rotary is None else mixer.rotary.dims
        if dims is not None and (dims % 2 or not 2 <= dims <= config.d_model // mixer.heads):
            raise ModelError(
                f"{where}: rotary.dims is {dims}, must be even and at most the head width "
                f"{config.d_model // mixer.heads}"
            )
        if mixer.window is not None and mixer.window < 1:
            raise ModelError(f"{where}: window is {mixer.window}, must be positive or null")
        if mixer.blocked and mixer.window is None:
            raise ModelError(f"{where}: blocked attention needs a window, the length of a block")
        return
    if isinstance(mixer, BaseConvConfig):
        _check_base_conv(mixer, where)
        return
    if isinstance(mixer, RecurrentConfig):
        check_recurrent(mixer, config.d_model, where)
        return
    if isinstance(mixer, H3Config | S4DConfig):
        config_ssm.check(mixer, config.d_model, where)
        return
    if isinstance(mixer, HyenaConfig):
        if mixer.order < 1:
            raise ModelError(f"{where}: order is {mixer.order}, must be at least 1")
        if mixer.short_taps < 1:
            raise ModelError(f"{where}: short_taps is {mixer.short_taps}, must be at least 1")
    elif mixer.filter.kind != "explicit":
        raise ModelError(f"{where}: {mixer.kind} needs an explicit filter")
    if isinstance(mixer, LongConvConfig) and mixer.channels < 1:
        raise ModelError(f"{where}: channels is {mixer.channels}, must be at least 1")
    _check_filter(mixer.filter, f"{where}: filter")


def _check_base_conv(mixer: BaseConvConfig, where: str) -> None:
    taps, filter = mixer.short_taps, mixer.filter
    if taps < 0 or (taps > 0) == (filter is not None):
        raise ModelError(
            f"{where}: short_taps is {taps} {'without' if filter is None else 'beside'} a filter: "
            "base_conv needs at least 1 short tap and no filter, or a filter and 0 short taps"
        )
    if filter is None:
        return
    if filter.kind not in ("explicit", "relu_mlp"):
        raise ModelError(f"{where}: base_conv needs an explicit or a relu_mlp filter")
    _check_filter(filter, f"{where}: filter")


def _check_filter(filter: FilterConfig, where: str) -> None:
    needs = {
        "implicit": ("taps", "width", "bands", "sine_layers"),
        "sine_window": ("taps", "width", "bands", "sine_layers"),
        "explicit": ("taps",),
        "modal": ("taps", "modes"),
        "relu_mlp": ("taps", "width", "bands"),
        "ssm_diag": ("taps", "modes"),
        "shift": ("taps",),
    }
    for name in needs[filter.kind]:
        if getattr(filter, name) < 1:
            raise ModelError(f"{where}: {name} is {getattr(filter, name)}, must be at least 1")
    if filter.taps > MAX_TAPS:
        raise ModelError(f"{where}: taps is {filter.taps}, the limit is {MAX_TAPS}")
    if filter.sine_layers > MAX_SINE_LAYERS:
        raise ModelError(f"{where}: sine_layers is {filter.sine_layers}, at most {MAX_SINE_LAYERS}")
    if filter.threshold < 0:
        raise ModelError(f"{where}: threshold is {filter.threshold}, must not be negative")
    if filter.normalize != "none" and filter.kind not in ("implicit", "sine_window"):
        raise ModelError(f"{where}: normalize is for filters made by a sine MLP")
