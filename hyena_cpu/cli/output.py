"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

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
        """Writes and flushes, so a reader sees it now."""
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
        self._stream.close()
        if self._temporary is None:
            return
        if kind is None:
            os.replace(self._temporary, self._target)
        else:
            with contextlib.suppress(OSError):
                self._temporary.unlink()

    def _open(self) -> BinaryIO:
        if self._target is None:
            return sys.stdout.buffer
        try:
            if self._target.exists() and not self._target.is_file():
                return self._target.open("wb")  # a device or a pipe: nothing to rename
            self._temporary = self._target.with_name(f".{self._target.name}.{os.getpid()}.tmp")
            return self._temporary.open("xb")
        except OSError as error:
            raise UsageError(f"--output {self._target}: {error.strerror}") from None


def to_json(value: Any, *, indent: int | None = None) -> str:
    """One JSON text and a line end; a number that JSON lacks is an error, not `NaN`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
