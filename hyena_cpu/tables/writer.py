"""The writer that every table goes through."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ..errors import HyenaError, InputError
from ..streams import WriteError, standard_output
from .lines import FileSink, Lines, StreamSink
from .npy import NpySink
from .npz import NpzSink
from .parquet import ParquetSink
from .partial import Partial, Settings
from .rows import Columns, Sink, Types, Whole, checked, plain

log = logging.getLogger(__name__)

LINE_FORMS = ("tsv", "csv", "json", "jsonl")
FORMS = (*LINE_FORMS, "parquet", "npz")
GROWING = (*LINE_FORMS, "npy")  # FILE.part grows, and what is torn at its end is cut off

COMMIT_S = 0.5  # a killed run loses the records of so many seconds


class TableWriter:
    """A context to write the records of a table to; a record has one row or many.

    A file appears when the context ends without an exception. Otherwise its whole records stay in
    `FILE.part`, a valid file of its form, and `FILE.part.json` says how to go on.

    Args:
        path: None is standard output, for forms made of lines. A pipe or a device is written
            directly.
        form: one of FORMS; or npy, the one column of vectors as a matrix, with the other columns,
            if any, in a table of their own (`NpySink`).
        columns: name -> int, float, str or Vector, in order.
        settings: whatever decides the rows (model, options, input), as JSON. A partial file is
            continued with equal settings only.
        resume: go on where an unfinished run ended; begins anew if there is none.

    Attributes:
        columns: as given.
        done: records that an unfinished run left. The caller writes those after them.
        failed: records written as failed, by that run too.

    Raises:
        InputError: the path cannot be written; there is an unfinished run and `resume` is not set,
            or it cannot be continued; `resume`, but the table is complete.
    """

    def __init__(
        self,
        path: Path | None,
        form: str,
        columns: Types,
        *,
        settings: Settings | None = None,
        resume: bool = False,
    ) -> None:
        self.columns = dict(columns)
        self._partial: Partial | None = None
        self._committed = time.monotonic()
        there = Whole()
        if path is None or (path.exists() and not path.is_file()):
            self._sink = _stream(path, form, self.columns, resume=resume)
        else:
            kinds = {name: kind.__name__ for name, kind in columns.items()}
            described = {"format": form, "columns": kinds, **(settings or {})}
            exact = form not in GROWING
            self._partial = Partial(path.resolve(), described, exact=exact)
            there = self._partial.begin(resume=resume)
            self._sink = _file(self._partial, form, self.columns, there)
        self.done = there.records

    @property
    def failed(self) -> int:
        return self._sink.whole.failed

    def write(self, record: Columns, *, last: bool = True, failed: bool = False) -> None:
        """Appends the rows of a record, as columns of equal length; arrays or sequences.

        None and NaN are missing values: NA in tsv and csv, null in json and parquet, NaN (of a
        text: the empty one) in npz, whose int columns cannot lack a value.

        Args:
            record: name -> values.
            last: False: further rows of the same record follow.
            failed: counts the record, with its last rows, in `failed`.
        """
        columns, n = checked(record, self.columns)
        whole = self._sink.whole
        end = Whole(whole.records + 1, whole.failed + failed) if last else None
        self._sink.add(columns, n, end)
        if last and time.monotonic() - self._committed >= COMMIT_S:
            self._commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._sink.finish()
                if self._partial is not None:
                    self._partial.remove()
            elif self._partial is not None:
                leave(self._partial, self._sink.whole, self._sink.keep)
        finally:
            self._sink.close()

    def _commit(self) -> None:
        whole = self._sink.commit()
        if whole is not None and self._partial is not None:
            self._partial.note(whole)
        self._committed = time.monotonic()


def leave(partial: Partial, whole: Whole, keep: Callable[[], Whole]) -> None:
    """Keeps what is whole. The exception on its way out matters more than one from here."""
    if not whole.records:
        partial.remove()
        return
    leaving = sys.exception()
    try:
        whole = keep()
        partial.note(whole)
    except HyenaError as error:
        if not isinstance(leaving, WriteError):  # a full disk is said once
            log.error("%s", error)
        return
    log.warning(
        "unfinished: %s holds the first %d records; the same command with --resume goes on "
        "from there",
        partial.part,
        whole.records,
    )


def _stream(path: Path | None, form: str, types: Types, *, resume: bool) -> Sink:
    """Standard output, or a pipe or device, which nothing can be renamed to."""
    name = "standard output" if path is None else str(path)
    if form not in LINE_FORMS:
        raise InputError(f"{form} cannot be written to {name}: give -o FILE")
    if resume:
        raise InputError(f"{name} cannot be resumed: --resume needs -o FILE")
    lines = Lines(form, plain(types))
    if path is None:
        return StreamSink(standard_output(), None, lines)
    try:
        return StreamSink(path.open("wb"), path, lines)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from None


def _file(partial: Partial, form: str, types: Types, there: Whole) -> Sink:
    part, target = partial.part, partial.target
    try:
        if form == "npz":
            return NpzSink(part, target, types, there)
        if form == "parquet":
            return ParquetSink(part, target, types, there)
        if form == "npy":
            sink: Sink = NpySink(part, target, types, there)
        else:
            sink = FileSink(part, target, Lines(form, plain(types)), there)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None
    if not there.records:
        try:
            partial.note(there)
        except WriteError:
            sink.close()
            partial.remove()
            raise
    return sink
