"""HyenaDNA: the original layout and the Hugging Face port.

Sources: Nguyen et al. 2023, arXiv 2306.15794; the published code (HazyResearch/hyena-dna at
d553021) and the port's `modeling_hyena.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config import (
    ClassifierConfig,
    FilterConfig,
    HyenaConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    SpecialTokens,
    TokenizerConfig,
)
from ..errors import ModelError
from . import backbone, safari
from .foreign import Keys, Source
from .naming import Array, clean

SHIFT = 0.05  # of the inference code everybody uses; the pretraining code has 0
_PORT_TRAINING_KEYS = """
    activation_freq train_freq embed_dropout hyena_dropout hyena_filter_dropout initializer_range
    architectures auto_map id2label label2id num_labels problem_type transformers_version
    torch_dtype dtype model_type use_cache _name_or_path
"""


def load(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """Config and native tensors of a HyenaDNA folder. Raises ModelError, NumericError."""
    tensors = clean(stored, ("model.", "hyena."), source.weights)
    foreign = [key for key in tensors if "final_layer_norm" in key]
    if foreign:
        raise ModelError(
            f"{source.weights}: {foreign[0]} marks a community re-packaging with another "
            "vocabulary order, which is not supported; use the original or the Hugging Face port"
        )
    if "max_seq_len" in data:
        config, head, notes = _port(data, tensors, source)
    else:
        config, head, notes = _original(data, tensors, source)
    if config.vocab_size == 12:
        pad = 4 if config.special_tokens.pad is None else config.special_tokens.pad
        config = dataclasses.replace(
            config,
            tokenizer=TokenizerConfig("dna"),
            special_tokens=SpecialTokens(bos=2, eos=1, pad=pad),
        )
    return safari.finish(
        config,
        tensors,
        source,
        notes,
        may_rebuild=frozenset({"features", "times", "deltas"}),
        head=head,
    )


def _original(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, str], list[str]]:
    config, notes = safari.language_model(
        data, stored, source, family="hyenadna", default_shift=SHIFT
    )
    orders = [x.mixer.order for x in config.layers if isinstance(x.mixer, HyenaConfig)]
    if set(orders) - {2}:
        raise ModelError(
            f"{source.config}: order is {orders[0]}; the two HyenaDNA codes order the channels "
            "of such filters differently, so only order 2 is supported"
        )
    head = {f"classifier.{part}": f"head.output_transform.{part}" for part in ("weight", "bias")}
    table = stored.get("head.output_transform.weight")
    if table is not None:
        config = dataclasses.replace(
            config,
            tie_embeddings="lm_head.weight" in stored,
            classifier=ClassifierConfig(labels=safari.rows(table), pool="mean", bias=True),
        )
    return config, head, notes


def _port(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, str], list[str]]:
    """The Hugging Face port. Defaults that differ from the public files are not relied on."""
    keys = Keys(data, source.config)
    D, vocab, taps = map(keys.positive, ("d_model", "vocab_size", "max_seq_len"))
    layers = keys.positive("n_layer")
    backbone.check_layer_count(layers, stored, keys.where)
    keys.require("hyena_order", 2, "the port itself runs no other order")
    keys.require("short_filter_order", 3, "the port itself runs no other length")
    safari.require_block_eps(keys)
    E = keys.positive("emb_dim")
    if E % 2 == 0 or E < 3:
        raise ModelError(f"{keys.where}: emb_dim is {E}, must be odd and at least 3")
    if not keys.flag("use_bias", True):
        keys.notes.append(f"{keys.where}: use_bias is stored but the port always adds the skip")
    backbone.check_grid_length(taps, "max_seq_len", stored, keys.where)
    shift = keys.number("modulation_shift", SHIFT)
    filter = FilterConfig(
        "implicit",
        taps=taps,
        width=keys.positive("filter_order", 64),
        bands=E // 2,
        sine_layers=keys.integer("num_inner_mlps", 2) + 1,
        shift=shift if source.modulation_shift is None else source.modulation_shift,
    )
    layer = LayerConfig(
        HyenaConfig(filter), MlpConfig("gelu_tanh", keys.positive("d_inner", 4 * D))
    )
    rows = safari.embedding_rows(stored, vocab, keys.positive("pad_vocab_size_multiple", 8), keys)
    classifier = _port_classifier(keys, stored)
    # Without the key, Transformers' own default applies. A classifier has no language head.
    tied = keys.flag("tie_word_embeddings", True) and classifier is None
    config = ModelConfig(
        d_model=D,
        vocab_size=vocab,
        logits_width=rows,
        max_length=taps,
        tie_embeddings=tied,
        norm=NormConfig("layernorm", 1e-5),
        layers=(layer,) * layers,
        classifier=classifier,
        special_tokens=SpecialTokens(pad=keys.integer("pad_token_id", 4)),
        family="hyenadna",
    )
    keys.skip(_PORT_TRAINING_KEYS)
    keys.finish()
    return config, {"classifier.weight": "score.weight"}, keys.notes


def _port_classifier(keys: Keys, stored: Mapping[str, Array]) -> ClassifierConfig | None:
    """Present when the architecture says so, or when a file without one has a score matrix."""
    named = str(keys.data.get("architectures") or "")
    table = stored.get("score.weight")
    if "SequenceClassification" not in named and (named or table is None):
        return None
    labels = keys.data.get("id2label")
    if isinstance(labels, dict) and labels:
        count = len(labels)
    else:
        count = keys.positive("num_labels", 1 if table is None else safari.rows(table))
    return ClassifierConfig(labels=count, pool="pad_last", bias=False)
