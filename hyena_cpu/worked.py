"""A loaded model's numbers against the plain float64 statements of `reference/`.

All sequences and filter pieces are short, so a model for a million tokens takes no longer than
others of its width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .config import BaseConvConfig, FilterConfig, HyenaConfig, LayerConfig, ModelConfig
from .filters import build_filter
from .linear import under
from .model import Model
from .pooling import pooled
from .reference import filters as reference_filters
from .reference import model as reference_model
from .weights import Weights

Tensors = Mapping[str, NDArray[np.float32]]

FILTER_BOUND = 1e-5  # times the largest tap
OUTPUT_BOUND = 2e-5  # times the largest output, or 1

TOKENS = 256
TAPS = 1024  # at each end of a filter
CHANNELS = 8
LONGEST_WHOLE = 1 << 16  # taps, where all of a filter are needed to know one


@dataclass(frozen=True)
class Check:
    """One comparison: `value` must be at most `bound`. Skipped if `ok` is None, `note` says why."""

    name: str
    value: float | None
    bound: float | None
    ok: bool | None
    note: str = ""


def compared(name: str, value: float, bound: float, note: str = "") -> Check:
    """The check of a difference. One that is not a number has no value and is not ok."""
    return Check(name, value if math.isfinite(value) else None, bound, value <= bound, note)


def scaled(got: NDArray[Any], want: NDArray[Any]) -> float:
    """Largest difference over the largest value that was wanted, or over 1."""
    return float(np.abs(got - want).max()) / max(1.0, float(np.abs(want).max()))


def tokens(model: Model, most: int) -> NDArray[np.int32]:
    """Random ids with a meaning, always the same, as many as the model takes."""
    count = min(most, model.max_length or most)
    return np.random.default_rng(20240229).integers(0, model.vocab_size, count).astype(np.int32)


def filters(model: Model, weights: Weights) -> Iterator[Check]:
    """Some channels of every filter that an MLP makes, at its near and at its far end."""
    for i, filter in mlp_filters(weights.config):
        name = f"filter of layers.{i}, float64"
        if not _divisible(filter) and filter.taps > LONGEST_WHOLE:
            note = f"its {filter.taps} taps cannot be known one by one"
            yield Check(name, None, FILTER_BOUND, None, note)
            continue
        source = model.blocks[i].mixer.taps[0].bank.source
        own = under(weights.tensors, f"layers.{i}.mixer.filter.")
        channels = np.unique(np.linspace(0, source.channels - 1, CHANNELS).astype(int))
        near = min(TAPS, filter.taps)
        got = [np.concatenate([source.block(c, c + 1, 0, near) for c in channels])]
        want = [_reference_taps(filter, own, 0, near)[channels]]
        if _divisible(filter):
            far = filter.taps - near
            end, rows = _piece(filter, own, far, filter.taps)
            tail = build_filter(end, rows, source.channels)
            got += [tail.block(0, source.channels, 0, near)[channels]]
            want += [_reference_taps(filter, own, far, filter.taps)[channels]]
        error = max(float(np.abs(g - w).max()) for g, w in zip(got, want, strict=True))
        scale = max(float(np.abs(w).max()) for w in want)
        yield compared(
            name, error / scale if scale else error, FILTER_BOUND, f"{len(channels)} channels"
        )


def forward(model: Model, weights: Weights) -> Check:
    """The whole network on a short sequence."""
    ids = tokens(model, TOKENS)
    classifies = weights.config.classifier is not None
    name = f"{'hidden states' if classifies else 'logits'}, float64"
    if model.compat:
        return Check(name, None, OUTPUT_BOUND, None, "compat changes the outputs on purpose")
    shortened = _shortened(weights, len(ids))
    if shortened is None:
        note = f"filters longer than {LONGEST_WHOLE} taps that cannot be known one by one"
        return Check(name, None, OUTPUT_BOUND, None, note)
    if classifies:
        got, want = model.hidden(ids), reference_model.hidden(*shortened, ids)
    else:
        got, want = model.logits(ids), reference_model.logits(*shortened, ids)
    return compared(name, scaled(got, want), OUTPUT_BOUND, f"{len(ids)} tokens")


def classifier(model: Model, weights: Weights) -> Iterator[Check]:
    """The head of a classifier, on the hidden states of a short sequence."""
    head = weights.config.classifier
    if head is None:
        return
    ids = tokens(model, TOKENS)
    h = pooled(model.hidden(ids), ids, head.pool, weights.config.special_tokens.pad)
    own = under(weights.tensors, "classifier.")
    want = own["weight"].astype(np.float64) @ h + own.get("bias", 0.0)
    error = scaled(model.classify([ids])[0], want)
    yield compared("classifier, float64", error, OUTPUT_BOUND, f"{head.labels} labels")


def mlp_filters(config: ModelConfig) -> list[tuple[int, FilterConfig]]:
    """(layer, filter) of the layers whose filter an MLP makes."""
    found = []
    for i, layer in enumerate(config.layers):
        mixer = layer.mixer
        if isinstance(mixer, BaseConvConfig) or (
            isinstance(mixer, HyenaConfig) and mixer.order > 1
        ):
            filter = mixer.filter
            if filter is not None and filter.kind in ("implicit", "sine_window", "relu_mlp"):
                found.append((i, filter))
    return found


def _shortened(weights: Weights, length: int) -> tuple[ModelConfig, Tensors] | None:
    """The same model with filters of `length` taps; None where one cannot be cut."""
    found = dict(weights.tensors)
    layers: list[LayerConfig] = list(weights.config.layers)
    for i, filter in mlp_filters(weights.config):
        if not _divisible(filter):
            if filter.taps > LONGEST_WHOLE:
                return None
            continue
        prefix = f"layers.{i}.mixer.filter."
        cut, rows = _piece(filter, under(found, prefix), 0, min(length, filter.taps))
        found |= {prefix + name: value for name, value in rows.items()}
        mixer = layers[i].mixer
        assert isinstance(mixer, HyenaConfig | BaseConvConfig)  # mlp_filters() gives no others
        layers[i] = replace(layers[i], mixer=replace(mixer, filter=cut))
    return replace(weights.config, layers=tuple(layers)), found


def _reference_taps(filter: FilterConfig, own: Tensors, t0: int, t1: int) -> NDArray[np.float64]:
    """Taps [C, t1 - t0] in float64."""
    if _divisible(filter):
        return reference_filters.long_filter(*_piece(filter, own, t0, t1))
    return reference_filters.long_filter(filter, own)[:, t0:t1]


def _divisible(filter: FilterConfig) -> bool:
    """Whether every time has its own row of features and needs no other."""
    return filter.kind in ("implicit", "relu_mlp") and filter.normalize != "time_l2"


def _piece(
    filter: FilterConfig, own: Tensors, t0: int, t1: int
) -> tuple[FilterConfig, dict[str, NDArray[np.float32]]]:
    """Times [t0, t1) of a divisible filter as a filter by itself."""
    rows = {name: own[name][t0:t1] for name in ("features", "times") if name in own}
    return replace(filter, taps=t1 - t0), {**own, **rows}
