"""Options of the commands that write tables, and the table they open."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..tables import FORMS, TableWriter
from .common import Parser, UsageError, flag_pair, output_format

if TYPE_CHECKING:
    from ..model import Model

TEXTS = ("text", "prompt")  # options that are no file, whatever they say
PIECE = 1 << 20  # bytes of a file read at once


def add_table_options(parser: Parser, forms: tuple[str, ...] = FORMS) -> None:
    """--format, --json, -o and --resume of a table; see `open_table`."""
    group = parser.add_argument_group("output")
    help = "default: by the suffix of -o, else tsv"
    group.add_argument("--format", choices=forms, help=help)
    group.add_argument("--json", action="store_true", help="the same as --format json")
    help = "write there when done; until then, and if interrupted, FILE.part"
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help=help)
    help = "continue FILE.part of the same command, if there is one"
    flag_pair(group, "--resume", default=False, help=help)


def table_form(args: argparse.Namespace) -> str:
    """The format of a table: as asked for, else by the name of its file, else tsv."""
    return output_format(args, "tsv", by_suffix=FORMS)


def open_table(
    args: argparse.Namespace, columns: Mapping[str, type], settings: Mapping[str, Any]
) -> TableWriter:
    """The table of add_table_options. What stands against it is a UsageError.

    Args:
        columns: name -> int, float or str.
        settings: whatever decides the rows; see `table_settings`.
    """
    form = table_form(args)
    try:
        return TableWriter(args.output, form, columns, settings=settings, resume=args.resume)
    except InputError as error:
        raise UsageError(str(error)) from None


def table_settings(args: argparse.Namespace, model: Model, *names: str) -> dict[str, Any]:
    """Settings of a table: the model, how it computes, and these options as they were given.

    An option that names a file also stands for what is in the file. Nothing is said of standard
    input and of pipes, which can be read only once. Without -o there is no run to go on with, so
    no file is read.

    Raises:
        InputError: a file cannot be read.
    """
    numerics = {key: value for key, value in model.numerics.items() if key != "threads"}
    settings: dict[str, Any] = {"model": model.fingerprint, "numerics": numerics}
    for name in names:
        value = getattr(args, name)
        if value is not None:
            settings[name] = str(value) if isinstance(value, Path) else value
        if args.output is None or name in TEXTS or not isinstance(value, str | Path):
            continue
        if os.path.isfile(value):
            settings[f"checksum of {name}"] = _checksum(value)
    return settings


def _checksum(path: str | Path) -> str:
    """Of all bytes of a file, as hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open(path, "rb") as file:
            while piece := file.read(PIECE):
                digest.update(piece)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()
