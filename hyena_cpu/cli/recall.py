"""hyena-cpu recall: how well models recall what a text has said before."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from .common import (
    Parser,
    UsageError,
    add_log_options,
    add_model_options,
    add_output_options,
    flag_pair,
    has_dna_tokenizer,
    load_model,
    output_format,
    read_file,
    usage_errors,
    version,
    warn_of_lookahead,
    whole,
)
from .logs import notice
from .output import Output, to_json, to_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..model import Model
    from ..recall import Counts, Line, Report, Tally
    from ..score import Setup

DESCRIPTION = (
    "Splits the tokens of a text into hits, whose bigram occurred earlier and is rare in the "
    "training text, and the others, and prints how likely a model finds either."
)
COLUMNS = {
    "model": str,
    "slice": str,
    "n_scored": int,
    "share": float,
    "logprob_mean": float,
    "perplexity": float,
    "gap_share": float,
}
FORMATS = ("tsv", "csv", "json")
SCORING = (
    "against",
    "counts",
    "threshold",
    "window",
    "stride",
    "style",
    "threads",
    "dtype",
    "max_memory",
)


def parser() -> Parser:
    """Options of the command."""
    p = Parser("recall", DESCRIPTION)
    help = "the text, - is standard input; with --write-counts the training texts"
    p.add_argument("files", nargs="+", metavar="FILE", help=help)
    how = p.add_argument_group("recall")
    help = "a second model of the same tokens: how much of its lead is made on the hits"
    how.add_argument("--against", metavar="MODEL", help=help)
    help = "bigrams of the training text, by --write-counts (default: none counts as frequent)"
    how.add_argument("--counts", type=Path, metavar="FILE", help=help)
    help = "bigrams seen so often in training are no hits, with --counts (default: 1250)"
    how.add_argument("--threshold", type=whole(1), metavar="N", help=help)
    help = "count the bigrams of the texts for --counts, and score nothing"
    how.add_argument("--write-counts", type=Path, metavar="FILE", help=help)
    scoring = p.add_argument_group("scoring")
    help = "tokens seen at once, in which hits lie (default: the models' limit, or all)"
    scoring.add_argument("--window", type=whole(2), metavar="N", help=help)
    help = "tokens scored per window (default: all it can)"
    scoring.add_argument("--stride", type=whole(1), metavar="N", help=help)
    flag_pair(scoring, "--bos", default=False, help="begin token before every window")
    scoring.add_argument("--style", metavar="NAME", help="style token before every window")
    add_model_options(p)
    add_output_options(p, FORMATS, by_suffix=True)
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    from ..recall import THRESHOLD, report, tally

    if args.write_counts is not None:
        return _count(args)
    if len(args.files) > 1:
        raise UsageError(f"recall scores one text, {len(args.files)} were given")
    if args.threshold is not None and args.counts is None:
        raise UsageError("--threshold acts on counts of the training text: give --counts")
    form = output_format(args, FORMATS[0], by_suffix=FORMATS)
    names = [args.model] if args.against is None else [args.model, args.against]
    models = [_load(args, name) for name in names]
    ids = _tokens(models, args.files[0])
    setup = _setup(args, models)
    counts = _counts(args, models[0])
    threshold = THRESHOLD if args.threshold is None else args.threshold
    with Progress("tokens scored", enabled=args.progress) as progress:
        found = tally(models, ids, setup, counts, threshold, progress.update)
    result = report(found, [model.name for model in models])
    with Output(args.output) as out:
        if form == "json":
            facts = _facts(args, models, len(ids), counts, threshold)
            out.write(to_json({**facts, **_json(result, found)}, indent=1))
        else:
            out.write(to_table(form, COLUMNS, map(_values, result.lines)))
    if form != "json" and result.slope is not None:
        notice("distances of the hits fall off with a power of %.3f", result.slope)
    return 0


def _count(args: argparse.Namespace) -> int:
    """Writes the counts of training texts."""
    from ..recall import count

    given = [name for name in (*SCORING, "output", "format") if getattr(args, name) is not None]
    given += [name for name in ("bos", "json") if getattr(args, name)]
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} has no effect with --write-counts, which scores nothing")
    model = _load(args, args.model)
    with Progress("texts", enabled=args.progress):
        counts = count((_tokens([model], name) for name in args.files), model.vocab_size)
    packed = io.BytesIO()
    counts.save(packed)
    with Output(args.write_counts) as out:
        out.write(packed.getvalue())
    return 0


def _load(args: argparse.Namespace, name: str | None) -> Model:
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(argparse.Namespace(**{**vars(args), "model": name}), progress.update)
    model.on_progress = None
    warn_of_lookahead(model)
    if has_dna_tokenizer(model):
        raise UsageError(f"recall is for models of text, and {model.name} reads DNA")
    return model


def _tokens(models: list[Model], name: str) -> NDArray[np.int32]:
    """Ids of a text; UsageError unless all models read it alike."""
    data = read_file(name)
    ids, *others = (model.tokenizer.encode(data) for model in models)
    for model, other in zip(models[1:], others, strict=True):
        if model.vocab_size != models[0].vocab_size or other.tolist() != ids.tolist():
            raise UsageError(
                f"{models[0].name} and {model.name} have different tokens for {name}, so they "
                "cannot be compared token by token"
            )
    return ids


def _setup(args: argparse.Namespace, models: list[Model]) -> Setup:
    from ..score import Setup, check

    limits = [model.max_length for model in models if model.max_length is not None]
    window = args.window or min(limits, default=None)
    setup = Setup(window, args.stride, args.bos, args.style)
    with usage_errors(args):
        for model in models:
            check(model, setup)
    return setup


def _counts(args: argparse.Namespace, model: Model) -> Counts | None:
    from ..recall import Counts

    if args.counts is None:
        return None
    counts = Counts.load(args.counts)
    if counts.vocab_size != model.vocab_size:
        raise UsageError(
            f"--counts {args.counts} is of {counts.vocab_size} tokens, but {model.name} has "
            f"{model.vocab_size}"
        )
    return counts


def _facts(
    args: argparse.Namespace,
    models: list[Model],
    n_tokens: int,
    counts: Counts | None,
    threshold: int,
) -> dict[str, Any]:
    """What a report is of."""
    return {
        "version": version(),
        "file": args.files[0],
        "n_tokens": n_tokens,
        "models": [model.name for model in models],
        "fingerprints": [model.fingerprint for model in models],
        "numerics": models[0].numerics,
        "threshold": None if counts is None else threshold,
        "counted_tokens": None if counts is None else counts.tokens,
    }


def _json(result: Report, found: Tally) -> dict[str, Any]:
    return {
        "n_scored": int(found.counts.sum()),
        "longest_window": found.longest,
        "lines": [dict(zip(COLUMNS, _values(line), strict=True)) for line in result.lines],
        "distances": [
            {"from": low, "to": high, "hits": hits} for low, high, hits in result.distances
        ],
        "slope": result.slope,
    }


def _values(line: Line) -> tuple[Any, ...]:
    return (
        line.model,
        line.slice,
        line.score.n_scored,
        line.share,
        line.score.logprob_mean,
        line.score.perplexity,
        line.gap_share,
    )
