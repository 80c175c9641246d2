"""Options, errors and steps that several commands share."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from ..errors import HyenaError, InputError
from ..threads import MOST_THREADS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..model import Model

log = logging.getLogger(__name__)

LARGEST_COUNT = (1 << 31) - 1
LONGEST_SIZE = 30  # characters of a number of bytes
PACKED = ("gz", "bgz", "bz2", "xz", "zst", "zip")  # suffixes of files that are compressed
UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class UsageError(HyenaError):
    """An option is unknown, out of range, or cannot act here."""

    exit_code = 2


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, whose errors are one sentence."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=f"hyena-cpu {command}", description=description, allow_abbrev=False)
        for name in (None, "store"):
            self.register("action", name, _Once)

    def print_help(self, file: Any = None) -> None:  # noqa: ARG002  always standard output
        """Prints the options; argparse itself passes over a text that cannot be written."""
        from .output import Output

        Output(None).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


class _Once(argparse.Action):
    """The usual action, for an option that is given once; argparse takes the last of several."""

    _seen: argparse.Namespace | None = None

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002  as argparse calls it
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        if option is not None and namespace is self._seen:
            raise argparse.ArgumentError(self, "given twice, give it once")
        self._seen = namespace
        setattr(namespace, self.dest, values)


def flag_pair(group: Any, *names: str, help: str, default: bool | None = None) -> None:
    """Adds --x and --no-x; without a default, None says that neither was given."""
    group.add_argument(*names, action=argparse.BooleanOptionalAction, default=default, help=help)


def add_model_options(
    parser: Parser,
    *,
    default: str = "default: tiny-en",
    threads: bool = True,
    dtype: bool = True,
    memory: bool = True,
) -> None:
    """-m, and what a command that computes can act on. default: what -m says of it."""
    group = parser.add_argument_group("model")
    help = f"model folder, bundled name or hub id ORG/NAME ({default})"
    group.add_argument("-m", "--model", help=help)
    group.add_argument("--revision", help="branch, tag or commit of a model of the hub")
    help = "models of the hub: from the cache alone"
    group.add_argument("--offline", action="store_true", help=help)
    help = "where models of the hub are kept (default: HF_HUB_CACHE)"
    group.add_argument("--cache-dir", type=Path, metavar="FOLDER", help=help)
    if threads:
        help = "threads (default: see docs/threads)"
        group.add_argument("-t", "--threads", type=whole(1, MOST_THREADS), metavar="N", help=help)
    if dtype:
        help = "numbers that dense layers multiply (default: float32)"
        group.add_argument("--dtype", choices=("float32", "bfloat16"), help=help)
    if memory:
        help = "bytes a run may take, e.g. 500M or 2GiB"
        group.add_argument("--max-memory", type=size, metavar="SIZE", help=help)


def add_log_options(parser: Parser) -> None:
    group = parser.add_argument_group("messages")
    group.add_argument("-q", "--quiet", action="store_true", help="errors only")
    group.add_argument("-v", "--verbose", action="count", default=0, help="more, -vv: everything")
    group.add_argument("--log-file", metavar="FILE", help="append messages to a file as well")
    flag_pair(group, "--progress", help="progress line (default: on a terminal)")
    flag_pair(group, "--color", help="colour (default: on a terminal, unless NO_COLOR is set)")


def add_prompt_options(parser: Parser, *, fasta: bool = False) -> Any:
    """Where the input comes from; `fasta`: a FASTA file is a choice too."""
    group = parser.add_argument_group("prompt (exactly one)")
    group.add_argument("text", nargs="?", metavar="PROMPT", help="the prompt itself")
    group.add_argument("-p", "--prompt", help="the same as an option")
    group.add_argument("-f", "--file", metavar="FILE", help="a file's bytes; - is standard input")
    if fasta:
        help = "FASTA, plain or gzip; - is standard input"
        group.add_argument("--fasta", metavar="FILE", help=help)
    flag_pair(
        group,
        "--strip-newline",
        help="drop one line end at the end of the file (default: for DNA models only)",
    )
    return group


def add_dna_options(group: Any) -> None:
    group.add_argument(
        "--case", choices=("upper", "keep"), help="DNA letters in lower case (default: upper)"
    )
    group.add_argument(
        "--special", choices=("hf", "cls-sep"), help="DNA models: add the special tokens of others"
    )


def add_output_options(parser: Parser, formats: tuple[str, ...], *, by_suffix: bool = False) -> Any:
    """--format (the first is the default), --json and -o, whose suffix may name a format."""
    group = parser.add_argument_group("output")
    help = f"default: {'by the suffix of -o, else ' if by_suffix else ''}{formats[0]}"
    group.add_argument("--format", choices=formats, help=help)
    group.add_argument("--json", action="store_true", help="the same as --format json")
    group.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there when done")
    return group


def output_format(args: argparse.Namespace, default: str, by_suffix: Collection[str] = ()) -> str:
    """The format asked for, else what the suffix of -o names of `by_suffix`, else the default.

    --json and another --format exclude each other.
    """
    if args.json and args.format not in (None, "json"):
        raise UsageError(f"--json and --format {args.format} exclude each other")
    suffix = args.output.suffix[1:].lower() if by_suffix and args.output is not None else ""
    if suffix in PACKED and not (args.json or args.format):
        raise UsageError(
            f"--output {args.output}: no table is written compressed: give a name without "
            f".{suffix}, or --format"
        )
    named = suffix if suffix in by_suffix else default
    return "json" if args.json else args.format or named


def whole(low: int, high: int = LARGEST_COUNT) -> Callable[[str], int]:
    """argparse type: a whole number in `low`..`high`."""

    def parse(text: str) -> int:
        match = re.fullmatch(r"([+-]?)0*(\d+)", text, re.ASCII)
        if match is None or (match[1] == "-" and match[2] != "0"):
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {low}")
        # Digits are counted first: Python converts no number of thousands of them.
        if len(match[2]) > len(str(high)) or int(match[2]) > high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at most {high}")
        if int(match[2]) < low:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {low}")
        return int(match[2])

    return parse


def size(text: str) -> int:
    """Bytes of `500M`, `2GiB` (powers of 1,024) or `2GB` (powers of 1,000)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", text.strip(), re.ASCII | re.I)
    if match is None or len(match[1]) > LONGEST_SIZE:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 500M, 2GiB or 1500000")
    number, unit, suffix = match[1], match[2].lower(), (match[3] or "").lower()
    power = UNITS[unit]
    scale = 10 ** (3 * power // 10) if suffix == "b" else 1 << power
    return int(float(number) * scale)


@contextmanager
def usage_errors(args: argparse.Namespace) -> Iterator[None]:
    """Inside, an InputError is about an option: it becomes a UsageError that names it as typed."""
    try:
        yield
    except InputError as error:
        name, _, rest = str(error).partition(" ")
        option = f"--{name.replace('_', '-')}" if hasattr(args, name) else name
        raise UsageError(f"{option} {rest}") from None


@contextmanager
def hub_options(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Arguments for loading from the hub; one that cannot act becomes a UsageError."""
    from ..hub import IdleOptionError

    shown = sys.stderr.isatty() if args.progress is None else args.progress
    if args.quiet or not shown:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # both are read when hub.py imports it
    if not args.verbose:
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    try:
        yield {"revision": args.revision, "offline": args.offline, "cache_dir": args.cache_dir}
    except IdleOptionError as error:
        name, _, rest = str(error).partition(" ")
        raise UsageError(f"--{name.replace('_', '-')} {rest}") from None


def default_model(args: argparse.Namespace) -> str:
    """The bundled model for DNA where the input is DNA, else the one for text."""
    dna = getattr(args, "fasta", None) is not None or hasattr(args, "reference")
    return "tiny-dna" if dna else "tiny-en"


def load_model(args: argparse.Namespace, on_progress: Callable[[int, int], None]) -> Model:
    """The model of -m with the compute options; logs what it is."""
    import hyena_cpu

    from .. import kernels

    kernels.bound_freed_memory()
    with hub_options(args) as options:
        model = hyena_cpu.load(
            default_model(args) if args.model is None else args.model,
            threads=getattr(args, "threads", None),
            dtype=getattr(args, "dtype", None),
            decode=getattr(args, "decode", "auto"),
            max_memory=getattr(args, "max_memory", None),
            on_progress=on_progress,
            **options,
        )
    for note in model.notes:
        log.info("%s", note)
    log.info("model %s, %s", model.name, model.numerics)
    return model


def read_prompt(args: argparse.Namespace, model: Model) -> bytes:
    """The prompt's bytes, as they are for text models.

    For a DNA tokenizer a file loses one final line end, unless told otherwise (a text file only if
    told so), and letters are folded to upper case, which is said, unless --case is keep.
    """
    dna = has_dna_tokenizer(model)
    data, _ = read_input(args, strip_newline=dna)
    if args.case is not None and not dna:
        raise UsageError(f"--case acts on DNA only, and {model.name} has no DNA tokenizer")
    if dna and args.case != "keep":
        folded = sum(97 <= byte <= 122 for byte in data)
        if folded:
            log.warning("letters of the prompt folded to upper case: %d (--case upper)", folded)
            data = data.upper()
    return data


def read_input(args: argparse.Namespace, *, strip_newline: bool) -> tuple[bytes, str]:
    """Bytes of the text given as an argument or a file, and what to call it.

    `strip_newline`: whether a file loses one final line end where --strip-newline is not given.
    """
    if args.file is None:
        if args.strip_newline is not None:
            raise UsageError("--strip-newline acts on a prompt file (-f) only")
        return os.fsencode(args.text if args.prompt is None else args.prompt), "prompt"
    data = read_file(args.file)
    if strip_newline if args.strip_newline is None else args.strip_newline:
        data = re.sub(rb"(\r\n|\r|\n)\Z", b"", data)
    return data, args.file


def encode_prompt(args: argparse.Namespace, model: Model, data: bytes) -> NDArray[np.int32]:
    """Token ids of the prompt, with the special tokens of --special."""
    ids = model.tokenizer.encode(data)
    if has_dna_tokenizer(model):
        from ..tokenizers.dna import UNK

        unknown = int((ids == UNK).sum())
        if unknown:
            log.warning("letters of the prompt that the model does not know, [UNK]: %d", unknown)
    if args.special is not None:
        if not has_dna_tokenizer(model):
            raise UsageError(f"--special acts on DNA only, and {model.name} has no DNA tokenizer")
        from ..tokenizers.dna import add_special

        ids = add_special(ids, args.special)
    log.info("%d bytes are %d tokens", len(data), len(ids))
    return ids


def warn_of_lookahead(model: Model) -> None:
    """A warning where log-probabilities are not those of the past alone."""
    if not model.causal:
        log.warning(
            "%s has a layer that reads the whole sequence at once: what it says of a token may "
            "come from later ones",
            model.name,
        )


def has_dna_tokenizer(model: Model) -> bool:
    """Whether text becomes one token per base, so that the options for DNA can act."""
    return model.config.tokenizer is not None and model.tokenizer.kind == "dna"


def exactly_one(args: argparse.Namespace, *names: str) -> None:
    """UsageError unless exactly one of these sources of input was given."""
    given = [name for name in names if getattr(args, name) is not None]
    if len(given) != 1:
        choices = "text, -p, -f" + (" or --fasta" if "fasta" in names else "")
        found = f"{len(given)} were given" if given else "none was given"
        raise UsageError(f"give exactly one input ({choices}): {found}")


def read_file(path: str) -> bytes:
    """All bytes of a file, or of standard input for "-"."""
    from ..sequences import read_bytes

    return read_bytes(source(path))


def source(path: str) -> Path | BinaryIO:
    """The file, or standard input for "-"."""
    if path != "-":
        return Path(path)
    if sys.stdin is None:
        raise InputError("standard input is closed: give a file or connect one")
    return sys.stdin.buffer


def version() -> str:
    """The version of this package."""
    import hyena_cpu

    return hyena_cpu.__version__
