"""Zoology's models (Arora et al. 2023, arXiv 2312.04927; Apache-2.0 code, read at d88d6f5).

One shell holds many sequence mixers; which classes are known says `zoology_mixers.MIXERS`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ..config import (
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    check,
)
from ..errors import ModelError
from . import backbone, safari
from .foreign import Keys, Source
from .naming import Array, Tensor, collect
from .native import shapes
from .zoology_mixers import MIXERS, Found, Place

_TRAINING_KEYS = "name resid_dropout embed_dropout drop_path"
_LAYER_PREFIX = re.compile(r"backbone\.layers\.\d{1,9}\.sequence_mixer\.")
_MLP_KEYS = {"mlp.up": "state_mixer.fc1", "mlp.down": "state_mixer.fc2"}


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
    table = stored.get(backbone.MODEL_KEYS["positions.weight"])
    return 0 if table is None else safari.rows(table)


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
        if name in backbone.MODEL_KEYS:
            keys = [backbone.MODEL_KEYS[name]]
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
