"""Tensors of safetensors files as float32 arrays, with one clear sentence for every damaged file.

The `safetensors` library checks the format. Before it is asked, a short look at the header gives
better answers (what kind of file this is instead, expected and actual size, repeated names) and
sets the limits it does not have (header size, rank). Numbers are then read at the offsets the
library has approved, as bits, so that bfloat16 needs no further package and a file that shrinks
while it is read cannot crash the process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from .. import config_json
from ..errors import ModelError
from .naming import readable

MAX_HEADER = 16 << 20  # bytes; the largest public models need a tenth of it
MAX_RANK = 8

_WIDENED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive (a PyTorch file? `hyena-cpu convert` reads those)",
    b"\x80\x02": "a Python pickle (`hyena-cpu convert` reads those of PyTorch)",
    b"\x1f\x8b": "gzip data",
    b"GGUF": "a GGUF file",
    b"version https://git-lfs": "a Git LFS pointer: the weights themselves were not downloaded",
}


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: bytes [start, end) of the data that follows the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read(path: Path, skip: Callable[[str], bool]) -> dict[str, NDArray[np.float32]]:
    """Tensors of a file, C-contiguous, 16-bit formats widened exactly, float64 rounded once.

    Args:
        path: the file.
        skip: says of a name whether its tensor, whatever it holds, is to be left out.

    Raises:
        ModelError: the file is missing, damaged, or holds tensors that are not floating point.
    """
    return dict(_tensors(path, skip))


def _tensors(path: Path, skip: Callable[[str], bool]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ModelError(f"{path}: not a regular file")
        with path.open("rb") as file:
            entries, data_start = _header(file, path)
            _library_check(path)
            for name, entry in entries.items():
                if skip(name):
                    continue
                file.seek(data_start + entry.start)
                yield name, _values(file, entry, f"{path}: tensor {readable(name)}")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


def _library_check(path: Path) -> None:
    try:
        with safe_open(path, framework="np"):
            pass
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ModelError(f"{path}: not a valid safetensors file: {reason}") from error


def _header(file: BinaryIO, path: Path) -> tuple[dict[str, Entry], int]:
    """Entries by name and the offset of the data; says plainly what is wrong where it can."""
    actual = os.fstat(file.fileno()).st_size
    begin = file.read(24)
    for magic, meaning in _OTHER_FORMATS.items():
        # A header of 640 bytes, say, has a length that begins as a pickle does.
        if begin.startswith(magic) and begin[8:9] != b"{":
            raise ModelError(f"{path}: not a safetensors file but {meaning}")
    if len(begin) < 8:
        raise ModelError(f"{path}: truncated: {actual} bytes, a header takes at least 8")
    length = int.from_bytes(begin[:8], "little")
    if length > MAX_HEADER:
        raise ModelError(f"{path}: declares a header of {length} bytes, the limit is {MAX_HEADER}")
    if 8 + length > actual:
        raise ModelError(
            f"{path}: truncated: the header ends at byte {8 + length}, the file at {actual}"
        )
    file.seek(8)
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ModelError(f"{path}: header must begin with '{{', got {text[:8]!r}")
    decoded = config_json.decode(text, f"{path}: header")
    decoded.pop("__metadata__", None)
    entries = {
        name: _entry(value, f"{path}: tensor {readable(name)}") for name, value in decoded.items()
    }
    expected = 8 + length + max((entry.end for entry in entries.values()), default=0)
    if expected > actual:
        raise ModelError(f"{path}: truncated: {expected} bytes expected, {actual} found")
    if expected < actual:
        raise ModelError(
            f"{path}: {actual - expected} bytes after the last tensor: "
            f"{expected} bytes expected, {actual} found"
        )
    return entries, 8 + length


def _entry(value: Any, where: str) -> Entry:
    """One tensor's entry, checked for types only: the library compares shapes with offsets."""
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ModelError(f"{where}: needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str):
        raise ModelError(f"{where}: dtype must be a string, got {dtype!r:.40}")
    for name, sizes in (("shape", shape), ("data_offsets", offsets)):
        if not isinstance(sizes, list) or any(type(n) is not int or n < 0 for n in sizes):
            raise ModelError(
                f"{where}: {name} must be a list of whole numbers >= 0, got {sizes!r:.60}"
            )
    if len(shape) > MAX_RANK:
        raise ModelError(f"{where}: has {len(shape)} dimensions, the limit is {MAX_RANK}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelError(f"{where}: data_offsets must be [start, end], got {offsets!r:.60}")
    return Entry(dtype, tuple(shape), *offsets)


def _values(file: BinaryIO, entry: Entry, where: str) -> NDArray[np.float32]:
    if entry.dtype not in _WIDENED:
        raise ModelError(
            f"{where}: dtype {entry.dtype} is not supported; weights must be F32, F16, BF16 or F64"
        )
    bits = np.empty(entry.shape, _WIDENED[entry.dtype])
    if file.readinto(bits.reshape(-1).view(np.uint8)) != bits.nbytes:  # type: ignore[attr-defined]
        raise ModelError(f"{where}: the file became shorter while it was read")
    return widen(bits, where)


def widen(values: NDArray[Any], where: str) -> NDArray[np.float32]:
    """float32 of float64 (rounded once), float32, float16, or bfloat16 bits given as uint16.

    Raises:
        ModelError: a finite float64 value is too large for float32.
    """
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if values.dtype != np.float64:
        return np.ascontiguousarray(values, dtype=np.float32).reshape(values.shape)
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if np.any(np.isinf(narrow) & np.isfinite(values)):
        largest = np.abs(values[np.isfinite(values)]).max()
        raise ModelError(f"{where}: {largest:.4g} does not fit float32")
    return narrow
