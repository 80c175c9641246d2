"""hyena-cpu generate: continue a prompt."""

from __future__ import annotations

import argparse
import dataclasses
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
    encode_prompt,
    exactly_one,
    flag_pair,
    load_model,
    log,
    output_format,
    read_prompt,
    usage_errors,
    version,
    whole,
)
from .logs import notice
from .output import Output, to_json

if TYPE_CHECKING:
    from ..generate import TextStream
    from ..model import Model
    from ..prompts import Options, Prompt

FORMATS = ("text", "json", "jsonl")
LARGEST_SEED = (1 << 64) - 1


def parser() -> Parser:
    """Options of the command."""
    p = Parser("generate", "Continues a prompt and prints what the model writes.")
    add_dna_options(add_prompt_options(p))
    group = p.add_argument_group("generation")
    group.add_argument(
        *("-n", "--max-new-tokens", "--n-predict", "--max-tokens", "--n-tokens"),
        type=whole(0),
        default=128,
        metavar="N",
        help="tokens to write (default: 128)",
    )
    group.add_argument("--num-samples", "--n-samples", type=whole(1), default=1, metavar="N")
    group.add_argument("--temperature", "--temp", type=float, metavar="T", help="0: most likely")
    group.add_argument("--top-k", type=whole(0), metavar="K", help="keep the K most likely; 0: all")
    group.add_argument("--top-p", type=float, metavar="P", help="keep the smallest set of mass P")
    group.add_argument("--min-p", type=float, metavar="P", help="keep those above P x the best")
    group.add_argument("--repetition-penalty", "--repeat-penalty", type=float, metavar="R")
    group.add_argument("--repetition-last-n", type=whole(1), metavar="N", help="default: all")
    flag_pair(group, "--greedy", help="always the most likely token")
    group.add_argument(
        "-s", "--seed", type=whole(0, LARGEST_SEED), help="unsigned 64-bit (default: random)"
    )
    group.add_argument(
        "-r", "--stop", action="append", default=[], metavar="TEXT", help="end there; repeatable"
    )
    flag_pair(group, "--ignore-eos", default=False, help="go on after the end token")
    flag_pair(group, "--bos", help="begin token first (default: before an empty prompt only)")
    group.add_argument("--style", metavar="NAME", help="put a style token of the model first")
    group.add_argument("-c", "--ctx-size", type=whole(1), metavar="N", help="default: the model's")
    group.add_argument("--truncate", choices=("error", "left", "right"), default="error")
    flag_pair(group, "--dry-run", default=False, help="print the memory a run takes, do not run")
    add_model_options(p)
    out = add_output_options(p, FORMATS)
    flag_pair(out, "--stream", help="print text as it comes (default: to standard output)")
    flag_pair(out, "--echo", default=False, help="print the prompt first")
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    exactly_one(args, "text", "prompt", "file")
    form = output_format(args, "text")
    if args.stream and (form != "text" or args.output is not None):
        raise UsageError("--stream acts on text printed to standard output only")
    # All imports come before the run: Ctrl-C inside one can be lost in the import system.
    from ..generate import samples
    from ..prompts import prepare

    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    data = read_prompt(args, model)
    options = _options(args, model)
    prompt = prepare(model, encode_prompt(args, model, data), options)
    if prompt.dropped:
        log.warning("%d tokens of the prompt cut off (%s)", prompt.dropped, args.truncate)
    runs = _watched(args, model, samples(model, prompt, options, args.num_samples))
    with Output(args.output) as out:
        if args.dry_run:
            _plan(out, model, prompt, args.num_samples, form)
        elif form == "text":
            _text(out, args, data, runs)
        else:
            _json(out, args, model, data, runs, form)
    return 0


def _options(args: argparse.Namespace, model: Model) -> Options:
    from ..prompts import Options, prefix_ids
    from ..sampling import choose_seed

    names = [field.name for field in dataclasses.fields(Options)]
    with usage_errors(args):
        options = Options(**{name: getattr(args, name) for name in names})
        options = dataclasses.replace(options, seed=choose_seed(args.seed))
        params = options.sampling_params(model)
        prefix_ids(model, bool(args.bos), args.style)
    draws = args.max_new_tokens > 0 and not args.dry_run and not params.greedy
    if args.seed is None and draws:
        notice("seed %d", options.seed)
    return options


def _watched(
    args: argparse.Namespace, model: Model, runs: Iterator[TextStream]
) -> Iterator[TextStream]:
    """The samples, with a progress line while the prompt is taken in."""
    with Progress("prompt, tokens", enabled=args.progress) as progress:
        model.on_progress = progress.update
        first = next(runs)
    yield first
    yield from runs


def _text(out: Output, args: argparse.Namespace, data: bytes, runs: Iterator[TextStream]) -> None:
    streaming = args.output is None and args.stream is not False
    for i, run in enumerate(runs):
        shown = 0
        if i:
            out.write("\n")
        if args.echo:
            out.write(data)
        try:
            for piece in run:
                if streaming and piece.text:
                    out.write(piece.text)
                    shown += len(piece.text)
        finally:  # also after Ctrl-C: what is known is printed
            run.close()
            end = "\n" if run.text and not run.text.endswith("\n") else ""
            out.write(run.text[shown:] + end)
        log.info("%s after %d tokens", run.finish_reason, len(run.tokens))


def _json(
    out: Output,
    args: argparse.Namespace,
    model: Model,
    data: bytes,
    runs: Iterator[TextStream],
    form: str,
) -> None:
    """One object, or an array of them for several samples; jsonl: one object a line.

    After Ctrl-C the run that was under way is printed too, as cancelled.
    """
    objects = []
    interrupted = False
    for i, run in enumerate(runs):
        try:
            for _ in run:
                pass
        except KeyboardInterrupt:
            interrupted = True
        objects.append(_object(args, model, data, run, i))
        if form == "jsonl":
            out.write(to_json(objects[-1]))
        if interrupted:
            break
    if form == "json":
        out.write(to_json(objects if args.num_samples > 1 else objects[0]))
    if interrupted:
        raise KeyboardInterrupt


def _object(
    args: argparse.Namespace, model: Model, data: bytes, run: TextStream, sample: int
) -> dict[str, Any]:
    from ..sampling import FILTER_ORDER

    result = run.result()
    named: dict[str, Any] = {"model": model.name, "version": version()}
    if args.num_samples > 1:
        named["sample"] = sample
    if args.echo:
        named["prompt"] = data.decode("utf-8", "replace")
    named |= {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    named["prompt_dropped"] = run.prompt.dropped
    named["sampling"] = dataclasses.asdict(run.params) | {"order": FILTER_ORDER}
    named["numerics"] = model.numerics
    return named


def _plan(out: Output, model: Model, prompt: Prompt, count: int, form: str) -> None:
    from ..planner import plan

    length = len(prompt.ids) + prompt.new_tokens
    # A sample is continued from a copy of the prompt's state, so two states are alive.
    needed = plan(model, length, batch=min(count, 2), new=len(prompt.ids))
    rows = [*needed.rows, ("total", needed.total)]
    if form == "text":
        width = max(len(name) for name, _ in rows)
        out.write("".join(f"{name:<{width}}  {size:>15,}\n" for name, size in rows))
    else:
        out.write(to_json({"length": length, "bytes": dict(rows)}))
