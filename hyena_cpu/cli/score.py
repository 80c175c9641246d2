"""hyena-cpu score: a table of log-probabilities, one row per record."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from .common import (
    Parser,
    UsageError,
    add_dna_options,
    add_log_options,
    add_model_options,
    add_output_options,
    add_prompt_options,
    exactly_one,
    flag_pair,
    has_dna_tokenizer,
    load_model,
    log,
    output_format,
    read_input,
    source,
    usage_errors,
    whole,
)
from .output import Output, to_json

if TYPE_CHECKING:
    from ..model import Model
    from ..score import Row, Setup

FORMATS = ("tsv", "json", "jsonl")
DNA_OPTIONS = ("case", "special", "ambiguous", "rna", "strict", "strand")


def parser() -> Parser:
    """Options of the command."""
    p = Parser("score", "Prints how likely the model finds a text, or each record of a FASTA file.")
    group = add_prompt_options(p)
    group.add_argument("--fasta", metavar="FILE", help="FASTA, plain or gzip; - is standard input")
    dna = p.add_argument_group("DNA")
    add_dna_options(dna)
    dna.add_argument(
        "--ambiguous", choices=("n", "keep", "error"), help="IUPAC codes (default: by model)"
    )
    dna.add_argument("--rna", choices=("convert", "error", "keep"), help="U (default: convert)")
    dna.add_argument("--strand", choices=("fwd", "rc", "both"), help="default: fwd")
    flag_pair(dna, "--strict", help="empty records and repeated ids are errors")
    how = p.add_argument_group("scoring")
    how.add_argument("--window", type=whole(2), metavar="N", help="tokens seen at once")
    how.add_argument("--stride", type=whole(1), metavar="N", help="tokens scored per window")
    flag_pair(how, "--bos", default=False, help="begin token before every window")
    how.add_argument("--style", metavar="NAME", help="style token before every window")
    add_model_options(p)
    add_output_options(p, FORMATS)
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command. 4 if a record could not be scored; its row says why."""
    exactly_one(args, "text", "prompt", "file", "fasta")
    form = output_format(args, "tsv")
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    model.on_progress = None
    text = args.fasta is None and not has_dna_tokenizer(model)
    rows = _text_rows(args, model) if text else _dna_rows(args, model)
    with (
        Output(args.output) as out,
        Progress("records scored", enabled=args.progress) as progress,
    ):
        failed = _write(out, rows, form, progress, text=text)
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
    from ..sequences import DnaPolicy, Record, read_fasta

    dna_model = has_dna_tokenizer(model)
    if args.special is not None and not dna_model:
        raise UsageError(f"--special acts on DNA only, and {model.name} has no DNA tokenizer")
    if args.strip_newline is not None:
        raise UsageError(
            "--strip-newline has no effect on sequences: white space is no part of one"
        )
    if args.fasta is not None:
        records = read_fasta(source(args.fasta), strict=bool(args.strict))
    elif args.strict is not None:
        raise UsageError("--strict acts on FASTA only")
    else:
        data, name = read_input(args, strip_newline=True)
        records = iter([Record(0, name, "".join(data.decode("latin-1").split()))])
    policy = DnaPolicy(
        args.case or "upper",
        args.ambiguous or ("n" if dna_model else "keep"),
        args.rna or "convert",
    )
    return score_fasta(model, records, _setup(args, model), policy, args.strand or "fwd")


def _setup(args: argparse.Namespace, model: Model) -> Setup:
    from ..score import Setup, check

    setup = Setup(args.window, args.stride, args.bos, args.style, args.special)
    with usage_errors(args):
        check(model, setup)
    return setup


def _write(out: Output, rows: Iterator[Row], form: str, progress: Progress, *, text: bool) -> int:
    """Prints the table and returns how many rows failed. Texts get a last column bits_per_byte."""
    from ..score import COLUMNS, values

    columns = (*COLUMNS, "bits_per_byte") if text else COLUMNS
    failed = 0
    objects: list[dict[str, Any]] = []
    for done, row in enumerate(rows, 1):
        if done == 1 and form == "tsv":
            out.write("\t".join(columns) + "\n")
        failed += row.status != "ok"
        named = {name: values(row)[name] for name in columns}
        if form == "tsv":
            out.write("\t".join(_cell(value) for value in named.values()) + "\n")
        elif form == "jsonl":
            out.write(to_json(named))
        else:
            objects.append(named)
        progress.update(done, 0)
    if form == "json":
        out.write(to_json(objects))
    return failed


def _cell(value: Any) -> str:
    """A table cell: NA for nothing, ten digits of a float, never a tab or line end in a text."""
    if value is None:
        return "NA"
    return f"{value:.10g}" if isinstance(value, float) else " ".join(str(value).split())
