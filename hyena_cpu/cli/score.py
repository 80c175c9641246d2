"""hyena-cpu score: a table of log-probabilities, one row per record."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..progress import Progress
from .common import (
    Parser,
    UsageError,
    add_log_options,
    add_model_options,
    add_prompt_options,
    exactly_one,
    flag_pair,
    has_dna_tokenizer,
    load_model,
    log,
    read_input,
    usage_errors,
    whole,
)
from .records import add_sequence_options, dna_policy, read_records
from .tables import add_table_options, open_table, table_form, table_settings

if TYPE_CHECKING:
    from ..model import Model
    from ..score import Row, Setup
    from ..tables import TableWriter

DNA_OPTIONS = ("case", "special", "ambiguous", "rna", "strict", "strand")
SCORING = ("window", "stride", "bos", "style")
INPUT = ("text", "prompt", "file", "fasta", "strip_newline")


def parser() -> Parser:
    """Options of the command."""
    p = Parser("score", "Prints how likely the model finds a text, or each record of a FASTA file.")
    add_prompt_options(p, fasta=True)
    add_sequence_options(p)
    how = p.add_argument_group("scoring")
    how.add_argument("--window", type=whole(2), metavar="N", help="tokens seen at once")
    how.add_argument("--stride", type=whole(1), metavar="N", help="tokens scored per window")
    flag_pair(how, "--bos", default=False, help="begin token before every window")
    how.add_argument("--style", metavar="NAME", help="style token before every window")
    add_model_options(p)
    add_table_options(p)
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command. 4 if a record could not be scored; its row says why."""
    from ..score import COLUMNS, TEXT_COLUMNS

    exactly_one(args, "text", "prompt", "file", "fasta")
    table_form(args)
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    model.on_progress = None
    text = args.fasta is None and not has_dna_tokenizer(model)
    rows = _text_rows(args, model) if text else _dna_rows(args, model)
    settings = table_settings(args, model, *INPUT, *DNA_OPTIONS, *SCORING)
    with (
        open_table(args, TEXT_COLUMNS if text else COLUMNS, settings) as table,
        Progress("records scored", enabled=args.progress) as progress,
    ):
        failed = _write(table, rows, progress)
    if failed:
        log.error("%d of the records could not be scored: their status says why", failed)
    return 4 if failed else 0


def _text_rows(args: argparse.Namespace, model: Model) -> Iterator[Row]:
    from ..score import score_text

    given = [name for name in DNA_OPTIONS if getattr(args, name) is not None]
    if given:
        raise UsageError(f"--{given[0]} acts on DNA only: give --fasta or a model for DNA")
    data, name = read_input(args, strip_newline=False)
    setup = _setup(args, model)
    return (score_text(model, text, setup, name) for text in [data])


def _dna_rows(args: argparse.Namespace, model: Model) -> Iterator[Row]:
    from ..score import score_fasta

    records = read_records(args, model)
    policy = dna_policy(args, model)
    return score_fasta(model, records, _setup(args, model), policy, args.strand or "fwd")


def _setup(args: argparse.Namespace, model: Model) -> Setup:
    from ..score import Setup, check

    setup = Setup(args.window, args.stride, args.bos, args.style, args.special)
    with usage_errors(args):
        check(model, setup)
    return setup


def _write(table: TableWriter, rows: Iterator[Row], progress: Progress) -> int:
    """Writes the rows after those that are there already; returns how many rows failed."""
    from ..score import values

    for index, row in enumerate(rows):
        if index >= table.done:
            named = {name: [value] for name, value in values(row).items() if name in table.columns}
            table.write(named, failed=row.status != "ok")
        progress.update(index + 1, 0)
    return table.failed
