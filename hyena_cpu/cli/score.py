"""hyena-cpu score: a table of log-probabilities, one row per record or per position."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from .plans import add_dry_run_option, check_dry_run_of_table, print_plan
from .records import add_sequence_options, dna_policy, read_records
from .tables import add_table_options, open_table, table_form, table_settings

if TYPE_CHECKING:
    from ..model import Model
    from ..plots import Entropies
    from ..score import OnProgress, Part, Row, Setup, Strand
    from ..tables import TableWriter

DNA_OPTIONS = ("case", "special", "ambiguous", "rna", "strict", "strand")
SCORING = ("window", "stride", "bos", "style", "alphabet", "per_position")
INPUT = ("text", "prompt", "file", "fasta", "strip_newline")

SHOWN_FAILURES = 10  # records that get a message each, where no column says what is wrong


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
    add_dry_run_option(how)
    add_model_options(p, default="default: tiny-dna with --fasta, else tiny-en")
    add_table_options(p)
    add_plot_option(p, "the entropy along sequences of DNA, with --per-position")
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command. 4 if a record could not be scored; its row says why."""
    exactly_one(args, "text", "prompt", "file", "fasta")
    table_form(args)
    check_dry_run_of_table(args)
    if plot_path(args) is not None and not args.per_position:
        raise UsageError("--plot draws what --per-position computes: give both")
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    model.on_progress = None
    warn_of_lookahead(model)
    text = args.fasta is None and not has_dna_tokenizer(model)
    work = (_text if text else _records)(args, model)
    failed = (_plan if args.dry_run else _save)(args, model, work)
    if failed:
        log.error("%d of the records could not be scored", failed)
    return 4 if failed else 0


@dataclass(frozen=True)
class _Work:
    """What a run scores.

    rows: of a model, after so many records that are done; tells tokens done and to do.
    columns: of the table.
    settings: names of the options that decide the rows.
    label: of the progress line.
    share: how much of the input has been read, 0..1.
    """

    rows: Callable[[Model, int, OnProgress], Iterator[Row | Part]]
    columns: Mapping[str, type]
    settings: tuple[str, ...]
    label: str
    share: Callable[[], float | None]


def _text(args: argparse.Namespace, model: Model) -> _Work:
    """A text, which is one record."""
    from ..score import TEXT_COLUMNS, TOKEN_COLUMNS, score_text, token_parts

    given = [name for name in DNA_OPTIONS if getattr(args, name) is not None]
    if given:
        raise UsageError(f"--{given[0]} acts on DNA only: give --fasta or a model for DNA")
    if args.plot is not None:
        raise UsageError("--plot draws sequences of DNA only: give --fasta or a model for DNA")
    data, name = read_input(args, strip_newline=False)
    setup = _setup(args, model)

    def rows(model: Model, skip: int, report: OnProgress) -> Iterator[Row | Part]:
        if skip:
            return iter(())
        if args.per_position:
            return token_parts(model, data, setup, name, report)
        return iter([score_text(model, data, setup, name, report)])

    columns = TOKEN_COLUMNS if args.per_position else TEXT_COLUMNS
    return _Work(rows, columns, (*INPUT, *SCORING), "tokens scored", lambda: 1.0)


def _records(args: argparse.Namespace, model: Model) -> _Work:
    """Records of DNA."""
    from ..score import BASE_COLUMNS, COLUMNS, base_parts, one_per_letter, score_fasta
    from ..sequences import Meter

    meter = Meter()
    share = (lambda: meter.share) if args.fasta is not None else (lambda: 1.0)
    records = read_records(args, model, meter)
    setup, policy = _setup(args, model), dna_policy(args, model)
    strand: Strand = "fwd" if args.strand is None else args.strand
    if args.per_position and not one_per_letter(model):
        raise UsageError(
            f"--per-position of sequences needs one token per base, and {model.name} has none"
        )

    def rows(model: Model, skip: int, report: OnProgress) -> Iterator[Row | Part]:
        of = base_parts if args.per_position else score_fasta
        return of(model, records, setup, policy, strand, skip=skip, on_progress=report)

    columns = BASE_COLUMNS if args.per_position else COLUMNS
    return _Work(rows, columns, (*INPUT, *DNA_OPTIONS, *SCORING), "bases scored", share)


def _save(args: argparse.Namespace, model: Model, work: _Work) -> int:
    """Writes the table; how many records failed."""
    from ..plots import Entropies

    entropies = None if args.plot is None else Entropies()
    settings = table_settings(args, model, *work.settings)
    with (
        open_table(args, work.columns, settings) as table,
        Progress(work.label, enabled=args.progress) as progress,
    ):
        watch = Watch(progress, work.share, resumed=table.done > 0)
        model.on_progress = watch.inside
        _write(table, work.rows(model, table.done, watch.scored), entropies)
    if entropies is not None:
        entropies.draw(args.plot)
    return table.failed


def _plan(args: argparse.Namespace, model: Model, work: _Work) -> int:
    """Prints the buffers of the largest call of a run; how many records would fail."""
    from ..dry_run import DryRun

    failed = 0
    with DryRun(model) as dry, Progress("reading", enabled=args.progress):
        for row in work.rows(dry, 0, lambda _done, _total: None):
            if row.problem is not None:
                failed += 1
                _name(row.problem, failed)
    print_plan(dry.largest)
    return failed


def _setup(args: argparse.Namespace, model: Model) -> Setup:
    from ..score import Setup, check

    setup = Setup(args.window, args.stride, args.bos, args.style, args.special, args.alphabet)
    with usage_errors(args):
        check(model, setup)
    return setup


def _write(
    table: TableWriter, rows: Iterator[Row | Part], entropies: Entropies | None = None
) -> None:
    """Writes the rows; adds what is to be drawn to `entropies`."""
    from ..score import Part, values

    shown = 0
    for row in rows:
        failed = row.problem is not None
        if isinstance(row, Part):
            table.write(row.columns, last=row.last, failed=failed)
            if entropies is not None:
                entropies.add(row.columns)
            if row.problem is not None:  # there is no status column
                shown += 1
                _name(row.problem, shown)
        else:
            named = {name: [value] for name, value in values(row).items() if name in table.columns}
            table.write(named, failed=failed)


def _name(problem: str, count: int) -> None:
    """Says what is wrong with a record, the `count`-th."""
    if count <= SHOWN_FAILURES:
        log.error("%s", problem)
