"""The native format: names and shapes of its tensors, and writing a folder (docs/formats.md)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from .. import config_json
from ..config import (
    AttentionConfig,
    BaseConvConfig,
    FilterConfig,
    HyenaConfig,
    LayerConfig,
    LongConvConfig,
    MixerConfig,
    ModelConfig,
    check,
    diagonal_filter,
    shift_filter,
)
from ..config_recurrent import RecurrentConfig
from ..config_selection import TOPS, AutocorrelationConfig, SelectionConfig
from ..config_ssm import H3Config, S4DConfig
from ..errors import ModelError, NumericError
from ..files import expanded, sync_folder
from .foreign import Source
from .naming import Array, Tensor, collect
from .recurrent import recurrent_shapes

Shapes = dict[str, tuple[int, ...]]


def load(
    data: dict[str, Any], stored: Mapping[str, Array], source: Source
) -> tuple[ModelConfig, dict[str, Array], list[str]]:
    """A native folder's config and tensors. Raises ModelError, NumericError."""
    config = config_json.parse(data, source.config)
    wanted = [Tensor(name, shape, (name,)) for name, shape in shapes(config).items()]
    tensors, notes = collect(wanted, stored, source.weights, allow_nonfinite=source.allow_nonfinite)
    return config, tensors, notes


def shapes(config: ModelConfig) -> Shapes:
    """Every tensor of a model by native name."""
    D, V = config.d_model, config.logits_width
    found: Shapes = {"embedding.weight": (V, D)}
    if config.positions is not None:
        found["positions.weight"] = (config.positions, D)
    for i, layer in enumerate(config.layers):
        found |= _prefixed(f"layers.{i}", _layer(config, layer))
    found |= _norm(config, "norm")
    if config.classifier is not None:
        labels = config.classifier.labels
        found |= _linear("classifier", labels, D, config.classifier.bias)
    elif not config.tie_embeddings:
        found["head.weight"] = (V, D)
    return found


def _layer(config: ModelConfig, layer: LayerConfig) -> Shapes:
    D = config.d_model
    found = _norm(config, "norm1") | _prefixed("mixer", mixer_shapes(layer.mixer, D))
    if layer.mlp is not None:
        found |= _norm(config, "norm2")
    if layer.mlp is not None and layer.mlp.kind != "identity":
        M, bias = layer.mlp.width, layer.mlp.bias
        found |= _linear("mlp.up", 2 * M if layer.mlp.kind == "swiglu" else M, D, bias)
        found |= _linear("mlp.down", D, M, bias)
    return found


def parameter_count(config: ModelConfig, tensors: Mapping[str, Array]) -> int:
    """Numbers that training sets, as authors count them.

    Left out are the times and window exponents of implicit filters, HyenaDNA's positional features
    (grids that follow from l_max), and further names of a frequency vector shared by sine layers.
    """
    fixed = ("times", "deltas", "features" if config.family == "hyenadna" else "")
    count = 0
    for name, value in tensors.items():
        filter, _, part = name.rpartition(".filter.")
        repeated = part.startswith("freq.") and part != "freq.0"
        if repeated and np.array_equal(value, tensors[f"{filter}.filter.freq.0"]):
            continue
        if not (filter and part in fixed):
            count += value.size
    return count


def mixer_shapes(mixer: MixerConfig, D: int) -> Shapes:
    """The tensors of one mixer, without prefix."""
    if isinstance(mixer, AttentionConfig):
        return _linear("qkv", 3 * D, D, mixer.bias) | _linear("out_proj", D, D, mixer.bias)
    if isinstance(mixer, HyenaConfig):
        N, K = mixer.order, mixer.short_taps
        found = _linear("in_proj", (N + 1) * D, D, mixer.bias)
        found |= _linear("short_conv", (N + 1) * D, K, mixer.short_bias)
        if mixer.skip and N > 1:
            found["skip"] = (N - 1, D)
        if N > 1:
            found |= _prefixed("filter", _filter(mixer.filter, (N - 1) * D))
        return found | _linear("out_proj", D, D, mixer.bias)
    if isinstance(mixer, LongConvConfig):
        C = mixer.channels * D
        found = _prefixed("filter", _filter(mixer.filter, C))
        return found | {"skip": (mixer.channels, D)} | _linear("out_proj", 2 * D, C, True)
    if isinstance(mixer, BaseConvConfig):
        found = _linear("projection", D, D, True)
        if mixer.filter is None:
            return found | _linear("short_conv", D, mixer.short_taps, True)
        return found | _prefixed("filter", _filter(mixer.filter, D))
    if isinstance(mixer, RecurrentConfig):
        return recurrent_shapes(mixer, D)
    if isinstance(mixer, SelectionConfig):
        return _selection(mixer, D)
    if isinstance(mixer, AutocorrelationConfig):
        return {}
    if isinstance(mixer, S4DConfig):
        found = _prefixed("filter", _filter(diagonal_filter(mixer), D))
        return found | {"skip": (D,)} | _linear("out_proj", D, D, True)
    found = {}
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        found |= _linear(name, D, D, True)
    if isinstance(mixer, H3Config):
        heads = D // mixer.head_dim
        found |= _prefixed("shift_filter", _filter(shift_filter(mixer), D))
        found |= _prefixed("filter", _filter(diagonal_filter(mixer), heads))
        return found | {"shift_skip": (D,), "skip": (heads,)}
    for name in ("shift_filter", "filter"):
        found |= _prefixed(name, _filter(mixer.filter, D))
    return found | {"shift_skip": (D,), "skip": (D,)}


def _selection(mixer: SelectionConfig, D: int) -> Shapes:
    found = _linear("qkv", 3 * D, D, mixer.bias) | _linear("out_proj", D, D, True)
    if mixer.choose in TOPS:
        sma = mixer.choose == "sma_top"
        found |= _linear("score", 2 if sma else 1, D, mixer.choose != "sigmoid_top")
        found |= {"score.temperature": (1,)} if sma else {}
    return found


def _filter(filter: FilterConfig, C: int) -> Shapes:
    L, P, E, S = filter.taps, filter.width, 2 * filter.bands + 1, filter.sine_layers
    found: Shapes
    if filter.kind == "explicit":
        return {"taps": (C, L)}
    if filter.kind == "modal":
        return {"poles": (C, filter.modes, 2), "residues": (C, filter.modes, 2)}
    if filter.kind == "shift":
        return {"B": (C, L), "C": (C, L)}
    if filter.kind == "ssm_diag":
        pairs, single = (C, filter.modes, 2), (C, filter.modes)
        found = {"B": pairs, "C": pairs, "log_decay": single, "frequency": single}
        return found | {"log_dt": (C,)}
    if filter.kind == "relu_mlp":
        hidden = {"features": (L, E)} | _linear("linear.0", P, E, True)
        return hidden | _linear("linear.1", C, P, True)
    found = {"features": (L, E), "times": (L,)} if filter.kind == "implicit" else {}
    for k in range(S):
        found |= _linear(f"linear.{k}", P, P if k else E, True) | {f"freq.{k}": (P,)}
    found[f"linear.{S}.weight"] = (C, P)
    if filter.modulate:
        found["deltas" if filter.kind == "implicit" else "log_rate"] = (C,)
    return found


def _linear(name: str, rows: int, columns: int, bias: bool) -> Shapes:
    found: Shapes = {f"{name}.weight": (rows, columns)}
    return found | {f"{name}.bias": (rows,)} if bias else found


def _norm(config: ModelConfig, name: str) -> Shapes:
    found: Shapes = {f"{name}.weight": (config.d_model,)}
    return found | {f"{name}.bias": (config.d_model,)} if config.norm.kind == "layernorm" else found


def _prefixed(prefix: str, found: Shapes) -> Shapes:
    return {f"{prefix}.{name}": shape for name, shape in found.items()}


def save_folder(
    path: str | Path,
    config: ModelConfig,
    tensors: Mapping[str, Array],
    *,
    dtype: Literal["float32", "float16"] = "float32",
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Writes a native folder: to a temporary sibling first, renamed when it is complete.

    Args:
        path: the folder; must not exist.
        config: the model.
        tensors: float32 arrays by native name, exactly those of `shapes(config)`.
        dtype: of the stored numbers. With float16 the parameters of long filters stay float32,
            because a filter amplifies their rounding; explicit taps are halved.
        extra_files: further files by name, such as tokenizer.json.

    Raises:
        ModelError: the path exists or cannot be written, or tensors do not fit the config.
        NumericError: a value is not finite or does not fit float16.
    """
    target = expanded(path)
    check(config, str(target))
    wanted = [Tensor(name, shape, (name,)) for name, shape in shapes(config).items()]
    collect(wanted, tensors, str(target))
    files = {
        "config.json": _json(config, f"{target}: config.json"),
        "model.safetensors": save({n: _rounded(n, tensors[n], dtype) for n in sorted(tensors)}),
        **(extra_files or {}),
    }
    if target.exists() or target.is_symlink():
        raise ModelError(f"{target}: exists already; give a new name")
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir(parents=True)
        for name, content in files.items():
            _write(temporary / name, content)
        sync_folder(temporary)
        temporary.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _json(config: ModelConfig, where: str) -> bytes:
    data = config_json.to_json(config)
    try:
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ModelError(f"{where}: holds NaN or an infinity, which JSON does not allow") from error
    return (text + "\n").encode()


def _rounded(name: str, value: Array, dtype: str) -> NDArray[Any]:
    if dtype == "float32" or ("filter." in name and not name.endswith(".taps")):
        return np.ascontiguousarray(value)
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    if not np.isfinite(half).all():
        raise NumericError(f"{name}: {np.abs(value).max():.4g} does not fit float16")
    return half


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
