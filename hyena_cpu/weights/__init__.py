"""Weights of a model folder: configuration and float32 tensors under native names.

`load_folder` reads native, HyenaDNA, safari, Zoology and H3 folders; `convert` writes native ones,
also from PyTorch files. Later stages see `ModelConfig` and native names only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import config_json
from ..config import MixerConfig, ModelConfig, TokenizerConfig, check
from ..errors import ModelError
from ..files import expanded
from ..tokenizers import from_config
from . import h3, hyenadna, native, safari, safetensors, torch_pickle, zoology
from .foreign import Source
from .naming import Array, is_training_leftover
from .native import save_folder
from .shards import INDEX, read_folder
from .shift import shift_note, windowed, with_shift

__all__ = [
    "Weights",
    "convert",
    "detect_family",
    "load_files",
    "load_folder",
    "load_operator",
    "save_folder",
]

Loader = Callable[
    [dict[str, Any], Mapping[str, Array], Source], tuple[ModelConfig, dict[str, Array], list[str]]
]
FAMILIES: dict[str, Loader] = {
    "native": native.load,
    "hyenadna": hyenadna.load,
    "safari": safari.load,
    "zoology": zoology.load,
    "h3": h3.load,
}
TOKENIZER = "tokenizer.json"
UNSUPPORTED = {  # families by a key or model_type that is theirs alone
    "hyena_layer_idxs": "StripedHyena / Evo",
    "hcl_layer_idxs": "StripedHyena / Evo",
    "stripedhyena": "StripedHyena / Evo",
}


@dataclass(frozen=True)
class Weights:
    """A loaded model folder."""

    config: ModelConfig
    tensors: dict[str, Array]  # float32, C-contiguous, native names
    folder: Path
    generation: dict[str, Any]  # generation_config.json or {}
    notes: tuple[str, ...]  # one sentence each: what was chosen, rebuilt or ignored
    fingerprint: str  # of config and tensors; equal for equal models

    @property
    def num_parameters(self) -> int:
        """Trained numbers: see `native.parameter_count`."""
        return native.parameter_count(self.config, self.tensors)


def blank(config: ModelConfig) -> Weights:
    """Weights that are all zero: enough for plans, and not in memory before they are read.

    Raises:
        ModelError: no model can have this configuration.
    """
    check(config, "config")
    tensors = {name: np.zeros(size, np.float32) for name, size in native.shapes(config).items()}
    return Weights(config, tensors, Path(config.name), {}, (), "")


def load_folder(
    path: str | bytes | Path,
    *,
    family: str | None = None,
    modulation_shift: float | None = None,
    allow_nonfinite: bool = False,
    name: str = "",
) -> Weights:
    """Reads a model folder.

    Args:
        path: a folder with config.json and model.safetensors (or shards with an index).
        family: native, hyenadna, safari, zoology or h3; found from config.json if None.
        modulation_shift: replaces the shift of every filter window.
        allow_nonfinite: let tensors with NaN or infinities pass.
        name: what to call a model that has no name of its own; that of the folder if empty.

    Returns:
        Config, float32 tensors under native names, notes on every choice made.

    Raises:
        ModelError: anything missing, damaged, left over or unsupported; the message names it.
        NumericError: a tensor holds NaN or infinities.
    """
    folder = expanded(os.fsdecode(path))
    try:
        if not folder.is_dir():
            wrong = "no such folder"
            if folder.exists():
                wrong = "a file, not a folder: hyena-cpu convert makes one of a checkpoint"
            raise ModelError(f"{folder}: {wrong}")
        return _load_folder(
            folder, folder / "config.json", family, modulation_shift, allow_nonfinite, name
        )
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read: {error.strerror}") from error


def load_files(
    config_path: Path,
    weights_path: Path,
    *,
    family: str | None = None,
    modulation_shift: float | None = None,
    allow_nonfinite: bool = False,
) -> Weights:
    """As `load_folder`, from a config and a safetensors file of any name."""
    source = Source(str(config_path), str(weights_path), modulation_shift, allow_nonfinite)
    stored = _read_safe(weights_path)
    return _weights(config_json.read(config_path), stored, source, family, weights_path.parent)


def load_operator(config_path: Path, weights_path: Path) -> tuple[MixerConfig, dict[str, Array]]:
    """A single layer (Hyena, LongConv, H3Conv): its config and tensors without prefix."""
    source = Source(str(config_path), str(weights_path))
    return safari.load_operator(config_json.read(config_path), _read_safe(weights_path), source)


def convert(
    source: str | Path,
    destination: str | Path,
    *,
    family: str | None = None,
    config: str | Path | None = None,
    modulation_shift: float | None = None,
) -> Weights:
    """Writes a native folder from a foreign folder or a PyTorch file.

    Args:
        source: a model folder, or a .ckpt, .pt, .bin or .safetensors file.
        destination: the new folder; must not exist.
        family: as in `load_folder`.
        config: the JSON configuration in the place of the config.json beside the tensors.
        modulation_shift: as in `load_folder`; written into the new folder.

    Raises:
        ModelError: as `load_folder`; PyTorch is missing; no such source; its tokenizer cannot be
            used; the destination exists.
    """
    origin, target = expanded(source), expanded(destination)
    try:
        folder = origin if origin.is_dir() else origin.parent
        settings = expanded(config) if config is not None else folder / "config.json"
        name = os.path.basename(os.path.realpath(target))
        weights = _foreign(origin, folder, settings, family, modulation_shift, name)
        names = (_checked_tokenizer(weights, settings), "generation_config.json")
        extra = {n: (folder / n).read_bytes() for n in names if (folder / n).is_file()}
        save_folder(target, weights.config, weights.tensors, extra_files=extra)
    except OSError as error:
        raise ModelError(f"{error.filename or origin}: {error.strerror}") from error
    try:
        written = load_folder(target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return dataclasses.replace(written, notes=weights.notes + written.notes)


def _foreign(
    origin: Path,
    folder: Path,
    settings: Path,
    family: str | None,
    modulation_shift: float | None,
    name: str,
) -> Weights:
    """What `convert` reads: the file `origin` in a folder, or the folder itself."""
    if not origin.exists():
        raise ModelError(f"{origin}: no such file or folder to convert")
    tensors = _tensor_file(origin) if origin.is_dir() else origin
    if tensors is None:
        return _load_folder(folder, settings, family, modulation_shift, name=name)
    data = config_json.read(settings)
    where = Source(str(settings), str(tensors), modulation_shift)
    return _weights(data, _read_any(tensors), where, family, folder, name)


def _checked_tokenizer(weights: Weights, settings: Path) -> str:
    """The name of the tokenizer's file; ModelError where no model could be loaded with it."""
    tokenizer = weights.config.tokenizer
    if tokenizer is None:
        return TOKENIZER
    try:
        from_config(tokenizer, weights.folder, weights.config.vocab_size)
    except ModelError as error:
        if config_json.read(settings).get("tokenizer") is not None:
            raise
        raise ModelError(
            f"{error}; move {TOKENIZER} away to convert the model without a tokenizer"
        ) from None
    return (tokenizer.file if tokenizer.kind == "hf" else None) or TOKENIZER


def detect_family(data: Any, where: str) -> str:
    """The family of a config.json, by its own keys. Raises ModelError for unsupported ones."""
    if not isinstance(data, dict):
        raise ModelError(f"{where}: must be a JSON object, got {type(data).__name__}")
    model_type, layer = data.get("model_type"), data.get("layer")
    if model_type == "hyena-cpu":
        return "native"
    if model_type == "hyenadna":
        return "hyenadna"
    marks = [key for key in UNSUPPORTED if key in data or key == model_type]
    if marks:
        name = UNSUPPORTED[marks[0]]
        raise ModelError(f"{where}: {marks[0]} marks a model of {name}, which is not supported yet")
    if "ssm_cfg" in data:
        return "h3"
    if "sequence_mixer" in data:
        return "zoology"
    if model_type is not None:
        raise ModelError(f"{where}: model_type {model_type!r:.60} is not supported")
    if isinstance(layer, dict) and layer.get("_name_") == "hyena":
        return "hyenadna" if data.get("vocab_size") == 12 else "safari"
    raise ModelError(f"{where}: cannot tell the model family; name one: {', '.join(FAMILIES)}")


def _load_folder(
    folder: Path,
    config_path: Path,
    family: str | None,
    modulation_shift: float | None,
    allow_nonfinite: bool = False,
    name: str = "",
) -> Weights:
    data = config_json.read(config_path)
    family = family or detect_family(data, str(config_path))
    stored, weights_name = read_folder(folder)
    source = Source(str(config_path), weights_name, modulation_shift, allow_nonfinite)
    return _weights(data, stored, source, family, folder, name)


def _weights(
    data: Any,
    stored: Mapping[str, Array],
    source: Source,
    family: str | None,
    folder: Path,
    name: str = "",
) -> Weights:
    family = family or detect_family(data, source.config)
    if family not in FAMILIES:
        raise ModelError(f"family {family!r} is not one of {', '.join(FAMILIES)}")
    if not isinstance(data, dict):
        raise ModelError(f"{source.config}: must be a JSON object, got {type(data).__name__}")
    config, tensors, notes = FAMILIES[family](data, stored, source)
    if source.modulation_shift is not None and not windowed(config):
        raise ModelError(f"{source.config}: modulation_shift: the filters have no window to shift")
    if family == "native":
        config = with_shift(config, source.modulation_shift)
    else:
        notes.insert(0, f"{source.config}: read as {family}{shift_note(config)}")
    if config.tokenizer is None and (folder / TOKENIZER).is_file():
        config = dataclasses.replace(config, tokenizer=TokenizerConfig("hf", TOKENIZER))
    config = dataclasses.replace(config, name=config.name or name or folder.resolve().name)
    return Weights(
        config=config,
        tensors=tensors,
        folder=folder,
        generation=_generation(folder / "generation_config.json"),
        notes=tuple(notes),
        fingerprint=_fingerprint(config, tensors),
    )


def _generation(path: Path) -> dict[str, Any]:
    data = config_json.read(path) if path.is_file() else {}
    if not isinstance(data, dict):
        raise ModelError(f"{path}: must be a JSON object, got {type(data).__name__}")
    return data


def _read_safe(path: Path) -> dict[str, Array]:
    if path.suffix in torch_pickle.SUFFIXES:
        raise ModelError(
            f"{path}: a PyTorch file; make a safe copy first: hyena-cpu convert {path} NEW_FOLDER"
        )
    return safetensors.read(path, is_training_leftover)


def _read_any(path: Path) -> dict[str, Array]:
    """For `convert` alone: also PyTorch files."""
    if path.suffix in torch_pickle.SUFFIXES:
        return torch_pickle.read(path, is_training_leftover)
    return safetensors.read(path, is_training_leftover)


def _tensor_file(folder: Path) -> Path | None:
    """The only PyTorch file of a folder without safetensors; None where those are present."""
    if any(p.suffix == ".safetensors" or p.name == INDEX for p in folder.iterdir()):
        return None
    pickles = sorted(p for p in folder.iterdir() if p.suffix in torch_pickle.SUFFIXES)
    if len(pickles) != 1:
        raise ModelError(f"{folder}: holds {len(pickles)} PyTorch files; name the one to convert")
    return pickles[0]


def _fingerprint(config: ModelConfig, tensors: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    described = config_json.to_json(dataclasses.replace(config, name=""))
    digest.update(json.dumps(described, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name].shape}".encode())
        digest.update(tensors[name].data if tensors[name].size else b"")
    return digest.hexdigest()[:16]
