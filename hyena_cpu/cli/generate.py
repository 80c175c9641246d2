"""hyena-cpu generate: continue a prompt."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
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
from .plans import add_dry_run_option, check_dry_run, plan_rows, plan_table

if TYPE_CHECKING:
    from ..generate import TextStream
    from ..model import Model
    from ..prompts import Options, Prompt
    from ..state import State

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
    help = "long convolutions token by token (default: auto, which is exact)"
    group.add_argument("--decode", choices=("auto", "exact", "direct"), default="auto", help=help)
    add_dry_run_option(group)
    help = "go on from a saved state; the prompt follows it and may be missing"
    group.add_argument("--state-in", type=Path, metavar="FILE", help=help)
    help = "save the state after the run"
    group.add_argument("--state-out", type=Path, metavar="FILE", help=help)
    add_model_options(p)
    out = add_output_options(p, FORMATS)
    flag_pair(out, "--stream", help="print text as it comes (default: to standard output)")
    flag_pair(out, "--echo", default=False, help="print the prompt first")
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    if args.state_in is not None and args.text is args.prompt is args.file is None:
        args.prompt = ""
    exactly_one(args, "text", "prompt", "file")
    _check_state_options(args)
    check_dry_run(args)
    form = output_format(args, "text")
    if args.stream and (form != "text" or args.output is not None):
        raise UsageError("--stream acts on text printed to standard output only")
    # All imports come before the run: Ctrl-C inside one can be lost in the import system.
    from ..generate import samples
    from ..prompts import append, prepare

    with usage_errors(args), Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    data = read_prompt(args, model)
    options = _options(args, model)
    ids = encode_prompt(args, model, data)
    state, keep = None, args.state_out is not None
    if args.state_in is None:
        prompt = prepare(model, ids, options)
    else:
        state, position = _state_in(args, model)
        prompt = append(model, ids, options, position)
    if prompt.dropped:
        log.warning("%d tokens of the prompt cut off (%s)", prompt.dropped, args.truncate)
    found = samples(model, prompt, options, args.num_samples, state=state, keep=keep)
    runs = _saved(args, _watched(args, model, found))
    with Output(args.output) as out:
        if args.dry_run:
            _plan(out, model, prompt, args.num_samples, keep, form)
        elif form == "text":
            _text(out, args, data, runs)
        else:
            _json(out, args, model, data, runs, form)
    return 0


def _check_state_options(args: argparse.Namespace) -> None:
    """UsageError for what cannot go together with --state-in or --state-out, or be written."""
    if args.state_in is not None and args.special == "cls-sep":
        raise UsageError("--special cls-sep cannot act: the sequence has begun in the state")
    if args.state_out is None:
        return
    if args.num_samples > 1:
        raise UsageError("--state-out saves the state of one run: use it without --num-samples")
    target = args.state_out.resolve()
    if args.output is not None and args.output.resolve() == target:
        raise UsageError(f"--state-out and -o are the same file, {args.output}")
    if not os.path.isdir(target.parent):
        raise UsageError(f"--state-out {args.state_out}: no such folder")
    if os.path.exists(target) and not os.path.isfile(target):
        raise UsageError(f"--state-out {args.state_out}: not a regular file")


def _state_in(args: argparse.Namespace, model: Model) -> tuple[State | None, int]:
    """The state that the prompt continues (none is loaded for a dry run), and its position."""
    from ..state_file import reading

    if args.dry_run:
        with reading(args.state_in, model.fingerprint) as file:
            return None, file.head.position
    state = model.load_state(args.state_in)
    log.info("the state has %d tokens", state.position)
    return state, state.position


def _saved(args: argparse.Namespace, runs: Iterator[TextStream]) -> Iterator[TextStream]:
    """The samples; the state of the one that was asked for is saved when it has been printed."""
    for run in runs:
        yield run
        if args.state_out is not None:
            run.final_state().save(args.state_out)


def _options(args: argparse.Namespace, model: Model) -> Options:
    from ..prompts import Options, check_options_of_a_state, prefix_ids
    from ..sampling import choose_seed

    names = [field.name for field in dataclasses.fields(Options)]
    with usage_errors(args):
        options = Options(**{name: getattr(args, name) for name in names})
        options = dataclasses.replace(options, seed=choose_seed(args.seed))
        params = options.sampling_params(model)
        if args.state_in is not None:
            check_options_of_a_state(options)
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
    if args.state_in is not None:
        named["state_tokens"] = run.prompt.position
    named["sampling"] = dataclasses.asdict(run.params) | {"order": FILTER_ORDER}
    named["numerics"] = model.numerics
    return named


def _plan(out: Output, model: Model, prompt: Prompt, count: int, keep: bool, form: str) -> None:
    from ..generate import call_of
    from ..planner import plan

    length, what = call_of(model, prompt, count, keep)
    needed = plan(model, length, **what)
    if form == "text":
        out.write(plan_table(needed))
    else:
        out.write(to_json({"length": length, "bytes": dict(plan_rows(needed))}))
