"""Zoology's models (Arora et al. 2023, arXiv 2312.04927; Apache-2.0 code, read at d88d6f5).

One shell holds many sequence mixers. `MIXERS` has a function for every class that is known: it
reads the options of the class and says which tensors its layer has. Nothing else here knows one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..config import (
    AttentionConfig,
    BaseConvConfig,
    FilterConfig,
    LayerConfig,
    MixerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    check,
)
from ..config_selection import SelectionConfig
from ..errors import ModelError
from . import backbone, h3, safari
from .foreign import Keys, Source
from .naming import Array, Tensor, collect
from .native import mixer_shapes, shapes
from .zoology_recurrent import RECURRENT, stored_shape

_TRAINING_KEYS = "name resid_dropout embed_dropout drop_path"
_POSITIONS = "backbone.embeddings.position_embeddings.weight"
_MODEL_KEYS = {
    "embedding.weight": "backbone.embeddings.word_embeddings.weight",
    "positions.weight": _POSITIONS,
    "norm.weight": "backbone.ln_f.weight",
    "norm.bias": "backbone.ln_f.bias",
    "head.weight": "lm_head.weight",
}
_LAYER_PREFIX = re.compile(r"backbone\.layers\.\d{1,9}\.sequence_mixer\.")
_MLP_KEYS = {"mlp.up": "state_mixer.fc1", "mlp.down": "state_mixer.fc2"}

_Choice = Literal["softmax_top", "sigmoid_top", "sma_top"]


@dataclass(frozen=True)
class Place:
    """Where a mixer stands."""

    layer: int  # its number
    d_model: int
    stored: Mapping[str, Array]  # the tensors of the layer's mixer, by their full names
    shift: float | None  # of filter windows, if the caller asked for one


@dataclass(frozen=True)
class Found:
    """A mixer as the engine knows it.

    tensors: one for each native tensor of the mixer; both names without the prefix of the layer.
    unused: stored names, likewise, that the original writes and the engine has no use for.
    max_length: the longest sequence that the original takes, or None.
    """

    mixer: MixerConfig
    tensors: list[Tensor]
    unused: tuple[str, ...] = ()
    max_length: int | None = None


def load(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """Config and native tensors of a Zoology model. Raises ModelError, NumericError."""
    keys = Keys(data, source.config)
    D, layers, vocab = map(keys.positive, ("d_model", "n_layers", "vocab_size"))
    backbone.check_layer_count(layers, stored, keys.where, "n_layers")
    safari.require_block_eps(keys)
    keys.require("block_type", "TransformerBlock", "the blocks of others have another form")
    prefixes, found = _mixers(keys.section("sequence_mixer"), layers, D, stored, source)
    mlp = _state_mixer(keys.section("state_mixer"), D)
    positions = keys.integer("max_position_embeddings", _table_rows(stored))
    rows = safari.embedding_rows(stored, vocab, keys.positive("pad_vocab_size_multiple", 1), keys)
    limits = [one.max_length for one in found if one.max_length is not None]
    config = ModelConfig(
        d_model=D,
        vocab_size=vocab,
        logits_width=rows,
        max_length=min([*limits, positions] if positions > 0 else limits, default=None),
        tie_embeddings=keys.flag("learnable_word_embeddings", True),
        norm=NormConfig("layernorm", 1e-5),
        layers=tuple(LayerConfig(one.mixer, mlp) for one in found),
        positions=positions if positions > 0 else None,
        family="zoology",
    )
    keys.skip(_TRAINING_KEYS)
    keys.finish()
    check(config, source.config)
    wanted = [*_shell(config), *_below(prefixes, found)]
    unused = [p + name for p, one in zip(prefixes, found, strict=True) for name in one.unused]
    lax = source.allow_nonfinite
    tensors, notes = collect(wanted, stored, source.weights, ignorable=unused, allow_nonfinite=lax)
    return config, tensors, keys.notes + notes


def _table_rows(stored: Mapping[str, Array]) -> int:
    """Rows of the stored position table, 0 without one."""
    return safari.rows(stored[_POSITIONS]) if _POSITIONS in stored else 0


def _mixers(
    module: Keys, layers: int, D: int, stored: Mapping[str, Array], source: Source
) -> tuple[list[str], list[Found]]:
    """Of every layer, the prefix of the mixer's stored tensors and the mixer."""
    chosen, below = [module], ""
    if _class_name(module) == "Hybrid":
        chosen, below = _hybrid(module), "mixer."
    prefixes = [f"{_layer_prefix(i)}{below}" for i in range(layers)]
    own: dict[str, dict[str, Array]] = {_layer_prefix(i): {} for i in range(layers)}
    for name, value in stored.items():
        prefix = _LAYER_PREFIX.match(name)
        if prefix and prefix[0] in own:
            own[prefix[0]][name] = value
    found = []
    for i in range(layers):
        place = Place(i, D, own[_layer_prefix(i)], source.modulation_shift)
        found.append(_mixer(chosen[i % len(chosen)], place))
    module.notes[:] = dict.fromkeys(module.notes)  # each once, however many layers say it
    return prefixes, found


def _layer_prefix(layer: int) -> str:
    return f"backbone.layers.{layer}.sequence_mixer."


def _mixer(module: Keys, place: Place) -> Found:
    name = _class_name(module)
    if name not in MIXERS:
        raise ModelError(
            f"{module.where}: name is {module.data['name']!r:.80}, a class that is not known here; "
            f"known: {', '.join(MIXERS)}, Hybrid"
        )
    options = module.section("kwargs")
    found = MIXERS[name](options, place)
    options.finish()
    module.finish()
    return found


def _hybrid(module: Keys) -> list[Keys]:
    """The mixers that the layers take in turn: layer i has the one of number i mod n."""
    options = module.section("kwargs")
    configs = options.data.get("configs")
    if not isinstance(configs, list) or not configs:
        raise ModelError(f"{options.where}: configs must be a list of mixers, got {configs!r:.60}")
    return [Keys(c, f"{options.where}: configs[{i}]", module.notes) for i, c in enumerate(configs)]


def _class_name(module: Keys) -> str:
    """`MHA` of `zoology.mixers.attention.MHA`: classes have moved between the code's files."""
    name = module.data.get("name")
    if not isinstance(name, str):
        raise ModelError(f"{module.where}: name must be that of a class, got {name!r:.60}")
    module.skip("name")
    return name.rpartition(".")[2]


def _state_mixer(module: Keys, D: int) -> MlpConfig:
    """Identity does not mean that there is no MLP: norm2 of the residual stream is added to it."""
    if not module.data:
        return MlpConfig("gelu_erf", 4 * D)
    name, options = _class_name(module), module.section("kwargs")
    if name == "Identity":
        mlp = MlpConfig("identity", 0, bias=False)
    elif name == "MLP":
        mlp = MlpConfig("gelu_erf", options.positive("hidden_mult", 4) * D)
    else:
        raise ModelError(
            f"{module.where}: name is {module.data['name']!r:.80}; known: MLP, torch.nn.Identity"
        )
    options.finish()
    module.finish()
    return mlp


def _shell(config: ModelConfig) -> list[Tensor]:
    """Every tensor outside the mixers; a tied head is a copy of the embedding."""
    found = []
    for name, shape in shapes(config).items():
        if ".mixer." in name:
            continue
        if name in _MODEL_KEYS:
            keys = [_MODEL_KEYS[name]]
            if name == "embedding.weight" and config.tie_embeddings:
                keys.append("lm_head.weight")
            found.append(Tensor(name, shape, tuple(keys)))
            continue
        _, layer, part = name.split(".", 2)
        stem, _, last = part.rpartition(".")
        key = f"backbone.layers.{layer}.{_MLP_KEYS.get(stem, stem)}.{last}"
        found.append(Tensor(name, shape, (key,)))
    return found


def _below(prefixes: list[str], found: list[Found]) -> list[Tensor]:
    """The tensors of all mixers under their full names."""
    return [
        dataclasses.replace(
            tensor,
            native=f"layers.{i}.mixer.{tensor.native}",
            keys=tuple(prefix + key for key in tensor.keys),
        )
        for i, (prefix, one) in enumerate(zip(prefixes, found, strict=True))
        for tensor in one.tensors
    ]


def renamed(mixer: MixerConfig, D: int, names: Mapping[str, str]) -> list[Tensor]:
    """The tensors of a mixer in their native shapes.

    names: the stored names of those that differ, by native name; both may stand for what comes
    before `.weight` and `.bias`.
    """
    found = []
    for name, shape in mixer_shapes(mixer, D).items():
        stem, _, last = name.rpartition(".")
        stored = names.get(name) or f"{names.get(stem, stem)}.{last}"
        found.append(Tensor(name, shape, (stored,)))
    return found


def reshaped(tensor: Tensor, stored: tuple[int, ...]) -> Tensor:
    """A tensor that lies in the file in another shape, its numbers in the same order."""
    return dataclasses.replace(tensor, shape=stored, convert=lambda a: a.reshape(tensor.shape))


# ---- one function for every class


def _mha(options: Keys, place: Place) -> Found:
    options.require("bias", True, "the original has the bias of out_proj all the same")
    mixer = AttentionConfig(heads=options.positive("num_heads", 1))
    options.skip("dropout")
    return Found(mixer, renamed(mixer, place.d_model, {"qkv": "Wqkv"}))


def _hyena(options: Keys, place: Place) -> Found:
    """Chunks x1, x2, v, of which the first is the inner gate; in the engine it is the second."""
    options.require("order", 2, "the original runs no other order")
    options.require("bidirectional", False, "the original fails")
    shift = options.number("shift", 0.0)
    mixer = safari.hyena_config(options, shift if place.shift is None else place.shift)
    backbone.check_grid_length(mixer.filter.taps, "l_max", place.stored, options.where)
    tensors = [
        _gates_swapped(tensor) if tensor.native.startswith(("in_proj.", "short_conv.")) else tensor
        for tensor in backbone.hyena_operator(mixer, place.d_model)
    ]
    unused = tuple(backbone.unused_keys("", mixer))
    return Found(mixer, tensors, unused, max_length=mixer.filter.taps)


def _gates_swapped(tensor: Tensor) -> Tensor:
    """With the first two thirds of the rows in each other's place."""
    before = tensor.convert

    def swapped(a: Array) -> Array:
        first, second, value = np.split(a if before is None else before(a), 3)
        return np.concatenate([second, first, value])

    return dataclasses.replace(tensor, convert=swapped)


def _base_conv(options: Keys, place: Place) -> Found:
    activation = options.flag("use_act", False)
    implicit = options.flag("implicit_long_conv", True)
    taps, size = options.positive("l_max"), _kernel_size(options, place.layer)
    if size > 0:
        mixer = BaseConvConfig(short_taps=size, activation=activation)
    elif implicit:
        filter = FilterConfig("relu_mlp", taps, width=16, bands=1)
        mixer = BaseConvConfig(filter, activation=activation)
    else:
        mixer = BaseConvConfig(FilterConfig("explicit", taps), activation=activation)
    tensors = renamed(mixer, place.d_model, _BASE_CONV_NAMES)
    return Found(mixer, [_base_conv_tensor(tensor) for tensor in tensors])


def _kernel_size(options: Keys, layer: int) -> int:
    """Taps of a short convolution, or -1 for a long one; a list has one entry a layer."""
    found = options.data.get("kernel_size", 3)
    options.skip("kernel_size")
    if isinstance(found, list):
        if layer >= len(found):
            raise ModelError(
                f"{options.where}: kernel_size lists {len(found)} layers, there is a layer {layer}"
            )
        found = found[layer]
    if type(found) is not int or (found < 1 and found != -1):
        raise ModelError(
            f"{options.where}: kernel_size of layer {layer} is {found!r:.60}, "
            "must be a number of taps or -1"
        )
    return found


_BASE_CONV_NAMES = {
    "short_conv": "conv.conv",
    "filter.taps": "conv.filter",
    "filter.features": "conv.pos_emb.z",
    "filter.linear.0": "conv.mlp.0",
    "filter.linear.1": "conv.mlp.2",
}


def _base_conv_tensor(tensor: Tensor) -> Tensor:
    """As it is stored: two have an axis of length 1 more."""
    if tensor.native == "short_conv.weight":
        return reshaped(tensor, (tensor.shape[0], 1, tensor.shape[1]))
    return reshaped(tensor, (1, *tensor.shape)) if tensor.native == "filter.features" else tensor


def _sliding_attention(options: Keys, place: Place) -> Found:
    """Of one head. A row sees the `block_size` before it, and itself."""
    options.require("bias", True, "the original has the bias of out_proj all the same")
    mixer = AttentionConfig(heads=1, window=options.positive("block_size", 256) + 1)
    options.skip("dropout")
    return Found(mixer, renamed(mixer, place.d_model, {"qkv": "Wqkv"}))


def _recurrent(name: str) -> Callable[[Keys, Place], Found]:
    read, names = RECURRENT[name]

    def found(options: Keys, place: Place) -> Found:
        mixer = read(options, place.d_model)
        tensors = [
            reshaped(tensor, stored_shape(tensor.native, tensor.shape))
            for tensor in renamed(mixer, place.d_model, names)
        ]
        return Found(mixer, tensors)

    return found


def _lookups(choose: _Choice, score: str) -> Callable[[Keys, Place], Found]:
    """Of the three classes that attend from chosen positions; `score`: their stored scorer."""

    def read(options: Keys, place: Place) -> Found:
        count = None
        if choose == "sigmoid_top" and options.has("n_lookups"):
            count = options.positive("n_lookups")
        mixer = SelectionConfig(
            heads=options.positive("num_heads", 1),
            choose=choose,
            count=count,
            bias=options.flag("bias", True),
        )
        options.skip("dropout layer_idx n_lookups selection_penalty alpha")
        names = {"qkv": "Wqkv", "score": score}
        tensors = renamed(mixer, place.d_model, names)
        if choose == "sma_top":
            tensors[-1] = dataclasses.replace(tensors[-1], keys=("temperature",))
        return Found(mixer, tensors)

    return read


def _h3(options: Keys, place: Place) -> Found:
    mixer, longest = h3.options(options, place.d_model)
    tensors = h3.layer_tensors(mixer, place.d_model, place.stored)
    return Found(mixer, tensors, max_length=longest or None)


MIXERS: dict[str, Callable[[Keys, Place], Found]] = {
    "MHA": _mha,
    "Hyena": _hyena,
    "BaseConv": _base_conv,
    "SlidingAttn": _sliding_attention,
    **{name: _recurrent(name) for name in RECURRENT},
    "SelectiveLookups": _lookups("softmax_top", "selecting"),
    "SigmoidLookups": _lookups("sigmoid_top", "selecting"),
    "SMA": _lookups("sma_top", "selection_proj"),
    "H3": _h3,
}
