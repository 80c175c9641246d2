"""Paths as users write them, and what writing a file that survives a crash takes."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import ModelError


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable: after a renaming in it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def expanded(path: str | Path) -> Path:
    """The path of a model, with `~` and `~USER` as the home of a user; ModelError if unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ModelError(f"{path}: no home folder of {Path(path).parts[0]} is known") from None
