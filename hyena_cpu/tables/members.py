"""npz with one matrix per record, written as its rows come; the records' names are the last arrays.

Shapes: T rows of a record, D = width.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..streams import write_errors
from .npy import header
from .partial import Partial, Settings
from .rows import Whole
from .writer import leave

Floats = NDArray[np.float32]


class Members:
    """A context to write matrices float32 [T, width] to, for `np.load`, as arrays `0`, `1`, ...

    A record without a matrix has its number, but no array. At the end come the arrays `ids` and
    `status` (unicode) and `lengths` (int64), one value per record. A file appears when the context
    ends without an exception; otherwise `FILE.part` holds the whole records, without those three
    arrays, and can be continued. A killed run cannot.

    Args, attributes and errors are those of `TableWriter`.
    """

    def __init__(
        self, path: Path, width: int, *, settings: Settings | None = None, resume: bool = False
    ) -> None:
        if path.exists() and not path.is_file():
            raise InputError(f"npz cannot be written to {path}: give -o FILE")
        described = {"format": "npz", "arrays": f"float32[{width}]", **(settings or {})}
        self._partial = Partial(path.resolve(), described, exact=True)
        self._width = width
        self._names: list[tuple[str, int, str]] = []  # id, length, status
        there = self._partial.begin(resume=resume)
        self.done = there.records
        self._file, self._archive = self._open(there)
        self._handle: IO[bytes] | None = None  # of the matrix under way
        # The whole records, their places in the archive, and where the last of them ends.
        self._mark = (there, tuple(self._archive.infolist()), self._file.tell())

    @property
    def failed(self) -> int:
        """Records written as failed, by an earlier run too."""
        return self._mark[0].failed

    def name(self, id: str, length: int, status: str) -> None:
        """Says what the next record is; those that an earlier run wrote have to be named again."""
        self._names.append((id, length, status))

    def write(self, rows: int, blocks: Iterable[Floats], *, failed: bool = False) -> None:
        """Appends the record named last: rows [<= T, D] in order, T = `rows` together.

        Without rows there is no array.
        """
        whole = self._mark[0]
        if rows:
            self._matrix(str(whole.records), rows, blocks)
        whole = Whole(whole.records + 1, whole.failed + failed)
        self._mark = (whole, tuple(self._archive.infolist()), self._file.tell())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        finished = False
        try:
            if kind is None:
                self._finish()
                finished = True
        finally:
            if not finished:
                leave(self._partial, self._mark[0], self._keep)
            self._let_go()

    def _open(self, there: Whole) -> tuple[BinaryIO, zipfile.ZipFile]:
        part = self._partial.part
        try:
            file = part.open("r+b" if there.records else "w+b")
        except OSError as error:
            raise InputError(f"{part} cannot be written: {error.strerror}") from None
        if there.records and not zipfile.is_zipfile(file):
            file.close()
            raise InputError(f"{part} cannot be read: it is no npz file")
        return file, zipfile.ZipFile(file, "a" if there.records else "w")

    def _matrix(self, name: str, rows: int, blocks: Iterable[Floats]) -> None:
        with write_errors(self._partial.target):
            self._handle = self._archive.open(_info(name), "w", force_zip64=True)
            self._handle.write(header(rows, self._width))
        for block in blocks:
            data = np.ascontiguousarray(block, "<f4")
            rows -= len(data)
            with write_errors(self._partial.target):
                self._handle.write(data.data.cast("B"))
        if rows:
            raise ValueError(
                f"array {name} has {abs(rows)} rows too {'few' if rows > 0 else 'many'}"
            )
        with write_errors(self._partial.target):
            self._handle.close()
            self._file.flush()  # so that what counts as whole is in the file

    def _finish(self) -> None:
        ids, lengths, status = zip(*self._names, strict=True) if self._names else ((), (), ())
        arrays = {"ids": np.array(ids, str), "lengths": np.array(lengths, np.int64)}
        with write_errors(self._partial.target):
            for name, array in {**arrays, "status": np.array(status, str)}.items():
                with self._archive.open(_info(name), "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
            self._archive.close()
            self._file.close()
            self._partial.part.replace(self._partial.target)
        self._partial.remove()

    def _keep(self) -> Whole:
        """Cuts off what is torn and puts the archive's directory after the last whole record."""
        whole, members, end = self._mark
        self._let_go()
        part = self._partial.part
        with write_errors(part), part.open("r+b") as file:
            file.seek(end)
            file.truncate()
            with zipfile.ZipFile(file, "w") as archive:  # begins where the file is
                archive.infolist().extend(members)
        return replace(whole, size=part.stat().st_size)

    def _let_go(self) -> None:
        """Closes the file. The archive writes nothing more, even when it is collected."""
        if self._handle is not None:
            with contextlib.suppress(OSError):  # like the next, of a write that has failed before
                self._handle.close()
        self._archive.fp = None
        with contextlib.suppress(OSError):
            self._file.close()


def _info(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(f"{name}.npy")  # its fixed date makes equal arrays equal files
