"""hyena-cpu score: a table of log-probabilities, one row per record or per position."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..progress import Progress, Watch
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
    warn_of_lookahead,
    whole,
)
from .pictures import add_plot_option, plot_path
from .records import add_sequence_options, dna_policy, read_records
from .tables import add_table_options, open_table, table_form, table_settings

if TYPE_CHECKING:
    from ..model import Model
    from ..plots import Entropies
    from ..score import Part, Row, Setup, Strand
    from ..tables import TableWriter

DNA_OPTIONS = ("case", "special", "ambiguous", "rna", "strict", "strand")
SCORING = ("window", "stride", "bos", "style", "alphabet", "per_position")
INPUT = ("text", "prompt", "file", "fasta", "strip_newline")

SHOWN_FAILURES = 10  # records without a status column that get a message each


def parser() -> Parser:
    """Options of the command."""
    p = Parser("score", "Prints how likely the model finds a text, or each record of a FASTA file.")
    add_prompt_options(p, fasta=True)
    add_sequence_options(p)
    how = p.add_argument_group("scoring")
    help = "a row for every base or token: its probability, those of A C G T, the entropy"
    flag_pair(how, "--per-position", default=False, help=help)
    help = "probabilities over all the model's tokens or over the four bases (default: all)"
    how.add_argument("--alphabet", choices=("all", "acgt"), default="all", help=help)
    help = "tokens seen at once (default: the model's limit, or all)"
    how.add_argument("--window", type=whole(2), metavar="N", help=help)
    help = "tokens scored per window (default: all it can)"
    how.add_argument("--stride", type=whole(1), metavar="N", help=help)
    flag_pair(how, "--bos", default=False, help="begin token before every window")
    how.add_argument("--style", metavar="NAME", help="style token before every window")
    add_model_options(p)
    add_table_options(p)
    add_plot_option(p, "the entropy along sequences of DNA, with --per-position")
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command. 4 if a record could not be scored; its row says why."""
    exactly_one(args, "text", "prompt", "file", "fasta")
    table_form(args)
    if plot_path(args) is not None and not args.per_position:
        raise UsageError("--plot draws what --per-position computes: give both")
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    model.on_progress = None
    warn_of_lookahead(model)
    text = args.fasta is None and not has_dna_tokenizer(model)
    failed = (_score_text if text else _score_records)(args, model)
    if failed:
        log.error("%d of the records could not be scored", failed)
    return 4 if failed else 0


def _score_text(args: argparse.Namespace, model: Model) -> int:
    """Scores a text, which is one record; how many records failed."""
    from ..score import TEXT_COLUMNS, TOKEN_COLUMNS, score_text, token_parts

    given = [name for name in DNA_OPTIONS if getattr(args, name) is not None]
    if given:
        raise UsageError(f"--{given[0]} acts on DNA only: give --fasta or a model for DNA")
    if args.plot is not None:
        raise UsageError("--plot draws sequences of DNA only: give --fasta or a model for DNA")
    data, name = read_input(args, strip_newline=False)
    setup = _setup(args, model)
    settings = table_settings(args, model, *INPUT, *SCORING)
    columns = TOKEN_COLUMNS if args.per_position else TEXT_COLUMNS
    with (
        open_table(args, columns, settings) as table,
        Progress("tokens scored", enabled=args.progress) as progress,
    ):
        watch = Watch(progress, lambda: 1.0, resumed=False)
        model.on_progress = watch.inside
        if not table.done and args.per_position:
            _write_parts(table, token_parts(model, data, setup, name, watch.scored))
        elif not table.done:
            _write_rows(table, iter([score_text(model, data, setup, name, watch.scored)]))
        return table.failed


def _score_records(args: argparse.Namespace, model: Model) -> int:
    """Scores records of DNA; how many failed."""
    from ..plots import Entropies
    from ..score import BASE_COLUMNS, COLUMNS, base_parts, one_per_letter, score_fasta
    from ..sequences import Meter

    entropies = None if args.plot is None else Entropies()
    meter = Meter()
    share = (lambda: meter.share) if args.fasta is not None else (lambda: 1.0)
    records = read_records(args, model, meter)
    setup, policy = _setup(args, model), dna_policy(args, model)
    strand: Strand = "fwd" if args.strand is None else args.strand
    if args.per_position and not one_per_letter(model):
        raise UsageError(
            f"--per-position of sequences needs one token per base, and {model.name} has none"
        )
    settings = table_settings(args, model, *INPUT, *DNA_OPTIONS, *SCORING)
    columns = BASE_COLUMNS if args.per_position else COLUMNS
    with (
        open_table(args, columns, settings) as table,
        Progress("bases scored", enabled=args.progress) as progress,
    ):
        watch = Watch(progress, share, resumed=table.done > 0)
        model.on_progress = watch.inside
        given = model, records, setup, policy, strand
        skip, report = table.done, watch.scored
        if args.per_position:
            parts = base_parts(*given, skip=skip, on_progress=report)
            _write_parts(table, parts, entropies)
        else:
            _write_rows(table, score_fasta(*given, skip=skip, on_progress=report))
    if entropies is not None:
        entropies.draw(args.plot)
    return table.failed


def _setup(args: argparse.Namespace, model: Model) -> Setup:
    from ..score import Setup, check

    setup = Setup(args.window, args.stride, args.bos, args.style, args.special, args.alphabet)
    with usage_errors(args):
        check(model, setup)
    return setup


def _write_rows(table: TableWriter, rows: Iterator[Row]) -> None:
    from ..score import values

    for row in rows:
        named = {name: [value] for name, value in values(row).items() if name in table.columns}
        table.write(named, failed=row.status != "ok")


def _write_parts(
    table: TableWriter, parts: Iterator[Part], entropies: Entropies | None = None
) -> None:
    """Writes the rows; adds what is to be drawn to `entropies`."""
    shown = 0
    for part in parts:
        table.write(part.columns, last=part.last, failed=part.problem is not None)
        if entropies is not None:
            entropies.add(part.columns)
        if part.problem is not None and shown < SHOWN_FAILURES:
            log.error("%s", part.problem)
            shown += 1
