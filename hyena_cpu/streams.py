"""Standard output as bytes, and the error where results cannot be written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import HyenaError


class WriteError(HyenaError):
    """Results cannot be written."""


def standard_output() -> BinaryIO:
    """The binary stream under `sys.stdout`; WriteError if it is closed."""
    if sys.stdout is None:
        raise WriteError("cannot write standard output: it is closed")
    return sys.stdout.buffer


@contextmanager
def write_errors(target: Path | None) -> Iterator[None]:
    """Inside, what the system says about writing `target` (None: standard output) is a WriteError.

    A pipe that its reader closed stays a BrokenPipeError: it is no fault.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if target is None:
            silence_stdout()
        name = "standard output" if target is None else target
        # By its number: libraries put texts of their own beside it.
        reason = os.strerror(error.errno) if error.errno else error
        raise WriteError(f"cannot write {name}: {reason}") from None


def silence_stdout() -> None:
    """Drops what could not be written: Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
