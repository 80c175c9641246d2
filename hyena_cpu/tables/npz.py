"""npz: one array per column, float64, int64, unicode, or float32 [rows, width] of vectors.

A missing number is NaN, a missing text is empty.

Columns are collected in unnamed files and put together at the end, when their length is known.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..streams import write_errors
from .rows import Column, Kind, Types, Vector, Whole, cells

PIECE = 65_536  # numbers or texts written or read at once


@dataclass(frozen=True)
class _End:
    """Where whole records end in a collected column: rows, bytes, characters of the longest."""

    rows: int = 0
    size: int = 0
    width: int = 1


class _Spool:
    """One column in an unnamed file: numbers as they are, texts as JSON, a line for each piece."""

    def __init__(self, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self.row = (kind.width,) if isinstance(kind, Vector) else ()  # shape of a value
        self.end = _End()
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  see close

    def add(self, column: Column) -> None:
        rows, width = len(column), self.end.width
        if self.kind is str:
            texts = ["" if value is None else str(value) for value in cells(column)]
            data = f"{json.dumps(texts)}\n".encode()
            width = max([width, *map(len, texts)])
        else:
            data = _numbers(column, self.kind).tobytes()
        if self._file.tell() != self.end.size:  # a write that was interrupted
            self._file.seek(self.end.size)
        self._file.write(data)
        self.end = _End(self.end.rows + rows, self.end.size + len(data), width)

    def arrays(self, end: _End) -> Iterator[NDArray[Any]]:
        """The column up to `end`, in pieces."""
        self._file.flush()
        self._file.seek(0)
        if self.kind is not str:
            for n in _pieces(end.rows, self.row):
                yield _array(self._file, n, self.row, _dtype(self.kind))
            return
        left = end.rows
        while left:
            texts: list[str] = []
            while len(texts) < min(PIECE, left):
                texts += json.loads(self._file.readline())
            yield np.array(texts, f"<U{end.width}")
            left -= len(texts)

    def dtype(self, end: _End) -> np.dtype[Any]:
        return np.dtype(f"<U{end.width}") if self.kind is str else _dtype(self.kind)

    def close(self) -> None:
        # Closing writes what is still held, and fails like the write before it: that one is said.
        with contextlib.suppress(OSError):
            self._file.close()


class NpzSink:
    """A table for `np.load`. Strings are deflated, numbers stored."""

    def __init__(self, part: Path, target: Path, types: Types, there: Whole) -> None:
        self._part, self._target = part, target
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        self._spools = {name: _Spool(kind, target.parent) for name, kind in types.items()}
        self.whole = Whole()
        self._ends = (self.whole, [spool.end for spool in self._spools.values()])
        if there.records:
            try:
                self._load()
            except BaseException:
                self.close()
                raise
            self._mark(there)

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:  # noqa: ARG002
        with write_errors(self._target):
            for name, column in columns.items():
                self._spools[name].add(column)
        if end is not None:
            self._mark(end)

    def commit(self) -> None:
        return None

    def keep(self) -> Whole:
        whole = self._write(self._part)
        return replace(whole, size=self._part.stat().st_size)

    def finish(self) -> None:
        self._write(self._target)

    def close(self) -> None:
        for spool in self._spools.values():
            spool.close()
        self._temporary.unlink(missing_ok=True)

    def _mark(self, whole: Whole) -> None:
        self._ends = (whole, [spool.end for spool in self._spools.values()])
        self.whole = whole

    def _write(self, place: Path) -> Whole:
        whole, ends = self._ends
        with write_errors(place):
            with zipfile.ZipFile(self._temporary, "w") as archive:
                for (name, spool), end in zip(self._spools.items(), ends, strict=True):
                    _write_array(archive, name, spool, end)
            os.replace(self._temporary, place)
        return whole

    def _load(self) -> None:
        try:
            with zipfile.ZipFile(self._part) as archive:
                for name, spool in self._spools.items():
                    for array in _read_array(archive, name):
                        with write_errors(self._target):
                            spool.add(array)
        except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise InputError(f"{self._part} cannot be read: {error}") from None


def _write_array(archive: zipfile.ZipFile, name: str, spool: _Spool, end: _End) -> None:
    info = zipfile.ZipInfo(f"{name}.npy")  # its fixed date makes equal tables equal files
    info.compress_type = zipfile.ZIP_DEFLATED if spool.kind is str else zipfile.ZIP_STORED
    header = {
        "descr": spool.dtype(end).str,
        "fortran_order": False,
        "shape": (end.rows, *spool.row),
    }
    with archive.open(info, "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for array in spool.arrays(end):
            file.write(array.tobytes())


def _read_array(archive: zipfile.ZipFile, name: str) -> Iterator[NDArray[Any]]:
    with archive.open(f"{name}.npy") as file:
        np.lib.format.read_magic(file)
        (rows, *row), _, dtype = np.lib.format.read_array_header_1_0(file)
        for n in _pieces(rows, row):
            yield _array(file, n, row, dtype)


def _pieces(rows: int, row: Sequence[int]) -> Iterator[int]:
    """How many rows of this shape to take at a time."""
    most = max(1, PIECE // math.prod(row))
    for begin in range(0, rows, most):
        yield min(most, rows - begin)


def _array(file: IO[bytes], n: int, row: Sequence[int], dtype: np.dtype[Any]) -> NDArray[Any]:
    data = file.read(n * math.prod(row) * dtype.itemsize)
    return np.frombuffer(data, dtype).reshape(n, *row)


def _numbers(column: Column, kind: Kind) -> NDArray[Any]:
    if isinstance(kind, Vector):
        return np.ascontiguousarray(column, _dtype(kind))
    if isinstance(column, np.ndarray) and column.dtype.kind in ("f" if kind is float else "iu"):
        return column.astype(_dtype(kind))
    if kind is float:
        return np.array([np.nan if v is None else v for v in column], np.float64)
    if any(value is None for value in column):
        raise ValueError("an int column of an npz file cannot hold missing values")
    return np.array(column, np.int64)


def _dtype(kind: Kind) -> np.dtype[Any]:
    if isinstance(kind, Vector):
        return np.dtype("<f4")
    return np.dtype("<f8" if kind is float else "<i8")
