"""States on disk: one file, written so that a crash leaves the old one or the new one.

    0   8 bytes    b"HYCSTATE"
    8   uint32     version of the format
    12  uint32     H, length of the header
    16  uint64     length of the file
    24  H bytes    header: JSON, filled up with spaces
        ...        arrays of float32, float64 or int32, each begins at a multiple of 64 bytes
        32 bytes   BLAKE2b of everything before

All numbers are little-endian. The header holds the model's fingerprint, the position, what the
arrays are and where they begin, counted from the end of the header.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .errors import HyenaError, InputError
from .files import sync_folder
from .parts import Parts
from .state_head import ALIGN, KINDS, Head, parse, places, sizes

Array = NDArray[Any]

MAGIC = b"HYCSTATE"
VERSION = 2  # 1 lacks the period of convolutions
PREFIX = struct.Struct("<8sIIQ")
DIGEST = 32
MAX_HEADER = 16 << 20
PIECE = 1 << 20  # bytes hashed at a time


# ---- writing


def write(path: str | Path, tree: dict[str, Any], *, fingerprint: str, isa: str) -> None:
    """Saves a tree of plain data and arrays (see `parts`), with its "position", under this name.

    Raises:
        InputError: the name is that of a folder or a device.
        HyenaError: the file cannot be written; what was there before is still there.
    """
    target = Path(path).resolve()
    if os.path.exists(target) and not os.path.isfile(target):
        raise InputError(f"{path}: not a regular file, so no state can be saved there")
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    arrays: list[Array] = []
    state = _without_arrays(tree, arrays)
    try:
        try:
            with temporary.open("xb") as file:
                _write(file, _header(state, arrays, fingerprint, isa), arrays)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
            sync_folder(target.parent)
        finally:
            with contextlib.suppress(OSError):  # after the renaming it is not there
                temporary.unlink()
    except OSError as error:
        raise HyenaError(f"cannot write {path}: {error.strerror}") from error


def _without_arrays(value: Any, arrays: list[Array]) -> Any:
    """The tree with {"array": number} in the place of every array, which is added to `arrays`, once
    even if it stands in several places.
    """
    if isinstance(value, np.ndarray):
        if all(one is not value for one in arrays):
            arrays.append(value)
        return {"array": next(i for i, one in enumerate(arrays) if one is value)}
    if isinstance(value, dict):
        return {name: _without_arrays(item, arrays) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_arrays(item, arrays) for item in value]
    return value


def _header(state: Any, arrays: list[Array], fingerprint: str, isa: str) -> bytes:
    starts, _ = places([a.nbytes for a in arrays])
    entries = [
        {"dtype": str(a.dtype), "shape": list(a.shape), "offset": start}
        for a, start in zip(arrays, starts, strict=True)
    ]
    head = {"fingerprint": fingerprint, "isa": isa, "state": state, "arrays": entries}
    text = json.dumps(head, allow_nan=False).encode()
    return text + b" " * (-(PREFIX.size + len(text)) % ALIGN)


def _write(file: BinaryIO, header: bytes, arrays: list[Array]) -> None:
    digest = hashlib.blake2b(digest_size=DIGEST)

    def put(data: bytes | memoryview) -> None:
        digest.update(data)
        file.write(data)

    starts, end = places([a.nbytes for a in arrays])
    put(PREFIX.pack(MAGIC, VERSION, len(header), PREFIX.size + len(header) + end + DIGEST))
    put(header)
    at = 0
    for array, start in zip(arrays, starts, strict=True):
        put(bytes(start - at))
        at = start + array.nbytes
        if array.size:
            stored = np.ascontiguousarray(array, KINDS[str(array.dtype)])
            put(stored.reshape(-1).view(np.uint8).data)
    file.write(digest.digest())


# ---- reading


class StateFile:
    """A file whose checksum and header were found right; made by `reading`."""

    def __init__(self, file: BinaryIO, path: str | Path) -> None:
        self._file = file
        self._path = path
        self.head = _checked(file, path)

    def parts(self) -> Parts:
        """The tree with its arrays, which are read now."""
        arrays = []
        starts, _ = places(sizes(self.head.shapes, self.head.kinds))
        for shape, kind, start in zip(self.head.shapes, self.head.kinds, starts, strict=True):
            values = np.empty(shape, KINDS[kind])
            self._file.seek(self.head.begins + start)
            if self._file.readinto(values.reshape(-1).view(np.uint8)) != values.nbytes:  # type: ignore[attr-defined]
                raise InputError(f"{self._path}: the file became shorter while it was read")
            arrays.append(values.astype(kind, copy=False))
        return Parts(f"{self._path}: state", self.head.state, arrays)


@contextlib.contextmanager
def reading(path: str | Path, fingerprint: str | None = None) -> Iterator[StateFile]:
    """Opens a state file and checks it, before anything is allocated for what it declares.

    Raises:
        InputError: missing, no state file, of another version, cut short, damaged, or not of the
            model with this fingerprint.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: not a regular file, so no state")
        with open(path, "rb") as file:
            found = StateFile(file, path)
            if fingerprint not in (None, found.head.fingerprint):
                raise InputError(
                    f"{path}: a state of another model: its fingerprint is "
                    f"{found.head.fingerprint}, that of this model {fingerprint}"
                )
            yield found
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _checked(file: BinaryIO, path: str | Path) -> Head:
    size = os.fstat(file.fileno()).st_size
    start = file.read(PREFIX.size)
    if not start.startswith(MAGIC):
        raise InputError(f"{path}: not a state saved by hyena-cpu")
    if len(start) < PREFIX.size:
        raise InputError(f"{path}: cut short: {size} bytes are no whole state")
    _, version, length, total = PREFIX.unpack(start)
    if version not in (1, VERSION):
        raise InputError(
            f"{path}: a state of format version {version}, and this program reads {VERSION}: "
            "make it again from its prompt"
        )
    if size != total:
        what = "cut short" if size < total else "longer than it should be"
        raise InputError(f"{path}: {what}: {total} bytes expected, {size} found")
    room = total - PREFIX.size - length - DIGEST
    if length > MAX_HEADER or room < 0:
        raise InputError(f"{path}: damaged: a header of {length} bytes in a file of {total}")
    header = file.read(length)
    digest = hashlib.blake2b(start + header, digest_size=DIGEST)
    left = room
    while left > 0 and (piece := file.read(min(left, PIECE))):
        digest.update(piece)
        left -= len(piece)
    if digest.digest() != file.read(DIGEST):
        raise InputError(f"{path}: damaged: its checksum does not fit its content")
    return parse(header, path, PREFIX.size + length, room)
