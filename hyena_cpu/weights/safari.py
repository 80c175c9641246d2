"""safari's Hyena language models and single layers (Apache-2.0 code, read at 02220c6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config import (
    AttentionConfig,
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
    check,
)
from ..errors import ModelError
from . import backbone
from .foreign import Keys, Source
from .naming import Array, Tensor, clean, collect, rename
from .native import mixer_shapes

_TRAINING_KEYS = "_name_ name resid_dropout embed_dropout return_hidden_state initializer_cfg"
_LAYER_TRAINING_KEYS = "lr wd lr_pos_emb w dropout filter_dropout"
_GPT2_VOCABULARY = 50257


def load(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """Config and native tensors of a safari language model. Raises ModelError, NumericError."""
    tensors = author_rewrites(clean(stored, ("model.",), source.weights), source.weights)
    tensors = _stacked_projections(_newer_names(tensors, source.weights))
    config, notes = language_model(data, tensors, source, family="safari", default_shift=0.0)
    # z is trained in this family, so it must come from the file.
    return finish(config, tensors, source, notes, may_rebuild=frozenset({"times", "deltas"}))


def finish(
    config: ModelConfig,
    stored: Mapping[str, Array],
    source: Source,
    notes: list[str],
    *,
    may_rebuild: frozenset[str],
    head: Mapping[str, str] | None = None,
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """Checks the config, then collects the tensors it asks for."""
    check(config, source.config)
    unused = [
        key
        for i, layer in enumerate(config.layers)
        for key in backbone.unused_keys(f"backbone.layers.{i}.mixer.", layer.mixer)
    ]
    tensors, more = collect(
        list(backbone.tensors(config, head=head or {}, may_rebuild=may_rebuild)),
        stored,
        source.weights,
        ignorable=unused,
        allow_nonfinite=source.allow_nonfinite,
    )
    return config, tensors, notes + more


def language_model(
    data: dict[str, Any],
    stored: Mapping[str, Array],
    source: Source,
    *,
    family: str,
    default_shift: float,
) -> tuple[ModelConfig, list[str]]:
    """The original layout of config.json, `layer: {_name_: hyena, ...}` (both families)."""
    keys = Keys(data, source.config)
    D, layers, vocab = map(keys.positive, ("d_model", "n_layer", "vocab_size"))
    backbone.check_layer_count(layers, stored, keys.where)
    require_block_eps(keys)
    layer = keys.section("layer")
    shift = layer.number("shift", keys.number("modulation_shift", default_shift))
    if source.modulation_shift is not None:
        shift = source.modulation_shift
    hyena = hyena_config(layer, shift)
    backbone.check_grid_length(hyena.filter.taps, "l_max", stored, layer.where)
    attention = attention_layers(keys, layers)
    mlp = MlpConfig("gelu_tanh", keys.positive("d_inner", 4 * D))
    positions = keys.integer("max_position_embeddings", 0)
    keys.skip(_TRAINING_KEYS)
    rows = embedding_rows(stored, vocab, keys.positive("pad_vocab_size_multiple", 1), keys)
    layer.finish()
    keys.finish()
    length = hyena.filter.taps
    config = ModelConfig(
        d_model=D,
        vocab_size=vocab,
        logits_width=rows,
        max_length=min(length, positions) if positions > 0 else length,
        tie_embeddings=True,
        norm=NormConfig("layernorm", 1e-5),
        layers=tuple(LayerConfig(attention.get(i, hyena), mlp) for i in range(layers)),
        positions=positions if positions > 0 else None,
        special_tokens=SpecialTokens(eos=end_of_text(vocab)),
        family=family,
    )
    return config, keys.notes


def hyena_config(layer: Keys, shift: float) -> HyenaConfig:
    """The operator's options (Poli et al. 2023, arXiv 2302.10866, and safari's code).

    Refuses what does not work there.
    """
    layer.require("_name_", "hyena", "other layers have no language models here")
    broken = "the original code fails or leaks the future with other values"
    for name in ("num_heads", "inner_factor", "num_blocks"):
        layer.require(name, 1, broken)
    for name in ("outer_mixing", "post_order_ffn"):
        layer.require(name, False, "no public model uses it")
    layer.require("activation", "id", "no public model uses another")
    E = layer.positive("emb_dim", 3)
    if E % 2 == 0 or E < 3:
        raise ModelError(f"{layer.where}: emb_dim is {E}, must be odd and at least 3")
    hyena = HyenaConfig(
        FilterConfig(
            "implicit",
            taps=layer.positive("l_max"),
            width=layer.positive("filter_order", 64),
            bands=E // 2,
            sine_layers=layer.integer("num_inner_mlps", 2) + 1,
            modulate=layer.flag("modulate", True),
            shift=shift,
            normalize="channel_l1" if layer.flag("normalized", False) else "none",
        ),
        order=layer.positive("order", 2),
        short_taps=layer.positive("short_filter_order", 3),
        skip=layer.flag("bias", True),
        bidirectional=layer.flag("bidirectional", False),
    )
    layer.skip(_LAYER_TRAINING_KEYS)
    return hyena


def require_block_eps(keys: Keys) -> None:
    """layer_norm_epsilon reaches only the last norm; the blocks always use 1e-5."""
    eps = keys.number("layer_norm_epsilon", 1e-5)
    if eps != 1e-5:
        raise ModelError(f"{keys.where}: layer_norm_epsilon is {eps}, only 1e-05 is supported")


def embedding_rows(stored: Mapping[str, Array], vocab: int, multiple: int, keys: Keys) -> int:
    """Rows of the stored embedding, which may be padded; the configured padding if it is absent."""
    padded = -(-vocab // multiple) * multiple
    table = stored.get(backbone.MODEL_KEYS["embedding.weight"])
    rows = padded if table is None or table.ndim != 2 else table.shape[0]
    if rows < vocab:
        raise ModelError(f"{keys.where}: vocab_size is {vocab} but the embedding has {rows} rows")
    if rows != padded:
        keys.notes.append(f"{keys.where}: {padded} embedding rows expected, the file has {rows}")
    return rows


def rows(table: Array) -> int:
    """Rows of a matrix; 1 for a tensor that is none, whose shape is then found wrong."""
    return table.shape[0] if table.ndim == 2 and table.shape[0] > 0 else 1


def end_of_text(vocab: int) -> int | None:
    """The id that ends a text, if this is GPT-2's vocabulary."""
    return vocab - 1 if vocab == _GPT2_VOCABULARY else None


def attention_layers(
    keys: Keys, layers: int, *, rotary: bool = False
) -> dict[int, AttentionConfig]:
    """attn_layer_idx and attn_cfg: attention in the place of others at these layers.

    rotary: whether the family has models with rotary positions.
    """
    indices = keys.data.get("attn_layer_idx") or []
    keys.read.add("attn_layer_idx")
    options = keys.section("attn_cfg")
    if not isinstance(indices, list):
        raise ModelError(f"{keys.where}: attn_layer_idx must be a list, got {indices!r:.60}")
    for i in indices:
        if type(i) is not int or not 0 <= i < layers:
            raise ModelError(
                f"{keys.where}: attn_layer_idx names layer {i!r:.20}, there are {layers}"
            )
    if not indices:
        return {}
    options.require("causal", True, "language models read from left to right")
    options.require("dwconv", False, "no public model uses it")
    if not rotary:
        options.require("rotary_emb_dim", 0, "no public model uses it")
    attention = AttentionConfig(heads=options.positive("num_heads"), rotary=_rotary(options))
    options.skip("dropout")
    options.finish()
    return dict.fromkeys(indices, attention)


def _rotary(options: Keys) -> RotaryConfig | None:
    """Halves of the first dimensions of every head, as GPT-NeoX turns them (flash-attn's code)."""
    dims = options.integer("rotary_emb_dim", 0)
    for name, value in (("rotary_emb_interleaved", False), ("rotary_emb_scale_base", 0)):
        options.require(name, value, "no public model uses it")
    base = options.number("rotary_emb_base", 10000.0)
    return RotaryConfig(base, dims) if dims else None


def author_rewrites(stored: Mapping[str, Array], where: str) -> dict[str, Array]:
    """The renamings that the authors' loaders of safari and H3 share, in their order."""

    def rewritten(name: str) -> str:
        name = re.sub(r"^s4seq\.encoder\.", "backbone.", name)
        name = re.sub(r"^embedding\.", "backbone.embeddings.word_embeddings.", name)
        return re.sub(r"^backbone\.norm", "backbone.ln_0", name)

    renamed = rename(stored, rewritten, where)
    if "backbone.ln_0.weight" in renamed:
        renamed = _new_norm_order(renamed, where)
    return renamed


def _newer_names(stored: Mapping[str, Array], where: str) -> dict[str, Array]:
    """Attention's last linear layer as it is called now (safari's loader alone)."""
    return rename(stored, lambda n: n.replace("mixer.output_linear.", "mixer.out_proj."), where)


def _new_norm_order(stored: Mapping[str, Array], where: str) -> dict[str, Array]:
    """Old files keep the norm before a block's mixer in the block before; ln_0 comes first."""
    layers = map(re.compile(r"backbone\.layers\.(\d{1,9})\.").match, stored)
    last = max((int(layer[1]) for layer in layers if layer), default=-1)

    def moved(name: str) -> str:
        norm = re.fullmatch(r"backbone\.layers\.(\d{1,9})\.norm([12])(\.\w+)", name)
        if norm is None:
            return name.replace("backbone.ln_0.", "backbone.layers.0.norm1.")
        if norm[2] == "1":
            return f"backbone.layers.{norm[1]}.norm2{norm[3]}"
        if int(norm[1]) == last:
            return f"backbone.ln_f{norm[3]}"
        return f"backbone.layers.{int(norm[1]) + 1}.norm1{norm[3]}"

    return rename(stored, moved, where)


def _stacked_projections(stored: dict[str, Array]) -> dict[str, Array]:
    """Separate q, k and v projections of attention as one Wqkv."""
    for key in [k for k in stored if ".mixer.q_proj." in k]:
        parts = [key.replace(".q_proj.", f".{x}_proj.") for x in "qkv"]
        shapes = {stored[part].shape for part in parts if part in stored}
        if all(part in stored for part in parts) and len(shapes) == 1 and shapes != {()}:
            values = [stored.pop(part) for part in parts]
            stored[key.replace(".q_proj.", ".Wqkv.")] = np.concatenate(values)
    return stored


def load_operator(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[MixerConfig, dict[str, Array]]:
    """One layer by itself (Hyena, LongConv or H3Conv), whose config has its options directly."""
    keys = Keys(data, source.config)
    D = keys.positive("d_model")
    mixer: MixerConfig
    if "in_proj.weight" in stored:
        mixer = hyena_config(keys, keys.number("shift", keys.number("modulation_shift", 0.0)))
        wanted = backbone.hyena_operator(mixer, D)
    else:
        threshold = keys.number("lam", 0.1)
        filter = FilterConfig("explicit", taps=keys.positive("l_max"), threshold=threshold)
        if "k_kernel.kernel" in stored:
            keys.require("head_dim", 1, "others are not implemented")
            mixer = H3ConvConfig(filter)
        else:
            keys.require("bidirectional", False, "not implemented")
            keys.require("transposed", False, "not implemented")
            keys.require("activation", "gelu", "not implemented")
            keys.require("postact", "glu", "not implemented")
            mixer = LongConvConfig(filter, channels=keys.positive("channels", 1))
        wanted = [_explicit(name, shape, mixer) for name, shape in mixer_shapes(mixer, D).items()]
    tensors, _ = collect(wanted, stored, source.weights, allow_nonfinite=source.allow_nonfinite)
    return mixer, tensors


def _explicit(native: str, shape: tuple[int, ...], mixer: MixerConfig) -> Tensor:
    """A tensor of LongConv or H3Conv; kernels are stored as [channels, H, taps]."""
    if native.endswith("filter.taps"):
        copies = mixer.channels if isinstance(mixer, LongConvConfig) else 1
        key = "k_kernel.kernel" if native.startswith("shift") else "kernel.kernel"
        stored = (copies, shape[0] // copies, shape[1])
        return Tensor(native, stored, (key,), lambda a: a.reshape(shape))
    names = {"skip": "D", "shift_skip": "k_D"}
    out = "output_linear.0." if isinstance(mixer, LongConvConfig) else "output_linear."
    return Tensor(native, shape, (names.get(native, native.replace("out_proj.", out)),))
