"""A whole model in float64, written as the papers write it: direct, slow, nothing shared.

One function per operator; x is always [T, D] float64, T tokens of one sequence. The filters come
from `reference.filters`. Used by tests and as the statement of what the engine computes.

Sources: Hyena (Poli et al. 2023), HyenaDNA (Nguyen et al. 2023) and their code; docs/formats.md
for `sine_window`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..config import (
    AttentionConfig,
    BaseConvConfig,
    FilterConfig,
    H3ConvConfig,
    HyenaConfig,
    LongConvConfig,
    MixerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    RotaryConfig,
    diagonal_filter,
    shift_filter,
)
from ..config_recurrent import RecurrentConfig
from ..config_selection import AutocorrelationConfig, SelectionConfig
from ..config_ssm import H3Config, S4DConfig
from . import recurrent
from .filters import long_filter
from .selection import autocorrelation, selection
from .ssm import under

F64 = NDArray[np.float64]
Tensors = Mapping[str, NDArray[np.float32]]


def hidden(config: ModelConfig, tensors: Tensors, ids: NDArray[np.int32]) -> F64:
    """[T, D] after the final norm."""
    t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = t["embedding.weight"][ids]
    if "positions.weight" in t:
        x = x + t["positions.weight"][: len(ids)]
    for i, layer in enumerate(config.layers):
        own = under(t, f"layers.{i}.")
        x = x + mixer(layer.mixer, under(own, "mixer."), norm(config.norm, own, "norm1", x), ids)
        if layer.mlp is not None:
            x = x + mlp(layer.mlp, under(own, "mlp."), norm(config.norm, own, "norm2", x))
    return norm(config.norm, t, "norm", x)


def logits(config: ModelConfig, tensors: Tensors, ids: NDArray[np.int32]) -> F64:
    """[T, V]."""
    name = "embedding.weight" if config.tie_embeddings else "head.weight"
    return hidden(config, tensors, ids) @ tensors[name].astype(np.float64).T


def norm(config: NormConfig, t: Mapping[str, F64], name: str, x: F64) -> F64:
    """LayerNorm with biased variance, or RMSNorm."""
    if config.kind == "layernorm":
        x = x - x.mean(axis=1, keepdims=True)
    scaled = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + config.eps)
    return scaled * t[f"{name}.weight"] + t.get(f"{name}.bias", 0.0)


def mlp(config: MlpConfig, t: Mapping[str, F64], x: F64) -> F64:
    """down(act(up x)), its gated form, or x itself."""
    if config.kind == "identity":
        return x
    h = linear(t, "up", x)
    if config.kind == "swiglu":
        gate, value = np.split(h, 2, axis=1)
        h = gate * sigmoid(gate) * value
    else:
        h = gelu_tanh(h) if config.kind == "gelu_tanh" else gelu_erf(h)
    return linear(t, "down", h)


def mixer(config: MixerConfig, t: Mapping[str, F64], x: F64, ids: NDArray[np.int32]) -> F64:
    """The operator a config describes, on one whole sequence with these ids."""
    if isinstance(config, HyenaConfig):
        return hyena(config, t, x)
    if isinstance(config, AttentionConfig):
        return attention(config, t, x)
    if isinstance(config, LongConvConfig):
        return long_conv_layer(config, t, x)
    if isinstance(config, BaseConvConfig):
        return base_conv(config, t, x)
    if isinstance(config, RecurrentConfig):
        return recurrent.mixer(config, t, x)
    if isinstance(config, SelectionConfig):
        attn = attention(AttentionConfig(config.heads), t, x)
        return selection(config, t, x, ids, attn)
    if isinstance(config, AutocorrelationConfig):
        return autocorrelation(config, x, ids)
    if isinstance(config, H3Config):
        return h3(config, t, x)
    if isinstance(config, S4DConfig):
        return s4d(config, t, x)
    return h3_conv(config, t, x)


def hyena(config: HyenaConfig, t: Mapping[str, F64], x: F64) -> F64:
    """in_proj, short convolution, N - 1 gated long convolutions, last gate, out_proj."""
    width, order = x.shape[1], config.order
    p = short_conv(linear(t, "in_proj", x), t["short_conv.weight"], t.get("short_conv.bias"))
    chunks = [p[:, i * width : (i + 1) * width] for i in range(order + 1)]
    v = chunks[order]
    if order > 1:
        h = taps(config.filter, under(t, "filter."), len(x))
    for o in range(order - 1):
        v = v * chunks[order - 1 - o]
        own = h[o * width : (o + 1) * width]
        convolved = delayed_conv(own, v) if config.bidirectional else causal_conv(own, v)
        v = convolved + t["skip"][o] * v if config.skip else convolved
    return linear(t, "out_proj", v * chunks[0])


def attention(config: AttentionConfig, t: Mapping[str, F64], x: F64) -> F64:
    """softmax(q k^T / sqrt(hd)) v per head over the positions in sight."""
    length, width = x.shape
    hd = width // config.heads
    q, k, v = (
        part.reshape(length, config.heads, hd) for part in np.split(linear(t, "qkv", x), 3, axis=1)
    )
    if config.rotary is not None:
        q, k = rotary(q, config.rotary), rotary(k, config.rotary)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(hd)
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    window = config.window or length
    seen = (j <= i) & (i // window == j // window if config.blocked else i - j < window)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    mixed = np.einsum("hij,jhd->ihd", weights, v).reshape(length, width)
    return linear(t, "out_proj", mixed)


def rotary(x: F64, config: RotaryConfig) -> F64:
    """x [T, H, hd]: element i of the first `dims` (None: hd) turns with element i + dims/2 by
    position * base^(-2 i / dims).
    """
    length, _, hd = x.shape
    dims = hd if config.dims is None else config.dims
    angle = np.arange(length)[:, None] * config.base ** (-np.arange(0, dims, 2) / dims)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second, rest = np.split(x, [dims // 2, dims], axis=-1)
    turned = [first * cos - second * sin, first * sin + second * cos, rest]
    return np.concatenate(turned, axis=-1)


def long_conv_layer(config: LongConvConfig, t: Mapping[str, F64], x: F64) -> F64:
    """safari LongConv, causal: taps act on the past only."""
    width = x.shape[1]
    h = taps(config.filter, under(t, "filter."), len(x))
    copies = [
        causal_conv(h[c * width : (c + 1) * width], x) + t["skip"][c] * x
        for c in range(config.channels)
    ]
    value, gate = np.split(
        linear(t, "out_proj", gelu_erf(np.concatenate(copies, axis=1))), 2, axis=1
    )
    return value * sigmoid(gate)


def h3_conv(config: H3ConvConfig, t: Mapping[str, F64], x: F64) -> F64:
    """safari H3Conv with head size 1, causal."""
    q, k, v = (linear(t, f"{name}_proj", x) for name in "qkv")
    first = taps(config.filter, {"taps": t["shift_filter.taps"]}, len(x))
    second = taps(config.filter, {"taps": t["filter.taps"]}, len(x))
    s = (causal_conv(first, k) + t["shift_skip"] * k) * v
    return linear(t, "out_proj", q * (causal_conv(second, s) + t["skip"] * s))


def base_conv(config: BaseConvConfig, t: Mapping[str, F64], x: F64) -> F64:
    """Zoology's BaseConv (Arora et al. 2023, arXiv 2312.04927, and its code), causal."""
    if config.filter is None:
        conv = short_conv(x, t["short_conv.weight"], t["short_conv.bias"])
    else:
        conv = causal_conv(taps(config.filter, under(t, "filter."), len(x)), x) + x
    projected = linear(t, "projection", x)
    if config.activation:
        conv, projected = conv * sigmoid(conv), projected * sigmoid(projected)
    return conv * projected + x


def h3(config: H3Config, t: Mapping[str, F64], x: F64) -> F64:
    """H3 (Fu et al. 2022, arXiv 2212.14052, and its code); channel i H + h is part i of head h."""
    q, k, v = (linear(t, f"{name}_proj", x) for name in "qkv")
    heads = len(t["skip"])
    first = taps(shift_filter(config), under(t, "shift_filter."), len(x))
    second = diagonal_taps(config, t, len(x))
    s = causal_conv(first, k) + t["shift_skip"] * k
    out = np.zeros_like(q)
    parts = [slice(i * heads, (i + 1) * heads) for i in range(config.head_dim)]
    for i in parts:
        for j in parts:
            kv = s[:, i] * v[:, j]
            out[:, j] += q[:, i] * (causal_conv(second, kv) + t["skip"] * kv)
    return linear(t, "out_proj", out)


def s4d(config: S4DConfig, t: Mapping[str, F64], x: F64) -> F64:
    """S4D (Gu et al. 2022, arXiv 2206.11893)."""
    y = causal_conv(diagonal_taps(config, t, len(x)), x) + t["skip"] * x
    return linear(t, "out_proj", gelu_erf(y))


def diagonal_taps(config: H3Config | S4DConfig, t: Mapping[str, F64], length: int) -> F64:
    """The diagonal filter of a mixer, [C, length]."""
    return long_filter(replace(diagonal_filter(config), taps=length), under(t, "filter."))


# ---- pieces


def linear(t: Mapping[str, F64], name: str, x: F64) -> F64:
    """x W^T + b."""
    return x @ t[f"{name}.weight"].T + t.get(f"{name}.bias", 0.0)


def short_conv(x: F64, weight: F64, bias: F64 | None) -> F64:
    """out[t] = sum_j weight[:, K-1-j] x[t-j] + bias."""
    out = np.zeros_like(x)
    for j in range(weight.shape[1]):
        out[j:] += weight[:, -1 - j] * x[: len(x) - j]
    return out if bias is None else out + bias


def causal_conv(h: F64, x: F64) -> F64:
    """h [D, L], x [T, D] -> y[t] = sum_{s <= t} h[t-s] x[s]."""
    y = np.zeros_like(x)
    for lag in range(min(h.shape[1], len(x))):
        y[lag:] += h[:, lag] * x[: len(x) - lag]
    return y


def delayed_conv(h: F64, x: F64) -> F64:
    """y[t] = sum_i h[(t - floor(L/2) - i) mod 2L] x[i], h zero beyond L."""
    length = len(x)
    padded = np.zeros((2 * length, x.shape[1]))
    padded[:length] = h[:, :length].T
    lags = (np.arange(length)[:, None] - length // 2 - np.arange(length)[None, :]) % (2 * length)
    return np.einsum("tic,ic->tc", padded[lags], x)


def taps(config: FilterConfig, t: Mapping[str, F64], length: int) -> F64:
    """[C, min(length, taps)]."""
    return long_filter(config, t)[:, :length]


def sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def gelu_tanh(x: F64) -> F64:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: F64) -> F64:
    return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
