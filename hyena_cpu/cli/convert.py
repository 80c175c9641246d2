"""hyena-cpu convert: write a model folder from another program's checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..progress import Progress
from .common import Parser, add_log_options, log


def parser() -> Parser:
    """Options of the command."""
    p = Parser("convert", "Writes a model folder from a checkpoint of another program.")
    p.add_argument("source", type=Path, metavar="SOURCE", help="checkpoint file or folder")
    p.add_argument("destination", type=Path, metavar="DESTINATION", help="new model folder")
    p.add_argument("--family", metavar="NAME", help="where the files do not tell")
    p.add_argument("--config", type=Path, metavar="FILE", help="configuration of a bare checkpoint")
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from ..weights import convert

    with Progress("converting", enabled=args.progress):
        convert(args.source, args.destination, family=args.family, config=args.config)
    log.info("written: %s", args.destination)
    return 0
