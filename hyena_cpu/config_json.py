"""JSON in and out: reading files strictly, and config.json as a ModelConfig.

JSON of a model folder comes from strangers: a repeated key, NaN or absurd nesting is refused
here, with the file and the key in the message, because `json` alone would let it pass.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal

from .config import FORMAT_VERSION, MixerConfig, ModelConfig, check
from .errors import ModelError

MAX_BYTES = 16 << 20  # no configuration or index comes near; larger is an attack or a mistake


@dataclasses.dataclass(frozen=True)
class _Constant:
    """NaN, Infinity or -Infinity, which Python's decoder lets pass."""

    name: str


def decode(text: bytes, where: str) -> Any:
    """JSON from UTF-8 bytes (a byte order mark is accepted).

    Raises:
        ModelError: not UTF-8, not JSON, a repeated key, NaN or an infinity, or nested too deep.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ModelError(f"{where}: key {key!r:.80} appears twice")
            refuse_constant(value, f"key {key!r:.80}")
            found[key] = value
        return found

    def refuse_constant(value: Any, what: str) -> None:
        if isinstance(value, _Constant):
            raise ModelError(f"{where}: {what} is {value.name}, which JSON does not allow")
        if isinstance(value, list):  # objects were looked at when they were complete
            for item in value:
                refuse_constant(item, what)

    try:
        decoded = json.loads(
            text.decode("utf-8-sig"), object_pairs_hook=unique, parse_constant=_Constant
        )
        refuse_constant(decoded, "the document")
        return decoded
    except UnicodeDecodeError as error:
        raise ModelError(f"{where}: not UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise ModelError(f"{where}: JSON is nested too deep") from error
    except ValueError as error:
        raise ModelError(f"{where}: not valid JSON: {error}") from error


def read(path: Path) -> Any:
    """The decoded JSON of a file. Raises ModelError, also for a file that cannot be read."""
    try:
        if not path.is_file():
            raise ModelError(f"{path}: no such file")
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(f"{path}: {path.stat().st_size} bytes, the limit is {MAX_BYTES}")
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


_MIXERS: dict[str, type] = {mixer.kind: mixer for mixer in typing.get_args(MixerConfig)}


def parse(data: Any, where: str = "config.json") -> ModelConfig:
    """Builds and checks a ModelConfig from decoded JSON; ModelError names the offending key."""
    if not isinstance(data, dict):
        raise ModelError(f"{where}: must be a JSON object, got {type(data).__name__}")
    if data.get("model_type") != "hyena-cpu":
        raise ModelError(f"{where}: model_type is {data.get('model_type')!r}, not 'hyena-cpu'")
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{where}: format_version is {version!r}; this release reads version {FORMAT_VERSION}"
        )
    config: ModelConfig = _build(ModelConfig, data, where)
    check(config, where)
    return config


def to_json(config: ModelConfig) -> dict[str, Any]:
    """Plain JSON data from which `parse` builds an equal config."""
    return typing.cast("dict[str, Any]", json.loads(json.dumps(dataclasses.asdict(config))))


def _build(kind: type, data: Any, where: str) -> Any:
    """One dataclass from one JSON object: unknown, missing and mistyped keys are named."""
    if not isinstance(data, dict):
        raise ModelError(f"{where}: must be an object, got {type(data).__name__}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise ModelError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(fields)}")
    values: dict[str, Any] = {}
    for name, spec in fields.items():
        if name in data:
            values[name] = _value(hints[name], data[name], f"{where}: {name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ModelError(f"{where}: key {name!r} is missing")
    return kind(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint == MixerConfig:
        kind = value.get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in _MIXERS:
            raise ModelError(f"{where}: kind is {kind!r}; known: {', '.join(_MIXERS)}")
        return _build(_MIXERS[kind], value, where)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        options = [a for a in typing.get_args(hint) if a is not type(None)]
        return None if value is None else _value(options[0], value, where)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise ModelError(f"{where}: {value!r} is not one of {', '.join(typing.get_args(hint))}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ModelError(f"{where}: must be a list")
        item = typing.get_args(hint)[0]
        return tuple(_value(item, v, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise ModelError(f"{where}: must be an object")
        item = typing.get_args(hint)[1]
        return {k: _value(item, v, f"{where}.{k}") for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    return _scalar(hint, value, where)


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and type(value) in (int, float):
        if not -sys.float_info.max <= value <= sys.float_info.max:
            raise ModelError(f"{where}: must be a finite float64, got {value!s:.40}")
        return float(value)
    if type(value) is not hint:
        raise ModelError(f"{where}: must be {hint.__name__}, got {str(value)!r:.80}")
    return value
