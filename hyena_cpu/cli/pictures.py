"""--plot, for the commands whose tables can be drawn."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import Parser, UsageError, usage_errors


def add_plot_option(parser: Parser, what: str) -> None:
    """--plot; `what` it draws."""
    group = parser.add_argument_group("picture")
    help = f"draw {what}, as png, svg or pdf (needs matplotlib)"
    group.add_argument("--plot", type=Path, metavar="FILE", help=help)


def plot_path(args: argparse.Namespace) -> Path | None:
    """Where to draw; UsageError, before anything is computed, if that will not work."""
    path: Path | None = args.plot
    if path is None:
        return None
    if args.resume:
        raise UsageError("--plot draws the rows of one run, so --resume excludes it")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no such folder")
    if args.output is not None and path.resolve() == args.output.resolve():
        raise UsageError(f"--plot and -o are the same file, {path}")
    from ..plots import check

    with usage_errors(args):
        check(path)
    return path
