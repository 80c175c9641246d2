"""H3 language models (Fu et al. 2022, arXiv 2212.14052; Apache-2.0 code), and H3 layers of others.

H3 in most layers, attention in a few; the shell is that of safari. Configurations are the
arguments of the original's language model, recognised by `ssm_cfg`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..config import (
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    SpecialTokens,
    check,
)
from ..config_ssm import H3Config
from ..config_ssm import check as check_mixer
from . import backbone, safari
from .foreign import Keys, Source
from .naming import Array, Tensor, clean, collect
from .native import mixer_shapes

_TRAINING_KEYS = (
    "resid_dropout embed_dropout initializer_cfg fused_mlp fused_dropout_add_ln residual_in_fp32"
)
# What only sets the values that training begins from, or how fast they change.
_INITIAL_KEYS = (
    "measure rank dt_min dt_max deterministic lr n_ssm verbose measure_args dropout "
    "use_fast_fftconv layer_idx"
)
_NAMES = {  # native names of a layer to those of the original
    "out_proj.weight": "output_linear.weight",
    "out_proj.bias": "output_linear.bias",
    "shift_skip": "ssm_k_D",
    "skip": "D",
    "shift_filter.B": "ssm_k_kernel.kernel.B",
    "shift_filter.C": "ssm_k_kernel.kernel.C",
    "filter.B": "kernel.kernel.B",
    "filter.C": "kernel.kernel.C",
    "filter.log_decay": "kernel.kernel.inv_A_real",
    "filter.frequency": "kernel.kernel.A_imag",
    "filter.log_dt": "kernel.kernel.log_dt",
}
_WITH_CHANNELS = ("q_proj.", "k_proj.", "v_proj.", "shift_")  # whose rows are channels
_TIED = ("filter.B", "filter.log_decay", "filter.frequency")  # several heads may share a row


def load(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """Config and native tensors of an H3 language model. Raises ModelError, NumericError."""
    named = clean(stored, ("model.",), source.weights)
    tensors = safari.author_rewrites(named, source.weights)
    config, notes = _language_model(data, tensors, source)
    check(config, source.config)
    rates = [f"backbone.layers.{i}.mixer.rotary_emb.inv_freq" for i in range(len(config.layers))]
    native, more = collect(
        _wanted(config, tensors),
        tensors,
        source.weights,
        ignorable=rates,  # follow from the configuration
        allow_nonfinite=source.allow_nonfinite,
    )
    return config, native, notes + more


def _language_model(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, list[str]]:
    keys = Keys(data, source.config)
    D, layers, vocab = map(keys.positive, ("d_model", "n_layer", "vocab_size"))
    backbone.check_layer_count(layers, stored, keys.where)
    layer = keys.section("ssm_cfg")
    mixer, longest = options(layer, D)
    layer.finish()
    attention = safari.attention_layers(keys, layers, rotary=True)
    mlp = MlpConfig("gelu_tanh", keys.positive("d_inner", 4 * D))
    positions = keys.integer("max_position_embeddings", 0)
    limits = [n for n in (longest, positions) if n > 0]
    eps = keys.number("layer_norm_epsilon", 1e-5)
    rows = safari.embedding_rows(stored, vocab, keys.positive("pad_vocab_size_multiple", 1), keys)
    keys.skip(_TRAINING_KEYS)
    keys.finish()
    config = ModelConfig(
        d_model=D,
        vocab_size=vocab,
        logits_width=rows,
        max_length=min(limits, default=None),
        tie_embeddings=True,
        norm=NormConfig("layernorm", eps),
        layers=tuple(LayerConfig(attention.get(i, mixer), mlp) for i in range(layers)),
        positions=positions if positions > 0 else None,
        special_tokens=SpecialTokens(eos=safari.end_of_text(vocab)),
        family="h3",
    )
    return config, keys.notes


def options(keys: Keys, d_model: int) -> tuple[H3Config, int]:
    """The options of a layer, and the length of its filters: 0 for that of the sequence.

    Refuses by name what no public model uses.
    """
    unused = "no public model uses another"
    for name, value in (("mode", "diag"), ("real_type", "exp"), ("channels", 1)):
        keys.require(name, value, unused)
    keys.require("force_real", False, unused)
    keys.require("bandlimit", 0, unused)
    longest = keys.integer("l_max", 0)
    zoh = keys.data.get("disc") == "zoh"
    if not zoh:
        keys.require("disc", "bilinear", "zoh is the other one there is")
    keys.skip(f"disc {_INITIAL_KEYS}")
    mixer = H3Config(
        keys.positive("d_state", 64),
        head_dim=keys.positive("head_dim", 1),
        discretization="zoh" if zoh else "bilinear",
    )
    check_mixer(mixer, d_model, keys.where)
    return mixer, longest


def layer_tensors(mixer: H3Config, D: int, stored: Mapping[str, Array]) -> list[Tensor]:
    """The tensors of one layer, native and stored names without its prefix.

    stored: those of the layer by their full names.
    """
    return [
        _tensor(name, shape, mixer, D, stored) for name, shape in mixer_shapes(mixer, D).items()
    ]


def _tensor(
    native: str, shape: tuple[int, ...], mixer: H3Config, D: int, stored: Mapping[str, Array]
) -> Tensor:
    """Channel h d + i, dimension i of head h, becomes i H + h; the original's output has that order
    already.
    """
    key = _NAMES.get(native, native)
    steps: list[Callable[[Array], Array]] = []
    if native.endswith("filter.C"):
        shape = (1, *shape)
        steps.append(lambda a: a[0])
    if native in _TIED:
        rows = _rows(key, stored)
        if rows and shape[0] % rows == 0:
            copies = shape[0] // rows
            shape = (rows, *shape[1:])
            steps.append(lambda a: np.concatenate([a] * copies))
    if native.startswith(_WITH_CHANNELS) and mixer.head_dim > 1:
        order = np.arange(D).reshape(-1, mixer.head_dim).T.ravel()
        steps.append(lambda a: a[order])

    def convert(a: Array) -> Array:
        for step in steps:
            a = step(a)
        return a

    return Tensor(native, shape, (key,), convert)


def _rows(key: str, stored: Mapping[str, Array]) -> int:
    """Rows of the stored tensor whose name ends so; 0 if there is none."""
    found = (value for name, value in stored.items() if name.endswith("." + key) and value.ndim)
    return next((len(value) for value in found), 0)


def _wanted(config: ModelConfig, stored: Mapping[str, Array]) -> list[Tensor]:
    """Every tensor of a language model."""
    shell = backbone.tensors(config, head={}, may_rebuild=frozenset())
    mixers = {f"layers.{i}.mixer.": layer.mixer for i, layer in enumerate(config.layers)}
    own = {prefix: mixer for prefix, mixer in mixers.items() if isinstance(mixer, H3Config)}
    found = [tensor for tensor in shell if not tensor.native.startswith(tuple(own))]
    for prefix, mixer in own.items():
        full = f"backbone.{prefix}"
        mine = {name: value for name, value in stored.items() if name.startswith(full)}
        for tensor in layer_tensors(mixer, config.d_model, mine):
            keys = tuple(full + key for key in tensor.keys)
            found.append(replace(tensor, native=prefix + tensor.native, keys=keys))
    return found
