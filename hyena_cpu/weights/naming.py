"""Stored tensor names to native ones: every tensor is used or named, every shape is checked.

A family describes its files as a list of `Tensor`s, one for each native name; `collect` does the
rest. The native format is the same thing with equal names.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError, NumericError

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Tensor:
    """One native tensor and how it lies in the file."""

    native: str
    shape: tuple[int, ...]  # as stored
    keys: tuple[str, ...]  # stored names; any one will do, several must be equal bit for bit
    convert: Callable[[Array], Array] | None = None  # stored values to native ones
    rebuild: Callable[[], Array] | None = None  # stored values of a tensor that may be absent


def collect(
    tensors: Sequence[Tensor],
    stored: Mapping[str, Array],
    where: str,
    *,
    ignorable: Sequence[str] = (),
    allow_nonfinite: bool = False,
) -> tuple[dict[str, Array], list[str]]:
    """Native tensors by name, and notes on what was rebuilt or left out.

    Args:
        tensors: what the model needs.
        stored: what the file holds.
        where: the file, for messages.
        ignorable: stored names that may be present without use.
        allow_nonfinite: let NaN and infinities pass.

    Raises:
        ModelError: tensors are missing, left over, of the wrong shape, or unequal copies.
        NumericError: a tensor holds NaN or an infinity.
    """
    _check_names(tensors, stored, where, ignorable)
    notes = []
    unused = sorted(set(ignorable) & set(stored))
    if unused:
        notes.append(f"{where}: not used with this configuration: {', '.join(unused)}")
    native: dict[str, Array] = {}
    rebuilt = []
    for tensor in tensors:
        found = [key for key in tensor.keys if key in stored]
        if found:
            value = stored[found[0]]
            _check_values(tensor, found, stored, where, allow_nonfinite)
        else:
            assert tensor.rebuild is not None  # _check_names saw to it
            value = tensor.rebuild()
            rebuilt.append(tensor.keys[0])
        if tensor.convert is not None:
            value = tensor.convert(value)
        native[tensor.native] = np.ascontiguousarray(value)
    if rebuilt:
        notes.append(f"{where}: absent and rebuilt from the configuration: {', '.join(rebuilt)}")
    return native, notes


def _check_names(
    tensors: Sequence[Tensor], stored: Mapping[str, Array], where: str, ignorable: Sequence[str]
) -> None:
    missing = [
        t.keys[0] for t in tensors if t.rebuild is None and not any(k in stored for k in t.keys)
    ]
    known = {key for tensor in tensors for key in tensor.keys}
    extra = sorted(set(stored) - known - set(ignorable))
    if missing:
        others = f"; of no known name are: {_listed(extra, 4)}" if extra else ""
        raise ModelError(f"{where}: missing tensors: {_listed(missing)}{others}")
    if extra:
        near = difflib.get_close_matches(extra[0], known, n=1)
        hint = f" (the nearest known name is {near[0]})" if near else ""
        raise ModelError(
            f"{where}: tensors that belong to no part of the model: {_listed(extra)}{hint}"
        )


def _check_values(
    tensor: Tensor,
    found: Sequence[str],
    stored: Mapping[str, Array],
    where: str,
    allow_nonfinite: bool,
) -> None:
    first = stored[found[0]]
    if first.shape != tensor.shape:
        raise ModelError(
            f"{where}: {found[0]} has shape {list(first.shape)} but needs {list(tensor.shape)}"
        )
    for key in found[1:]:
        if stored[key].shape != first.shape or stored[key].tobytes() != first.tobytes():
            raise ModelError(f"{where}: {key} must equal {found[0]}, of which it is a copy")
    if not allow_nonfinite and not np.isfinite(first).all():
        bad = int(first.size - np.isfinite(first).sum())
        raise NumericError(f"{where}: {found[0]} holds {bad} values that are NaN or infinite")


def _listed(names: Sequence[str], limit: int = 16) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(readable(name) for name in names[:limit]) + rest


def readable(name: str) -> str:
    """A stored name as it may appear in a message: printable and of bearable length."""
    return name if name.isprintable() and len(name) <= 200 else f"{name!r:.100}"


def is_training_leftover(name: str) -> bool:
    """Entries of a training checkpoint that are not part of the model."""
    return "torchmetrics" in name


def rename(
    stored: Mapping[str, Array], new_name: Callable[[str], str], where: str
) -> dict[str, Array]:
    """The same tensors under new names. Raises ModelError where two names become one."""
    origin: dict[str, str] = {}
    for key in stored:
        name = new_name(key)
        if name in origin:
            raise ModelError(
                f"{where}: {readable(origin[name])} and {readable(key)} are the same tensor"
            )
        origin[name] = key
    return {name: stored[key] for name, key in origin.items()}


def clean(stored: Mapping[str, Array], prefixes: Sequence[str], where: str) -> dict[str, Array]:
    """Takes off known prefixes, each once, and the `.layer` of gradient checkpointing."""

    def cleaned(name: str) -> str:
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        return name.replace(".mixer.layer.", ".mixer.").replace(".mlp.layer.", ".mlp.")

    return rename(stored, cleaned, where)
