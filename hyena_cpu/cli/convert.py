"""hyena-cpu convert: write a model folder from another program's checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..progress import Progress
from .common import Parser, add_log_options, log
from .logs import notice


def parser() -> Parser:
    """Options of the command."""
    p = Parser("convert", "Writes a model folder from a checkpoint of another program.")
    p.add_argument("source", type=Path, metavar="SOURCE", help="checkpoint file or folder")
    p.add_argument("destination", type=Path, metavar="DESTINATION", help="new model folder")
    p.add_argument("--family", metavar="NAME", help="where the files do not tell")
    p.add_argument("--config", type=Path, metavar="FILE", help="configuration of a bare checkpoint")
    p.add_argument(
        "--modulation-shift",
        type=float,
        metavar="S",
        help="window shift of HyenaDNA filters, where the family's own is not wanted",
    )
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from ..weights import convert

    with Progress("converting", enabled=args.progress):
        written = convert(
            args.source,
            args.destination,
            family=args.family,
            config=args.config,
            modulation_shift=args.modulation_shift,
        )
    for note in written.notes:
        notice("%s", note)
    log.info("written: %s", args.destination)
    return 0
