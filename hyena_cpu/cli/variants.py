"""hyena-cpu variants: a table of log-likelihood differences, one row per alternative allele."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..progress import Progress
from ..tables import FORMS
from .common import (
    Parser,
    UsageError,
    add_log_options,
    add_model_options,
    flag_pair,
    load_model,
    log,
    source,
    usage_errors,
    warn_of_lookahead,
    whole,
)
from .logs import notice
from .pictures import add_plot_option, plot_path
from .plans import add_dry_run_option, check_dry_run_of_table, print_plan
from .records import add_sequence_options, dna_policy
from .tables import add_table_options, open_table, table_form, table_settings

if TYPE_CHECKING:
    from ..model import Model
    from ..tables import TableWriter
    from ..variant_files import Variant
    from ..variants import Row, Setup

Point = tuple[str, int, float]  # record, position, difference
Rows = Callable[["Model", int], Iterator["Row"]]  # of a model, without so many at the beginning
INPUT = ("reference", "variants", "columns", "offset")
HOW = ("window", "strand", "share", "case", "ambiguous", "rna")

SHOWN_FAILURES = 10  # variants that get a message each, where no table has their status


def parser() -> Parser:
    """Options of the command."""
    p = Parser(
        "variants",
        "Prints what the model says of each allele: its log-likelihood minus the reference's, "
        "over windows of equal length.",
    )
    group = p.add_argument_group("input")
    help = "FASTA, plain or gzip; - is standard input"
    group.add_argument("--reference", required=True, metavar="FASTA", help=help)
    help = "VCF, or a tab- or comma-separated table with columns pos, ref, alt, and chrom, id"
    group.add_argument("--variants", required=True, metavar="FILE", help=f"{help}; - as above")
    help = "names of a table's columns where they differ, such as pos=pos_hg38,id=name"
    group.add_argument("--columns", type=columns, default={}, metavar="NAME=COLUMN,..", help=help)
    help = "position of the reference's first base, counted as the variants are (default: 1)"
    group.add_argument("--offset", type=whole(0), default=1, metavar="N", help=help)
    add_sequence_options(p, special=False, strict=False)
    how = p.add_argument_group("scoring")
    help = "bases around each variant (default: 8192, or the model's limit)"
    how.add_argument("--window", type=whole(2), metavar="N", help=help)
    help = "take in what alleles have in common once (default: yes)"
    flag_pair(how, "--share", default=True, help=help)
    add_dry_run_option(how)
    add_model_options(p, default="default: tiny-dna")
    add_table_options(p, tuple(form for form in FORMS if form != "npz"))
    add_plot_option(p, "the differences along the reference")
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command. 4 if a variant could not be scored; its row says why."""
    from ..genome import Genome
    from ..sequences import read_fasta
    from ..variant_files import is_vcf, read_variants
    from ..variants import score_variants

    if table_form(args) == "npz":
        raise UsageError(
            f"--output {args.output}: npz has no way to say that a row has no window: choose "
            "another format"
        )
    if args.reference == args.variants == "-":
        raise UsageError("--reference and --variants cannot both be standard input")
    check_dry_run_of_table(args)
    plot_path(args)
    with ExitStack() as stack:
        path = _file(args.variants, stack)
        name = "standard input" if args.variants == "-" else args.variants
        if args.columns and is_vcf(path, name=name):
            raise UsageError(f"--columns acts on tables, and {name} is VCF")
        total, wanted = _survey(read_variants(path, args.columns, name=name))
        with Progress("loading", enabled=args.progress) as progress:
            model = load_model(args, progress.update)
        model.on_progress = None
        warn_of_lookahead(model)
        setup = _setup(args, model)
        with Progress("reading the reference", enabled=args.progress):
            genome = stack.enter_context(Genome(read_fasta(source(args.reference)), wanted))
        if genome.n_lower and setup.policy.case == "upper":
            count = genome.n_lower
            notice("letters of the reference folded to upper case: %d (--case upper)", count)

        def rows(model: Model, skip: int) -> Iterator[Row]:
            left = islice(read_variants(path, args.columns, name=name), skip, None)
            return score_variants(model, genome, left, setup)

        failed = (_plan if args.dry_run else _save)(args, model, rows, total)
    return 4 if failed else 0


def columns(text: str) -> dict[str, str]:
    """argparse type: `pos=start,id=name` by name."""
    from ..variant_files import COLUMNS

    named = {}
    for part in text.split(","):
        name, equals, column = part.partition("=")
        if not (name and equals and column):
            raise argparse.ArgumentTypeError(f"{part!r} must be NAME=COLUMN, such as pos=start")
        if name not in COLUMNS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(COLUMNS)}")
        if name in named:
            raise argparse.ArgumentTypeError(f"{name!r} is given twice")
        named[name] = column
    return named


def _file(name: str, stack: ExitStack) -> Path:
    """The path of the variants, which are read several times: a copy, if that can be done once."""
    stream = source(name)
    if isinstance(stream, Path) and not _is_pipe(stream):
        return stream
    try:
        if isinstance(stream, Path):
            stream = stack.enter_context(stream.open("rb"))
        copy = stack.enter_context(tempfile.NamedTemporaryFile())  # noqa: SIM115  see the stack
        shutil.copyfileobj(stream, copy)
        copy.flush()
    except OSError as error:
        folder = tempfile.gettempdir()
        raise InputError(f"{name}: cannot be copied to {folder}: {error.strerror}") from None
    return Path(copy.name)


def _is_pipe(path: Path) -> bool:
    """Whether it is there, and neither a regular file nor a folder: a pipe or a device."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _survey(variants: Iterator[Variant]) -> tuple[int, set[str] | None]:
    """How many there are, and the records they name; None if they name none."""
    total, names = 0, set()
    for variant in variants:
        total += 1
        names.add(variant.chrom)
    known = {name for name in names if name is not None}
    return total, known if len(known) == len(names) else None


def _setup(args: argparse.Namespace, model: Model) -> Setup:
    from ..variants import Setup, check

    policy = dna_policy(args, model)
    setup = Setup(args.window, args.strand or "fwd", args.share, args.offset, policy)
    with usage_errors(args):
        size = check(model, setup)
    log.info("windows of %d bases", size)
    return setup


def _save(args: argparse.Namespace, model: Model, rows: Rows, total: int) -> int:
    """Writes the table; how many of the `total` variants failed."""
    from ..plots import deltas
    from ..variants import COLUMNS

    points: list[Point] | None = None if args.plot is None else []
    settings = table_settings(args, model, *INPUT, *HOW)
    with (
        open_table(args, COLUMNS, settings) as table,
        Progress("variants scored", enabled=args.progress) as progress,
    ):
        _write(table, rows(model, table.done), progress, total, points)
    if points is not None:
        deltas(args.plot, points)
    if table.failed:
        log.error("%d of the variants could not be scored: their status says why", table.failed)
    return table.failed


def _plan(args: argparse.Namespace, model: Model, rows: Rows, total: int) -> int:
    """Prints the buffers of the largest call of a run; how many variants would fail."""
    from ..dry_run import DryRun

    failed = 0
    with (
        DryRun(model) as dry,
        Progress("variants planned", enabled=args.progress) as progress,
    ):
        for done, row in enumerate(rows(dry, 0), 1):
            failed += row.failed
            if row.failed and failed <= SHOWN_FAILURES:
                why = row.placed.status.removeprefix("error: ")
                log.error("variant %d: %s", row.placed.variant.index + 1, why)
            progress.update(done, total)
    print_plan(dry.largest)
    if failed:
        log.error("%d of the variants could not be scored", failed)
    return failed


def _write(
    table: TableWriter,
    rows: Iterator[Row],
    progress: Progress,
    total: int,
    points: list[Point] | None,
) -> None:
    """Writes the rows after those that are there already; adds what is to be drawn to `points`."""
    from ..variants import values

    skipped = 0
    begin = table.done
    progress.update(0, total - begin)
    for done, row in enumerate(rows, 1):
        table.write({name: [value] for name, value in values(row).items()}, failed=row.failed)
        skipped += row.skipped
        pos, delta = row.placed.variant.pos, row.delta
        if points is not None and pos is not None and delta is not None and delta.n > 0:
            points.append((row.placed.chrom, pos, delta.difference))
        progress.update(done, total - begin)
    if skipped:
        log.warning("%d of the alleles are no sequences of bases and were skipped", skipped)
