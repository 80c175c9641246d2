"""Forms made of lines: tsv, csv, jsonl, and json, an array with one object a line."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import NumericError
from ..streams import write_errors
from .rows import Column, Whole, cells

SPILL = 1 << 20  # bytes held before they go to the file


class Lines:
    """Text of rows: what comes before the first one, between two, and after the last."""

    def __init__(self, form: str, types: Mapping[str, type]) -> None:
        self._form, self._names, self._kinds = form, list(types), list(types.values())
        self._row = "\t".join(_CELLS[kind] for kind in self._kinds) + "\n"
        self._json = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
        heads = {"tsv": "\t".join(types) + "\n", "csv": csv_text([types]), "json": "["}
        self.head = heads.get(form, "").encode()

    def rows(self, columns: dict[str, Column], *, first: bool) -> bytes:
        """The rows; `first`: nothing but the head stands before them."""
        table = [cells(column) for column in columns.values()]
        if self._form == "tsv":
            return self._tsv(table).encode("utf-8", "replace")
        if self._form == "csv":
            texts = [[_text(value) for value in column] for column in table]
            return csv_text(zip(*texts, strict=True)).encode("utf-8", "replace")
        objects = [self._object(row) for row in zip(*table, strict=True)]
        if self._form == "jsonl":
            return b"".join(line + b"\n" for line in objects)
        text = b"".join(b",\n" + line for line in objects)
        return text[1:] if first else text

    def _tsv(self, table: list[list[Any]]) -> str:
        if not all(map(_plain, table, self._kinds)):
            texts = [[_cell(value) for value in column] for column in table]
            return "".join(["\t".join(row) + "\n" for row in zip(*texts, strict=True)])
        # The same text, several times as fast: positions of a genome are many.
        return self._row * len(table[0]) % tuple(chain.from_iterable(zip(*table, strict=True)))

    def tail(self, *, empty: bool) -> bytes:
        """What ends a table; `empty`: it has no row."""
        if self._form != "json":
            return b""
        return b"]\n" if empty else b"\n]\n"

    def _object(self, row: tuple[Any, ...]) -> bytes:
        named = dict(zip(self._names, row, strict=True))
        try:
            text = self._json.encode(named)
        except ValueError:
            raise NumericError(f"{self._form} has no infinite numbers: {named}") from None
        return text.encode("utf-8", "replace")


class StreamSink:
    """Lines to a stream that cannot be taken back: standard output, a pipe, a device."""

    def __init__(self, stream: BinaryIO, target: Path | None, lines: Lines) -> None:
        self._stream, self._target, self._lines = stream, target, lines
        self._head = lines.head
        self._empty = True
        self.whole = Whole()

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:
        self._write(self._lines.rows(columns, first=self._empty))
        self._empty = self._empty and n == 0
        self.whole = end or self.whole

    def commit(self) -> None:
        return None

    def keep(self) -> Whole:
        return Whole()

    def finish(self) -> None:
        self._write(self._lines.tail(empty=self._empty))

    def close(self) -> None:
        if self._target is not None:
            with write_errors(self._target):
                self._stream.close()

    def _write(self, data: bytes) -> None:
        with write_errors(self._target):
            self._stream.write(self._head + data)
            self._stream.flush()
        self._head = b""


class FileSink:
    """Lines to `part`, after what is there already.

    Every write says where it goes, so one that an interrupt breaks off is simply done again.
    """

    def __init__(self, part: Path, target: Path, lines: Lines, there: Whole) -> None:
        self._part, self._target, self._lines = part, target, lines
        self._descriptor: int | None = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self._descriptor, there.size)
        self._at = there.size  # where `_held` belongs
        self._held = bytearray(b"" if there.size else lines.head)
        self.whole = there if there.size else replace(there, size=len(lines.head))

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:  # noqa: ARG002
        first = self._at + len(self._held) == len(self._lines.head)
        self._held += self._lines.rows(columns, first=first)
        if end is not None:
            self.whole = replace(end, size=self._at + len(self._held))
        if len(self._held) >= SPILL:
            self._spill()

    def commit(self) -> Whole:
        self._spill()
        return self.whole

    def keep(self) -> Whole:
        self._spill()
        with write_errors(self._target):  # a torn record is cut off
            os.ftruncate(self._fd, self.whole.size)
            tail = self._lines.tail(empty=self.whole.size == len(self._lines.head))
            write_at(self._fd, tail, self.whole.size)
        return self.whole

    def finish(self) -> None:
        self.keep()
        with write_errors(self._target):
            os.replace(self._part, self._target)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def _fd(self) -> int:
        assert self._descriptor is not None
        return self._descriptor

    def _spill(self) -> None:
        with write_errors(self._target):
            write_at(self._fd, self._held, self._at)
        after = self._at + len(self._held)
        self._at, self._held = after, bytearray()


def write_at(descriptor: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """All of the data to the file, from byte `at` on."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of cells with commas between them, quoted where needed, a line feed after each."""
    lines = _Written()
    csv.writer(lines).writerows(rows)
    # The writer quotes whatever its line end holds: a carriage return too, which ends a line for
    # some readers. With its own line end left off, files are like those of the other forms.
    return "".join([line.removesuffix("\r\n") + "\n" for line in lines])


class _Written(list[str]):
    """The rows that a csv writer writes, which it does one by one."""

    write = list.append


_CELLS: dict[type, str] = {int: "%d", float: "%.10g", str: "%s"}


def _plain(column: list[Any], kind: type) -> bool:
    """Whether no cell is missing, or a text with a tab or line end."""
    return None not in column and (kind is not str or all(map(str.isprintable, column)))


def _text(value: Any) -> str:
    """NA for nothing, ten digits of a float."""
    if value is None:
        return "NA"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    """A cell of a tsv: its text, a tab or line end as \\t or \\n."""
    text = _text(value)
    return text if text.isprintable() else text.translate(_ESCAPES)


# Whatever some program takes for the end of a cell or a line.
_ESCAPES = {ord(c): repr(c)[1:-1] for c in "\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
