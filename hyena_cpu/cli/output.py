"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from ..streams import standard_output, write_errors
from .common import UsageError


class Output:
    """A context to write results to, as UTF-8 bytes whatever the locale says.

    Args:
        path: None is standard output. Otherwise a temporary file beside it is renamed at the end,
            and removed if an exception (Ctrl-C included) ends the context.
    """

    def __init__(self, path: Path | None) -> None:
        self._target = None if path is None else path.resolve()
        self._temporary: Path | None = None
        self._stream: BinaryIO = self._open()

    def write(self, text: str | bytes) -> None:
        """Writes and flushes, so a reader sees it now; WriteError where that fails."""
        with write_errors(self._target):
            self._stream.write(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._target is None:
            return
        try:
            with write_errors(self._target) if kind is None else contextlib.suppress(OSError):
                self._stream.close()
                if kind is None and self._temporary is not None:
                    os.replace(self._temporary, self._target)
        finally:
            if self._temporary is not None:
                with contextlib.suppress(OSError):  # after the renaming it is not there
                    self._temporary.unlink()

    def _open(self) -> BinaryIO:
        if self._target is None:
            return standard_output()
        try:
            if self._target.exists() and not self._target.is_file():
                return self._target.open("wb")  # a device or a pipe: nothing to rename
            self._temporary = self._target.with_name(f".{self._target.name}.{os.getpid()}.tmp")
            return self._temporary.open("xb")
        except OSError as error:
            raise UsageError(f"--output {self._target}: {error.strerror}") from None


def to_table(form: str, types: Mapping[str, type], rows: Iterable[Sequence[Any]]) -> str:
    """A whole table of the form tsv or csv; `types` name its columns, None is a missing value."""
    from ..tables import Column, Lines

    table = list(rows)
    columns: dict[str, Column] = {name: [row[i] for row in table] for i, name in enumerate(types)}
    lines = Lines(form, types)
    return (lines.head + lines.rows(columns, first=True)).decode()


def to_json(value: Any, *, indent: int | None = None) -> str:
    """One JSON text and a line end; a number that JSON lacks is an error, not `NaN`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
