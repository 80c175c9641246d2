"""npy: vectors as one matrix float32 [rows, width] that grows; other columns in a tsv beside it."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..streams import write_errors
from .lines import FileSink, Lines, write_at
from .rows import Column, Types, Vector, Whole, plain


class NpySink:
    """The matrix at `part`, and `NAME.ids.tsv` for the columns that are no vectors, if there are.

    The header has room for any number of rows: each `commit` writes it anew.
    """

    def __init__(self, part: Path, target: Path, types: Types, there: Whole) -> None:
        self._part, self._target = part, target
        (self._name, self._width), *more = (
            (name, kind.width) for name, kind in types.items() if isinstance(kind, Vector)
        )
        if more:
            raise ValueError(f"npy has one column of vectors, not also {more}")
        others = plain(types)
        self._ids = Ids(target, others, there) if others else None
        self._descriptor: int | None = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        self._at = there.size or len(header(0, self._width))
        self._mark = (replace(there, size=self._at), there if self._ids is None else self._ids.end)

    @property
    def whole(self) -> Whole:
        return self._mark[0]

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:
        data = np.ascontiguousarray(columns[self._name], "<f4").reshape(n, self._width)
        if n:
            with write_errors(self._target):
                write_at(self._fd, data.data.cast("B"), self._at)
        size = self._at + data.nbytes
        if self._ids is not None:
            self._ids.add(columns, n, end)
        self._at = size
        if end is not None:
            ids_end = end if self._ids is None else self._ids.end
            self._mark = (replace(end, size=size), ids_end)

    def commit(self) -> Whole:
        if self._ids is not None:
            self._ids.commit()
        with write_errors(self._target):
            start = header(0, self._width)
            rows = (self.whole.size - len(start)) // (4 * self._width)
            write_at(self._fd, header(rows, self._width), 0)
        return self.whole

    def keep(self) -> Whole:
        if self._ids is not None:
            self._ids.keep(self._mark[1])
        with write_errors(self._target):  # a torn record is cut off
            os.ftruncate(self._fd, self.whole.size)
        return self.commit()

    def finish(self) -> None:
        self.keep()
        with write_errors(self._target):
            os.replace(self._part, self._target)
        if self._ids is not None:
            self._ids.finish()

    def close(self) -> None:
        if self._ids is not None:
            self._ids.close(empty=not self.whole.records)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def _fd(self) -> int:
        assert self._descriptor is not None
        return self._descriptor


class Ids:
    """The columns beside a matrix, in a tsv that goes with it."""

    def __init__(self, target: Path, types: Mapping[str, type], there: Whole) -> None:
        self._names = list(types)
        stem = target.stem if target.suffix.lower() == ".npy" else target.name
        self._target = target.with_name(stem + ".ids.tsv")
        self._part = self._target.with_name(self._target.name + ".part")
        at = replace(there, size=_lines_end(self._part, there.records + 1) if there.records else 0)
        self._sink = FileSink(self._part, self._target, Lines("tsv", types), at)

    @property
    def end(self) -> Whole:
        """Where whole records end in this table."""
        return self._sink.whole

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:
        self._sink.add({name: columns[name] for name in self._names}, n, end)

    def commit(self) -> None:
        self._sink.commit()

    def keep(self, end: Whole) -> None:
        """Cuts what is after `end`."""
        self._sink.whole = end
        self._sink.keep()

    def finish(self) -> None:
        self._sink.finish()

    def close(self, *, empty: bool) -> None:
        self._sink.close()
        if empty:
            self._part.unlink(missing_ok=True)


def header(rows: int, width: int) -> bytes:
    """The head of a .npy file of float32 [rows, width]; its length does not depend on the rows."""
    text = io.BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(text, described)
    return text.getvalue()


def _lines_end(path: Path, lines: int) -> int:
    """Where so many lines end; InputError if there are fewer."""
    size = 0
    try:
        with path.open("rb") as file:
            for _ in range(lines):
                line = file.readline()
                if not line.endswith(b"\n"):
                    raise InputError(f"{path} has lost records: remove it and the .part beside it")
                size += len(line)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    return size
