"""Where results go: standard output, or a file that appears only when it is complete."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from ..streams import standard_output, write_errors
from .common import UsageError

# What a run reads and what it writes, by the names of options.
READ = ("file", "fasta", "reference", "variants", "files", "counts", "state_in")
WRITTEN = ("output", "state_out", "plot", "write_counts", "log_file")


def check_files(args: argparse.Namespace) -> None:
    """UsageError if a file would be written that is read as well, a state that is to be saved
    again apart, or one whose name no file can have. Standard output by another name becomes
    standard output.
    """
    if getattr(args, "output", None) is not None and _is_standard_output(args.output):
        args.output = None
    for option in WRITTEN:
        written = getattr(args, option, None)
        if written is None:
            continue
        if str(written) == "-":
            raise UsageError(f"--{option.replace('_', '-')} needs a file, not standard output")
        _resolved(Path(written), option)
        if not os.path.isfile(written):
            continue
        for name in READ:
            given = getattr(args, name, None)
            for path in given if isinstance(given, list) else [given]:
                again = (name, option) == ("state_in", "state_out")
                if path not in (None, "-") and not again and _same_file(path, written):
                    raise UsageError(
                        f"--{option.replace('_', '-')} {written}: the run reads this file, and "
                        "would overwrite it: name another"
                    )


def _same_file(one: str | Path, other: str | Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # not there
        return False


def _is_standard_output(path: Path) -> bool:
    """Whether the name, - or such as /dev/stdout, is that of where standard output goes."""
    try:
        return str(path) == "-" or os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False


def _resolved(path: Path, option: str = "output") -> Path:
    try:
        path.exists()  # a name that is too long is resolved all the same
        return path.resolve()
    except (OSError, RuntimeError) as error:  # the latter of links in a circle
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--{option.replace('_', '-')} {path}: {reason}") from None


class Output:
    """A context to write results to, as UTF-8 bytes whatever the locale says.

    Args:
        path: None is standard output. Otherwise a temporary file beside it is renamed at the end,
            and removed if an exception (Ctrl-C included) ends the context.
    """

    def __init__(self, path: Path | None) -> None:
        self._target = None if path is None else _resolved(path)
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
