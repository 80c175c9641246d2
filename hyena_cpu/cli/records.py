"""Options and input of the commands that read sequences of DNA."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import InputError
from .common import Parser, UsageError, flag_pair, has_dna_tokenizer, read_input, source

if TYPE_CHECKING:
    from ..model import Model
    from ..sequences import DnaPolicy, Meter, Record


def add_sequence_options(
    parser: Parser, *, special: bool = True, strand: bool = True, strict: bool = True
) -> None:
    """What becomes of the letters and records of DNA; see `dna_policy` and `read_records`."""
    group = parser.add_argument_group("DNA")
    help = "lower case: read as upper case (default), or keep, which models of DNA do not know"
    group.add_argument("--case", choices=("upper", "keep"), help=help)
    help = "IUPAC codes: read as N, keep, or refuse (default: n for DNA tokenizers, else keep)"
    group.add_argument("--ambiguous", choices=("n", "keep", "error"), help=help)
    help = "U: read as T (default), refuse, or keep"
    group.add_argument("--rna", choices=("convert", "error", "keep"), help=help)
    if special:
        help = "add the tokens of other programs: [SEP] at the end, cls-sep: [CLS] in front too"
        group.add_argument("--special", choices=("hf", "cls-sep"), help=help)
    if strand:
        help = "as given (default), the reverse complement, or the mean of both"
        group.add_argument("--strand", choices=("fwd", "rc", "both"), help=help)
    if strict:
        flag_pair(group, "--strict", help="empty records and repeated ids are errors")


def dna_policy(args: argparse.Namespace, model: Model) -> DnaPolicy:
    """What becomes of letters, by add_sequence_options and the model."""
    from ..sequences import DnaPolicy

    case, ambiguous, rna = args.case, args.ambiguous, args.rna
    if ambiguous is None:
        ambiguous = "n" if has_dna_tokenizer(model) else "keep"
    return DnaPolicy(case or "upper", ambiguous, rna or "convert")


def read_records(
    args: argparse.Namespace, model: Model, meter: Meter | None = None
) -> Iterator[Record]:
    """Records of --fasta, one at a time, or the one of a text or file for a model of DNA.

    `meter` is told how much of the FASTA file has been read.

    Raises:
        UsageError: an option that cannot act on this input.
        InputError: the file is no FASTA, or cannot be read.
    """
    from ..sequences import Record, read_fasta

    if getattr(args, "special", None) is not None and not has_dna_tokenizer(model):
        raise UsageError(f"--special acts on DNA only, and {model.name} has no DNA tokenizer")
    if args.strip_newline is not None:
        raise UsageError(
            "--strip-newline has no effect on sequences: white space is no part of one"
        )
    if args.fasta is not None:
        return read_fasta(source(args.fasta), strict=bool(args.strict), meter=meter)
    if args.strict is not None:
        raise UsageError("--strict acts on FASTA only")
    given = args.text or args.prompt
    if given is not None and os.path.isfile(given):
        raise UsageError(f"{given} is a file: give it as --fasta {given}, or -f {given}")
    data, name = read_input(args, strip_newline=True)
    if data.startswith(b">"):
        raise InputError(f"{name} is FASTA, not a plain sequence: give it as --fasta FILE")
    return iter([Record(0, name, "".join(data.decode("latin-1").split()))])
