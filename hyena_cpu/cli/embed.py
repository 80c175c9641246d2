"""hyena-cpu embed: vectors of texts or sequences, for other programs to learn from."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
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
)
from .plans import add_dry_run_option, check_dry_run_of_table, print_plan
from .records import add_sequence_options, dna_policy, read_records
from .tables import table_settings

if TYPE_CHECKING:
    from ..embed import Item, Pool
    from ..model import Model
    from ..sequences import Meter

DESCRIPTION = (
    "Writes hidden states of a layer: one vector per record, or one per position. A record that "
    "cannot be embedded gets a row of NaN (--pool none: no rows), the others are written, and the "
    "exit code is 4."
)
FORMATS = ("tsv", "csv", "npy", "npz", "parquet")
DNA_OPTIONS = ("case", "special", "ambiguous", "rna", "strict", "strand")
INPUT = ("text", "prompt", "file", "fasta", "strip_newline")

SHOWN_FAILURES = 10  # records that get a message each; all have their status


def parser() -> Parser:
    """Options of the command."""
    p = Parser("embed", DESCRIPTION)
    add_prompt_options(p, fasta=True)
    add_sequence_options(p, strand=False)
    how = p.add_argument_group("vectors")
    help = "0: embedding, 1..n: after that block, -1: after the last norm (default)"
    how.add_argument("--layer", type=int, default=-1, metavar="N", help=help)
    help = "mean over all tokens, those of --special too (default); last token; none: every token"
    how.add_argument("--pool", choices=("mean", "last", "none"), default="mean", help=help)
    help = "rc: the reverse complement, read in its own direction (default: fwd)"
    how.add_argument("--strand", choices=("fwd", "rc"), help=help)
    add_dry_run_option(how)
    add_model_options(p, default="default: tiny-dna with --fasta, else tiny-en")
    out = p.add_argument_group("output")
    help = "default: by the suffix of -o, else tsv to standard output"
    out.add_argument("--format", choices=FORMATS, help=help)
    help = "write there when done; until then, and if interrupted, FILE.part"
    out.add_argument("-o", "--output", type=Path, metavar="FILE", help=help)
    help = "continue FILE.part of the same command, if there is one"
    flag_pair(out, "--resume", default=False, help=help)
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command. 4 if a record could not be embedded."""
    from ..embed import check
    from ..sequences import Meter

    exactly_one(args, "text", "prompt", "file", "fasta")
    form = _form(args)
    check_dry_run_of_table(args)
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    model.on_progress = None
    with usage_errors(args):
        check(model, args.layer, _pool(args))
    meter = Meter()
    items = _named(_items(args, model, meter, single=args.pool == "none" and form == "npy"))
    failed = _plan(args, model, items) if args.dry_run else _save(args, model, items, form, meter)
    if failed:
        log.error("%d of the records could not be embedded", failed)
    return 4 if failed else 0


def _form(args: argparse.Namespace) -> str:
    """The format asked for, else the suffix of the file, else tsv."""
    suffix = "tsv" if args.output is None else args.output.suffix[1:].lower()
    form: str = args.format or suffix
    if form not in FORMATS:
        raise UsageError(
            f"--output {args.output}: the suffix names none of {', '.join(FORMATS)}; give --format"
        )
    if args.pool == "none" and form in ("tsv", "csv"):
        raise UsageError(
            "--pool none writes a vector per position: give -o FILE.npy, FILE.npz or FILE.parquet"
        )
    return form


def _pool(args: argparse.Namespace) -> Pool | None:
    return None if args.pool == "none" else args.pool


def _items(args: argparse.Namespace, model: Model, meter: Meter, *, single: bool) -> Iterator[Item]:
    """The records. Where there is one only, what is wrong with it is the error of the command."""
    if args.fasta is None and not has_dna_tokenizer(model):
        items = _text_items(args, model)
    else:
        from ..embed import prepared

        records, policy = read_records(args, model, meter), dna_policy(args, model)
        items = prepared(model, records, policy, args.strand or "fwd", args.special, args.layer)
    if args.fasta is not None and not single:
        return items
    first, *more = itertools.islice(items, 2)
    if more:
        raise UsageError(
            f"--pool none: .npy holds one record and {args.fasta} has more: give -o FILE.npz or "
            "FILE.parquet"
        )
    if first.error is not None:
        raise first.error
    return iter([first])


def _text_items(args: argparse.Namespace, model: Model) -> Iterator[Item]:
    from ..embed import Item, checked

    given = [name for name in DNA_OPTIONS if getattr(args, name) is not None]
    if given:
        raise UsageError(f"--{given[0]} acts on DNA only: give --fasta or a model for DNA")
    data, name = read_input(args, strip_newline=False)
    ids = checked(model, model.tokenizer.encode(data), args.layer)
    yield Item(0, name, len(data), ids)


def _named(items: Iterator[Item]) -> Iterator[Item]:
    """The items; the first that cannot be embedded are named on standard error."""
    shown = 0
    for item in items:
        if item.error is not None and shown < SHOWN_FAILURES:
            log.warning("record %d (%r): %s", item.index + 1, item.id, item.error)
            shown += 1
        yield item


def _save(
    args: argparse.Namespace, model: Model, items: Iterator[Item], form: str, meter: Meter
) -> int:
    """Writes the vectors; how many records failed."""
    from ..arrays import open_arrays
    from ..embed import save

    settings = table_settings(args, model, *INPUT, *DNA_OPTIONS, "layer", "pool")
    options = {"settings": settings, "resume": args.resume}
    pool, width = _pool(args), model.config.d_model
    try:
        arrays = open_arrays(args.output, form, width, pooled=pool is not None, **options)
    except InputError as error:
        raise UsageError(str(error)) from None
    share = (lambda: meter.share) if args.fasta is not None else (lambda: 1.0)
    with arrays, Progress("tokens embedded", enabled=args.progress) as progress:
        watch = Watch(progress, share, resumed=arrays.done > 0)
        model.on_progress = watch.inside
        save(model, items, arrays, args.layer, pool, watch.scored)
    return arrays.failed


def _plan(args: argparse.Namespace, model: Model, items: Iterator[Item]) -> int:
    """Prints the buffers of the largest call of a run; how many records would fail."""
    from ..dry_run import DryRun
    from ..embed import embedded

    failed = 0
    with DryRun(model) as dry, Progress("reading", enabled=args.progress):
        for item, blocks in embedded(dry, items, args.layer, pool=None):
            failed += item.error is not None
            next(blocks, None)  # one is enough: the call that computes them has been planned then
    print_plan(dry.largest)
    return failed
