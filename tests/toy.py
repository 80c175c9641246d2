"""Small models with random weights, one of every shape the engine knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from hyena_cpu.config import (
    AttentionConfig,
    BaseConvConfig,
    FilterConfig,
    H3ConvConfig,
    HyenaConfig,
    LayerConfig,
    LongConvConfig,
    MixerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    RotaryConfig,
    SpecialTokens,
    TokenizerConfig,
    diagonal_filter,
    shift_filter,
)
from hyena_cpu.config_recurrent import (
    BasedConfig,
    MambaConfig,
    RecurrentConfig,
    RetNetConfig,
    RwkvChannelConfig,
    RwkvTimeConfig,
)
from hyena_cpu.config_selection import TOPS, AutocorrelationConfig, SelectionConfig
from hyena_cpu.config_ssm import H3Config, S4DConfig
from hyena_cpu.model import Model
from hyena_cpu.weights import Weights, save_folder
from hyena_cpu.weights.recurrent import recurrent_shapes

VOCAB = 29
WIDTH = 20  # not a multiple of the tile, so that missing lanes are exercised
LENGTH = 400


def implicit(length: int) -> FilterConfig:
    return FilterConfig(
        "implicit", taps=length, width=8, bands=2, sine_layers=3, modulate=True, shift=0.05
    )


def explicit(length: int) -> FilterConfig:
    return FilterConfig("explicit", taps=length, threshold=0.01)


def relu(length: int) -> FilterConfig:
    return FilterConfig("relu_mlp", taps=length - 100, width=16, bands=1)


IMPLICIT, EXPLICIT, RELU = implicit(LENGTH), explicit(LENGTH), relu(LENGTH)
SINE_WINDOW = FilterConfig(
    "sine_window", taps=96, width=8, bands=4, sine_layers=2, normalize="time_l2"
)
SHIFT = FilterConfig("shift", taps=24)

GELU = MlpConfig("gelu_tanh", 3 * WIDTH)
IDENTITY = MlpConfig("identity", 0)
SWIGLU = MlpConfig("swiglu", 2 * WIDTH, bias=False)


def layer(mixer: MixerConfig, mlp: MlpConfig | None = GELU) -> LayerConfig:
    return LayerConfig(mixer, mlp)


def _model(*layers: LayerConfig, norm: str = "layernorm", **changes: object) -> ModelConfig:
    config = ModelConfig(
        d_model=WIDTH,
        vocab_size=VOCAB,
        logits_width=VOCAB + 3,
        max_length=None,
        tie_embeddings=True,
        norm=NormConfig(norm, 1e-5),  # type: ignore[arg-type]
        layers=layers,
        name="toy",
    )
    return replace(config, **changes)


ROPE = AttentionConfig(heads=2, rotary=RotaryConfig(), window=64, bias=False)


def causal(length: int) -> dict[str, ModelConfig]:
    """Causal models by name, with filters and limits of so many tokens; every one must keep all
    contracts.
    """
    modal = FilterConfig("modal", taps=length, modes=3)
    ssm = FilterConfig("ssm_diag", taps=length, modes=4, discretization="zoh")
    return {
        "order1": _model(layer(HyenaConfig(implicit(length), order=1))),
        "order2": _model(
            layer(HyenaConfig(implicit(length))),
            layer(HyenaConfig(implicit(length))),
            max_length=length,
        ),
        "order3": _model(
            layer(HyenaConfig(implicit(length), order=3, skip=False)), tie_embeddings=False
        ),
        "order4_no_mlp": _model(layer(HyenaConfig(modal, order=4, short_taps=5), None)),
        "finite_hybrid": _model(
            layer(HyenaConfig(SINE_WINDOW, short_bias=False), SWIGLU),
            layer(ROPE, SWIGLU),
            layer(HyenaConfig(SINE_WINDOW, short_bias=False), SWIGLU),
            norm="rmsnorm",
        ),
        "attention_first": _model(
            layer(AttentionConfig(heads=4)),
            layer(HyenaConfig(explicit(length))),
            positions=length,
            max_length=length,
        ),
        "long_conv": _model(layer(LongConvConfig(explicit(length), channels=2))),
        "h3_conv": _model(layer(H3ConvConfig(explicit(length)), None)),
        "base_conv": _model(
            layer(BaseConvConfig(short_taps=3), IDENTITY),
            layer(BaseConvConfig(relu(length), activation=True), IDENTITY),
            layer(BaseConvConfig(explicit(length))),
        ),
        "h3": _model(
            layer(H3Config(16)),
            layer(AttentionConfig(heads=2, rotary=RotaryConfig(dims=4))),
            layer(H3Config(16)),
        ),
        "h3_heads": _model(layer(H3Config(8, head_dim=4, discretization="zoh"), None)),
        "s4d": _model(layer(S4DConfig(8)), layer(S4DConfig(6, discretization="bilinear"), None)),
        "ssm_filters": _model(layer(HyenaConfig(ssm)), layer(HyenaConfig(SHIFT))),
        "blocked_attention": _model(
            layer(AttentionConfig(heads=2, window=50, blocked=True), IDENTITY)
        ),
        "based": _model(layer(BasedConfig(2, 4), None), layer(BasedConfig(1, 8))),
        "retnet": _model(
            layer(RetNetConfig(2, 24, 1e-5)),
            layer(RetNetConfig(5, 40, 1e-5), SWIGLU),
            norm="rmsnorm",
        ),
        "rwkv": _model(
            layer(RwkvTimeConfig(), None),
            layer(RwkvChannelConfig(48), None),
            layer(RwkvTimeConfig(), None),
            layer(RwkvChannelConfig(40), None),
        ),
        "mamba": _model(
            layer(MambaConfig(2 * WIDTH, rank=2), None),
            layer(MambaConfig(21, rank=1, state=5, conv_taps=1, conv_bias=False, bias=True), None),
            norm="rmsnorm",
        ),
        "recurrent_hybrid": _model(
            layer(MambaConfig(32, rank=2, state=4), None),
            layer(HyenaConfig(SINE_WINDOW, short_bias=False)),
            layer(ROPE),
            layer(BasedConfig(4, 3), SWIGLU),
        ),
        # Choices by learned scores and by sums stand first, where no rounding can turn them.
        "selection": _model(
            layer(SelectionConfig(heads=2, choose="running_top", count=20)),
            layer(HyenaConfig(explicit(length))),
            layer(SelectionConfig(heads=4, choose="bigram_seen", bias=False), None),
            layer(SelectionConfig(heads=1, choose="random", share=0.4, seed=7), None),
        ),
        "input_lags": _model(
            layer(AutocorrelationConfig(top_k=3, lags="running", max_lag=24)),
            layer(HyenaConfig(explicit(length))),
            layer(AutocorrelationConfig(top_k=2, lags="repeats", max_lag=60), None),
            layer(SelectionConfig(heads=2, choose="token_seen"), None),
        ),
    }


CAUSAL = causal(LENGTH)
BIDIRECTIONAL = _model(layer(HyenaConfig(IMPLICIT, bidirectional=True)))


def weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Random tensors for a config, scaled so that activations stay near 1."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}

    def normal(name: str, *shape: int, scale: float, mean: float = 0.0) -> None:
        tensors[name] = (mean + scale * rng.standard_normal(shape)).astype(np.float32)

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        normal(f"{name}.weight", rows, columns, scale=columns**-0.5)
        if bias:
            normal(f"{name}.bias", rows, scale=0.1)

    def norm(name: str) -> None:
        normal(f"{name}.weight", config.d_model, scale=0.1, mean=1.0)
        if config.norm.kind == "layernorm":
            normal(f"{name}.bias", config.d_model, scale=0.1)

    def positional(f: FilterConfig) -> np.ndarray:
        t = np.linspace(0, 1, f.taps)
        bands = np.linspace(1e-4, f.bands - 1, f.bands)
        angle = bands * (2 * np.pi * np.arange(f.taps) / f.taps)[:, None]
        z = np.concatenate([t[:, None], np.cos(angle), -np.sin(angle)], 1)
        return z.astype(np.float32)

    def long_filter(prefix: str, f: FilterConfig, channels: int) -> None:
        features = 2 * f.bands + 1
        if f.kind == "explicit":
            decay = np.exp(-np.arange(f.taps) / 40)
            normal(f"{prefix}.taps", channels, f.taps, scale=0.3)
            tensors[f"{prefix}.taps"] *= decay.astype(np.float32)
            return
        if f.kind == "modal":
            radius = rng.uniform(0.8, 0.99, (channels, f.modes))
            angle = rng.uniform(0, np.pi, (channels, f.modes))
            poles = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
            tensors[f"{prefix}.poles"] = poles.astype(np.float32)
            normal(f"{prefix}.residues", channels, f.modes, 2, scale=0.3)
            return
        if f.kind == "shift":
            for name in "BC":
                normal(f"{prefix}.{name}", channels, f.taps, scale=f.taps**-0.5)
            return
        if f.kind == "ssm_diag":
            normal(f"{prefix}.B", channels, f.modes, 2, scale=0.1, mean=0.7)
            normal(f"{prefix}.C", channels, f.modes, 2, scale=2.0)
            normal(f"{prefix}.log_decay", channels, f.modes, scale=0.05, mean=-0.7)
            normal(f"{prefix}.frequency", channels, f.modes, scale=0.05)
            tensors[f"{prefix}.frequency"] += np.pi * np.arange(f.modes, dtype=np.float32)
            normal(f"{prefix}.log_dt", channels, scale=0.7, mean=-3.0)
            return
        if f.kind == "relu_mlp":
            tensors[f"{prefix}.features"] = positional(f)
            linear(f"{prefix}.linear.0", f.width, features, True)
            linear(f"{prefix}.linear.1", channels, f.width, True)
            for part in ("weight", "bias"):  # taps do not decay, so they are small
                tensors[f"{prefix}.linear.1.{part}"] *= np.float32(0.1)
            return
        for k in range(f.sine_layers):
            linear(f"{prefix}.linear.{k}", f.width, f.width if k else features, True)
            normal(f"{prefix}.freq.{k}", f.width, scale=0.1, mean=2.0)
        linear(f"{prefix}.linear.{f.sine_layers}", channels, f.width, False)
        if f.kind == "sine_window":
            normal(f"{prefix}.log_rate", channels, scale=0.5, mean=-3.0)
            return
        tensors[f"{prefix}.features"] = positional(f)
        tensors[f"{prefix}.times"] = np.linspace(0, 1, f.taps).astype(np.float32)
        tensors[f"{prefix}.deltas"] = np.linspace(-3, -15, channels).astype(np.float32)

    def recurrent(prefix: str, m: RecurrentConfig) -> None:
        # What is about 1, or drawn from a range, in trained models.
        special = {"A_log": (0.5, 1.0), "skip": (1.0, 0.5), "time_decay": (-2.0, 1.5)}
        special |= {"dt_proj.bias": (-2.0, 1.5), "time_first": (0.0, 1.0)}
        special |= {f"mix_{name}": (0.5, 0.3) for name in "kvr"}
        for name, shape in recurrent_shapes(m, config.d_model).items():
            mean, scale = special.get(name, (0.0, shape[-1] ** -0.5 if len(shape) > 1 else 0.1))
            normal(f"{prefix}.{name}", *shape, scale=scale, mean=mean)

    def mixer(prefix: str, m: MixerConfig) -> None:
        width = config.d_model
        if isinstance(m, AttentionConfig):
            linear(f"{prefix}.qkv", 3 * width, width, m.bias)
            linear(f"{prefix}.out_proj", width, width, m.bias)
        elif isinstance(m, HyenaConfig):
            channels = (m.order + 1) * width
            linear(f"{prefix}.in_proj", channels, width, m.bias)
            normal(f"{prefix}.short_conv.weight", channels, m.short_taps, scale=m.short_taps**-0.5)
            if m.short_bias:
                normal(f"{prefix}.short_conv.bias", channels, scale=0.1)
            if m.skip and m.order > 1:
                normal(f"{prefix}.skip", m.order - 1, width, scale=0.5)
            if m.order > 1:
                long_filter(f"{prefix}.filter", m.filter, (m.order - 1) * width)
            linear(f"{prefix}.out_proj", width, width, m.bias)
        elif isinstance(m, LongConvConfig):
            long_filter(f"{prefix}.filter", m.filter, m.channels * width)
            normal(f"{prefix}.skip", m.channels, width, scale=0.5)
            linear(f"{prefix}.out_proj", 2 * width, m.channels * width, True)
        elif isinstance(m, BaseConvConfig):
            linear(f"{prefix}.projection", width, width, True)
            if m.filter is not None:
                long_filter(f"{prefix}.filter", m.filter, width)
            else:
                normal(f"{prefix}.short_conv.weight", width, m.short_taps, scale=m.short_taps**-0.5)
                normal(f"{prefix}.short_conv.bias", width, scale=0.1)
        elif isinstance(m, RecurrentConfig):
            recurrent(prefix, m)
        elif isinstance(m, SelectionConfig):
            linear(f"{prefix}.qkv", 3 * width, width, m.bias)
            linear(f"{prefix}.out_proj", width, width, True)
            if m.choose in TOPS:
                sma = m.choose == "sma_top"
                linear(f"{prefix}.score", 1 + sma, width, m.choose != "sigmoid_top")
                if sma:
                    normal(f"{prefix}.score.temperature", 1, scale=0.1, mean=1.0)
        elif isinstance(m, S4DConfig):
            long_filter(f"{prefix}.filter", diagonal_filter(m), width)
            normal(f"{prefix}.skip", width, scale=0.5)
            linear(f"{prefix}.out_proj", width, width, True)
        elif isinstance(m, H3Config):
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(f"{prefix}.{name}", width, width, True)
            long_filter(f"{prefix}.shift_filter", shift_filter(m), width)
            long_filter(f"{prefix}.filter", diagonal_filter(m), width // m.head_dim)
            normal(f"{prefix}.shift_skip", width, scale=0.5)
            normal(f"{prefix}.skip", width // m.head_dim, scale=0.5)
        elif isinstance(m, H3ConvConfig):
            for name in "qkv":
                linear(f"{prefix}.{name}_proj", width, width, True)
            linear(f"{prefix}.out_proj", width, width, True)
            long_filter(f"{prefix}.shift_filter", m.filter, width)
            long_filter(f"{prefix}.filter", m.filter, width)
            normal(f"{prefix}.shift_skip", width, scale=0.5)
            normal(f"{prefix}.skip", width, scale=0.5)

    normal("embedding.weight", config.logits_width, config.d_model, scale=0.5)
    if config.positions is not None:
        normal("positions.weight", config.positions, config.d_model, scale=0.5)
    for i, one in enumerate(config.layers):
        norm(f"layers.{i}.norm1")
        mixer(f"layers.{i}.mixer", one.mixer)
        if one.mlp is not None:
            norm(f"layers.{i}.norm2")
        if one.mlp is not None and one.mlp.kind != "identity":
            wide = one.mlp.width * (2 if one.mlp.kind == "swiglu" else 1)
            linear(f"layers.{i}.mlp.up", wide, config.d_model, one.mlp.bias)
            linear(f"layers.{i}.mlp.down", config.d_model, one.mlp.width, one.mlp.bias)
    norm("norm")
    if not config.tie_embeddings:
        normal("head.weight", config.logits_width, config.d_model, scale=config.d_model**-0.5)
    return Weights(config, tensors, Path("toy"), {}, (), f"toy-{seed}")


def model(config: ModelConfig, threads: int = 1, seed: int = 0, **options: object) -> Model:
    return Model(weights(config, seed), None, threads=threads, **options)  # type: ignore[arg-type]


def tokens(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, n).astype(np.int32)


def dna_folder(path: Path, longest: int = 50_000) -> Path:
    """A model folder with random weights: two Hyena layers, 12 ids of 16 rows."""
    hyena = HyenaConfig(replace(IMPLICIT, taps=longest))
    config = _model(
        layer(hyena, GELU),
        layer(hyena, GELU),
        vocab_size=12,
        logits_width=16,
        max_length=longest,
        tokenizer=TokenizerConfig("dna"),
        special_tokens=SpecialTokens(bos=2, eos=1, pad=4),
        name="dna-toy",
    )
    save_folder(path, config, weights(config).tensors)
    return path
