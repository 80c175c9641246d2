"""hyena-cpu mqar: rows of multi-query associative recall, and the accuracy of models on them."""

from __future__ import annotations

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from .common import (
    Parser,
    UsageError,
    add_log_options,
    add_model_options,
    flag_pair,
    load_model,
    output_format,
    usage_errors,
    warn_of_lookahead,
    whole,
)
from .output import Output, to_json
from .pictures import add_plot_option, plot_path
from .tables import add_table_options, open_table, table_form, table_settings

if TYPE_CHECKING:
    from ..model import Model
    from ..mqar import Setting

DESCRIPTION = (
    "Multi-query associative recall: a row names pairs of key and value, then asks for the value "
    "of each key. `mqar data` writes rows, `mqar eval` how often models are right."
)
DATA = "Writes rows: inputs, and labels that are -100 where nothing is asked."
EVAL = "Prints a model's accuracy on held-out rows, for every length and number of pairs."
DATA_FORMS = ("json", "npz")
ROW_OPTIONS = (
    "vocab_size",
    "length",
    "pairs",
    "num_examples",
    "seed",
    "power_a",
    "random_non_queries",
)
ROWS = 1000
MAX_SEED = (1 << 32) - 1
VOCABULARY = 8192


def parser() -> Parser:
    """Options of the command."""
    p = Parser("mqar", DESCRIPTION)
    parts = p.add_subparsers(dest="part", required=True, metavar="data|eval", parser_class=_Part)
    data = parts.add_parser("data", help="write rows", description=DATA)
    _add_setting(data, whole(2), whole(1))
    help = f"ids; half of them are keys (default: {VOCABULARY})"
    data.add_argument("--vocab-size", type=whole(2), default=VOCABULARY, metavar="V", help=help)
    out = data.add_argument_group("output")
    help = "default: by the suffix of -o, else json"
    out.add_argument("--format", choices=DATA_FORMS, help=help)
    out.add_argument("--json", action="store_true", help="the same as --format json")
    out.add_argument("-o", "--output", type=Path, metavar="FILE", help="write there when done")
    add_log_options(data)
    evaluation = parts.add_parser("eval", help="accuracy of models", description=EVAL)
    _add_setting(evaluation, _several(whole(2)), _several(whole(1)))
    help = "ids of the rows (default: the model's)"
    evaluation.add_argument("--vocab-size", type=whole(2), metavar="V", help=help)
    add_model_options(evaluation, default="required")
    help = "a further model, for the same table and picture; may be repeated"
    evaluation.add_argument("--also", action="append", default=[], metavar="MODEL", help=help)
    add_table_options(evaluation)
    add_plot_option(evaluation, "accuracy by width, one panel per length")
    add_log_options(evaluation)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    return _data(args) if args.part == "data" else _eval(args)


class _Part(Parser):
    """The parser of `mqar data` and of `mqar eval`, as argparse makes it."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog.removeprefix("hyena-cpu "), description)


def _add_setting(p: Parser, length: Callable[[str], Any], pairs: Callable[[str], Any]) -> None:
    """Options of the rows. Several lengths go with as many numbers of pairs, or with one."""
    group = p.add_argument_group("rows")
    many = ", or several: 64,128" if p.prog.endswith("eval") else ""
    help = f"tokens in a row, even (default: 64){many}"
    group.add_argument("--length", type=length, metavar="N", default=length("64"), help=help)
    help = f"pairs in a row, at most N / 4 (default: 4){many}"
    group.add_argument("--pairs", type=pairs, metavar="D", default=pairs("4"), help=help)
    help = f"rows (default: {ROWS})"
    group.add_argument("--num-examples", type=whole(1), metavar="N", default=ROWS, help=help)
    help = "of NumPy's legacy generator: the authors' rows for this seed (default: 0)"
    group.add_argument("-s", "--seed", type=whole(0, MAX_SEED), metavar="N", default=0, help=help)
    help = "the distances of the questions follow g^(A - 1); 1 is uniform (default: 0.01)"
    group.add_argument("--power-a", type=float, metavar="A", default=0.01, help=help)
    help = "random tokens in the place of token 0, which fills the rest of a row"
    flag_pair(group, "--random-non-queries", default=False, help=help)


def _several(one: Callable[[str], int]) -> Callable[[str], list[int]]:
    """argparse type: whole numbers with commas between them."""
    return lambda text: [one(part) for part in text.split(",")]


def _data(args: argparse.Namespace) -> int:
    from ..mqar import generate

    form = _data_form(args)
    with usage_errors(args):
        setting = _setting(args, args.vocab_size, args.length, args.pairs)
        inputs, labels = generate(setting, args.num_examples, args.seed)
    facts = {**vars(setting), "num_examples": args.num_examples, "seed": args.seed}
    with Output(args.output) as out:
        if form == "json":
            out.write(to_json({**facts, "inputs": inputs.tolist(), "labels": labels.tolist()}))
        else:
            out.write(_npz({**facts, "inputs": inputs, "labels": labels}))
    return 0


def _data_form(args: argparse.Namespace) -> str:
    suffix = "json" if args.output is None else args.output.suffix[1:].lower()
    form = output_format(args, suffix)
    if form not in DATA_FORMS:
        names = ", ".join(DATA_FORMS)
        raise UsageError(f"--output {args.output}: the suffix names none of {names}; give --format")
    if form == "npz" and args.output is None:
        raise UsageError("--format npz cannot be written to standard output: give -o FILE")
    return form


def _npz(arrays: dict[str, Any]) -> bytes:
    import numpy as np

    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def _setting(args: argparse.Namespace, vocab_size: int, length: int, pairs: int) -> Setting:
    from ..mqar import Setting

    return Setting(vocab_size, length, pairs, args.power_a, args.random_non_queries)


def _eval(args: argparse.Namespace) -> int:
    from ..mqar import COLUMNS, evaluate

    if args.model is None:
        raise UsageError("mqar eval needs a model: give -m MODEL")
    table_form(args)
    picture = plot_path(args)
    models = [_load(args, name) for name in (args.model, *args.also)]
    jobs = [(model, setting) for model in models for setting in _settings(args, model)]
    settings = table_settings(args, models[0], *ROW_OPTIONS)
    settings["also"] = [model.fingerprint for model in models[1:]]
    slices = []
    with (
        open_table(args, COLUMNS, settings) as table,
        Progress("rows", enabled=args.progress) as progress,
    ):
        for model, setting in jobs[table.done :]:
            with usage_errors(args):
                found = evaluate(model, setting, args.num_examples, args.seed, progress.update)
            slices.append(found)
            table.write(found.columns())
    if picture is not None:
        from ..plots import recall

        recall(picture, [(s.mixers, s.width, s.length, s.pairs, s.accuracy) for s in slices])
    return 0


def _load(args: argparse.Namespace, name: str) -> Model:
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(argparse.Namespace(**{**vars(args), "model": name}), progress.update)
    model.on_progress = None
    warn_of_lookahead(model)
    return model


def _settings(args: argparse.Namespace, model: Model) -> list[Setting]:
    """The kinds of rows that a model is asked: lengths with numbers of pairs, one by one."""
    lengths, pairs = args.length, args.pairs
    count = max(len(lengths), len(pairs))
    if {len(lengths), len(pairs)} - {1, count}:
        raise UsageError(
            f"--length has {len(lengths)} numbers and --pairs {len(pairs)}: give as many, or one"
        )
    lengths, pairs = (given * count if len(given) == 1 else given for given in (lengths, pairs))
    vocab_size = args.vocab_size or model.vocab_size
    with usage_errors(args):
        return [_setting(args, vocab_size, n, d) for n, d in zip(lengths, pairs, strict=True)]
