"""parquet, through pyarrow: columns of int64, float64, string, or lists of `width` float32.

What is missing is null; vectors are stored as they are.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..streams import WriteError, write_errors
from .rows import Column, Columns, Kind, Types, Vector, Whole, cells, checked

if TYPE_CHECKING:
    import pyarrow

GROUP = 65_536  # rows held before they are written as a row group, at most
GROUP_NUMBERS = 1 << 22  # numbers of vectors held, at most


class ParquetSink:
    """A table in row groups. The file is readable only after its end is written, so it is written
    under a temporary name and then becomes the partial or the complete file.
    """

    def __init__(self, part: Path, target: Path, types: Types, there: Whole) -> None:
        self._part, self._target = part, target
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        self._schema = _schema(types)
        widths = [kind.width for kind in types.values() if isinstance(kind, Vector)]
        self._group = max(1, min([GROUP, *(GROUP_NUMBERS // width for width in widths)]))
        self._held: list[Any] = []  # pyarrow record batches
        self._held_rows = 0
        self._rows = 0  # of everything added
        self._marks = [(0, Whole())]  # rows at the end of a record; the last one written, and later
        self._failure: WriteError | None = None  # of a row group: no end can be written after it
        self._writer = self._begun()
        if there.records:
            try:
                self._load(there)
            except BaseException:
                self.close()
                raise

    @property
    def whole(self) -> Whole:
        return self._marks[-1][1]

    def add(self, columns: dict[str, Column], n: int, end: Whole | None) -> None:
        self._hold(_record_batch(columns, self._schema), n)
        if end is not None:
            self._marks.append((self._rows, end))

    def commit(self) -> None:
        return None

    def keep(self) -> Whole:
        whole = self._place(self._part)
        return replace(whole, size=self._part.stat().st_size)

    def finish(self) -> None:
        self._place(self._target)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # writes the end of a file that nobody will see
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def _begun(self) -> Any:
        """The writer of the temporary file; a disk may be too full for its first bytes."""
        self._temporary.touch()
        try:
            with write_errors(self._target):
                return self._open(self._temporary)
        except WriteError:
            self._temporary.unlink(missing_ok=True)
            raise

    def _hold(self, batch: pyarrow.RecordBatch, n: int) -> None:
        if n:
            self._held.append(batch)
        self._held_rows += n
        self._rows += n
        if self._held_rows >= self._group:
            self._flush()

    def _flush(self) -> None:
        pa, _ = _modules()
        # Taken out first: an interrupt may lose these rows, but never writes them twice.
        held, self._held, self._held_rows = self._held, [], 0
        if not held:
            return
        try:
            with write_errors(self._target):
                self._writer.write_table(pa.Table.from_batches(held, self._schema))
        except WriteError as error:
            self._failure = error
            raise
        self._marks = self._marks[-1:]

    def _place(self, place: Path) -> Whole:
        """The whole records, at `place`."""
        _, pq = _modules()
        if self._failure is not None:
            raise self._failure
        self._flush()
        with write_errors(place):
            self._writer.close()
            there = pq.read_metadata(self._temporary).num_rows
            rows, whole = next(mark for mark in reversed(self._marks) if mark[0] <= there)
            if rows < there:
                self._cut(rows)
            os.replace(self._temporary, place)
        return whole

    def _cut(self, rows: int) -> None:
        """Copies the first rows only: those after them are of a torn record."""
        shorter = self._temporary.with_suffix(".cut")
        try:
            with self._open(shorter) as writer:
                for batch in _batches(self._temporary, self._group):
                    writer.write_batch(batch[:rows])
                    rows -= min(rows, len(batch))
                    if not rows:
                        break
            os.replace(shorter, self._temporary)
        finally:
            shorter.unlink(missing_ok=True)

    def _load(self, there: Whole) -> None:
        pa, _ = _modules()
        try:
            for batch in _batches(self._part, self._group):
                self._hold(batch.cast(self._schema), len(batch))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise InputError(f"{self._part} cannot be read: {error}") from None
        self._marks.append((self._rows, there))

    def _open(self, path: Path) -> Any:
        _, pq = _modules()
        repeating = [field.name for field in self._schema if not _is_vector(field.type)]
        return pq.ParquetWriter(path, self._schema, compression="zstd", use_dictionary=repeating)


def arrow_table(columns: Columns, types: Types) -> pyarrow.Table:
    """Columns as pyarrow holds them, with the types that a parquet file of them has."""
    pa, _ = _modules()
    given, _ = checked(columns, types)
    return pa.Table.from_batches([_record_batch(given, _schema(types))])


def _schema(types: Types) -> Any:
    pa, _ = _modules()
    return pa.schema([(name, _type(kind)) for name, kind in types.items()])


def _record_batch(columns: dict[str, Column], schema: Any) -> Any:
    pa, _ = _modules()
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _type(kind: Kind) -> Any:
    pa, _ = _modules()
    if isinstance(kind, Vector):
        return pa.list_(pa.float32(), kind.width)
    return {int: pa.int64(), float: pa.float64(), str: pa.string()}[kind]


def _is_vector(kind: Any) -> bool:
    pa, _ = _modules()
    return bool(pa.types.is_fixed_size_list(kind))


def _array(column: Column, kind: Any) -> Any:
    pa, _ = _modules()
    if _is_vector(kind):
        numbers = np.ascontiguousarray(column, np.float32).ravel()
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers), type=kind)
    return pa.array(cells(column), kind, from_pandas=False)


def _batches(path: Path, rows: int) -> Iterator[Any]:
    _, pq = _modules()
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=rows)


def _modules() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            "parquet needs pyarrow: pip install 'hyena-cpu[parquet]', or choose another format"
        ) from None
    return pyarrow, pyarrow.parquet
