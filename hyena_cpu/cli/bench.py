"""hyena-cpu bench: how fast a model, or one layer of every mixer, runs on this machine; a table."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..progress import Progress
from ..threads import default_threads
from .bench_report import MIXER_COLUMNS, MODEL_COLUMNS, RECALL_COLUMNS, Column, Report, Row
from .common import (
    Parser,
    UsageError,
    add_log_options,
    add_model_options,
    add_output_options,
    load_model,
    output_format,
    whole,
)
from .output import Output

if TYPE_CHECKING:
    from ..bench_runs.mixer_rows import Crossover, MixerRow, Setting
    from ..bench_runs.model_rows import Test
    from ..model import Model

FORMATS = ("md", "json", "jsonl", "csv")
LARGEST_SEED = (1 << 64) - 1
LONGEST = 1 << 29  # tokens; twice as many are the most that one transform holds
LANES = 16
OF_MODELS = ("model", "revision", "offline", "cache_dir", "dtype", "gen_tokens", "depth")
OF_RUNS = (*(name for name in OF_MODELS if name != "dtype"), "prompt_tokens")
MIXER_LENGTHS = [256, 1024, 4096]

Work = Iterator[tuple[str, Callable[[], Row]]]  # what is measured, and the measuring of its row


def parser() -> Parser:
    """Options of the command."""
    p = Parser(
        "bench",
        "Measures a model: prompts taken in (pp), tokens one by one (tg), memory; or, with "
        "--mixer, one layer of each kind of mixer; or, with --recall, the bundled models of "
        "associative recall, accuracy beside speed. Lists of numbers are separated by commas.",
    )
    add_model_options(p)
    group = p.add_argument_group("measurements")
    help = "tokens taken in at once; 0: no such row (default: 512; with --mixer: 256,1024,4096)"
    group.add_argument("-p", "--prompt-tokens", type=counts, metavar="N", help=help)
    help = "tokens one by one; 0: no such row (default: 128)"
    group.add_argument("-g", "--gen-tokens", type=counts, metavar="N", help=help)
    help = "tokens taken in before, untimed (default: 0)"
    group.add_argument("-d", "--depth", type=counts, metavar="N", help=help)
    help = "timed calls of each row, after one that is not (default: 5)"
    group.add_argument(
        "-r", "--repetitions", type=whole(1, 10_000), default=5, metavar="N", help=help
    )
    help = "of the random tokens, unsigned 64-bit (default: 0)"
    group.add_argument("-s", "--seed", type=whole(0, LARGEST_SEED), default=0, help=help)
    help = "layers instead of a model: all, or kinds such as hyena,attention"
    group.add_argument("--mixer", metavar="KINDS", help=help)
    help = "channels of those layers, a multiple of 16 (default: 256)"
    group.add_argument("--width", type=whole(LANES, 1 << 16), metavar="D", help=help)
    help = "the bundled tiny-recall models: what they recall, and how fast they are"
    group.add_argument("--recall", action="store_true", help=help)
    add_output_options(p, FORMATS, by_suffix=True)
    add_log_options(p)
    return p


def counts(text: str) -> list[int]:
    """argparse type: whole numbers separated by commas, each once."""
    return list(dict.fromkeys(whole(0, LONGEST)(part) for part in text.split(",")))


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    form = output_format(args, FORMATS[0], by_suffix=FORMATS)
    if args.mixer is None and args.width is not None:
        raise UsageError("--width acts with --mixer only: a model has a width of its own")
    if args.recall:
        _refuse(args, "--recall has models and lengths of its own", (*OF_RUNS, "mixer"))
        return _recall(args, form)
    if args.mixer is None:
        return _models(args, form)
    _refuse(args, "--mixer is about no model", OF_MODELS)
    return _mixers(args, form)


def _refuse(args: argparse.Namespace, why: str, names: Iterable[str]) -> None:
    """UsageError if one of these options was given."""
    for name in names:
        if getattr(args, name) not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')} cannot act: {why}")


# ---- a model


def _models(args: argparse.Namespace, form: str) -> int:
    from ..bench_runs import machine, model_rows

    given = ((args.prompt_tokens, [512]), (args.gen_tokens, [128]), (args.depth, [0]))
    tests = model_rows.tests(*(usual if asked is None else asked for asked, usual in given))
    if not tests:
        raise UsageError("-p 0 and -g 0 leave nothing to measure")
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    for test in tests:
        model_rows.check(model, test)
    facts = _facts(args, {"model": model.name, "parameters": model.num_parameters}, model.numerics)
    facts["fingerprint"] = model.fingerprint
    loaded = machine.resident()
    work = ((test.name, partial(_model_row, args, model, test, loaded)) for test in tests)
    return _fill(args, form, MODEL_COLUMNS, facts, work)


def _model_row(args: argparse.Namespace, model: Model, test: Test, loaded: int | None) -> Row:
    from ..bench_runs import model_rows

    row = model_rows.measure(model, test, args.repetitions, args.seed, loaded)
    prompt = test.kind == "pp"
    return {
        "test": test.name,
        "prompt_tokens": test.tokens if prompt else 0,
        "gen_tokens": 0 if prompt else test.tokens,
        "depth": test.depth,
        "tokens_per_second": row.rate,
        "each_tokens_per_second": row.rates,
        "first_seconds": row.times.first,
        "each_seconds": list(row.times.each),
        "planned_bytes": row.planned_bytes,
        "measured_bytes": row.measured_bytes,
    }


# ---- mixers


def _mixers(args: argparse.Namespace, form: str) -> int:
    from .. import kernels
    from ..bench_runs import mixer_rows

    chosen = _kinds(args.mixer)
    lengths = MIXER_LENGTHS if args.prompt_tokens is None else args.prompt_tokens
    width = 256 if args.width is None else args.width
    if 0 in lengths:
        raise UsageError("-p 0 leaves a layer nothing to do: give lengths of at least 1")
    if width % LANES:
        raise UsageError(f"--width is {width}, must be a multiple of {LANES}")
    threads = default_threads(args.threads)
    setting = mixer_rows.Setting(width, threads, args.repetitions, args.max_memory, args.seed)
    for length in lengths:
        mixer_rows.check(setting, length)
    numerics = {"dtype": "float32", "isa": kernels.build, "threads": threads}
    facts = _facts(args, {"width": width}, numerics)
    work = _mixer_work(setting, chosen, lengths, crossovers=form != "csv")
    return _fill(args, form, MIXER_COLUMNS, facts, work)


def _kinds(text: str) -> list[str]:
    """Kinds of mixers by name, or all of them."""
    from ..bench_runs.kinds import KINDS

    names = list(KINDS) if text == "all" else list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in KINDS:
            raise UsageError(f"--mixer: {name!r} is no kind; known: all, {', '.join(KINDS)}")
    return names


def _mixer_work(
    setting: Setting, chosen: list[str], lengths: list[int], *, crossovers: bool
) -> Work:
    from ..bench_runs import mixer_rows

    for length in lengths:
        for kind in chosen:
            yield f"{kind} {length}", partial(_mixer_row, setting, kind, length)
    if crossovers:
        for name, measure in mixer_rows.crossovers(setting, max(lengths)):
            yield name, partial(_crossover_row, measure)


def _mixer_row(setting: Setting, kind: str, length: int) -> Row:
    from ..bench_runs import mixer_rows

    row: MixerRow = mixer_rows.measure(setting, kind, length)
    return {
        "mixer": kind,
        "length": length,
        "milliseconds": 1e3 * row.times.median,
        "each_milliseconds": [1e3 * s for s in row.times.each],
        "first_seconds": row.times.first,
        "operations": row.operations,
        "gflops": row.operations / row.times.median / 1e9,
        "n_over_log2_n": row.gain,
        "state_bytes": row.state_bytes,
    }


def _crossover_row(measure: Callable[[], Crossover]) -> Row:
    found = measure()
    fields = dataclasses.asdict(found)
    return {"crossover": f"{found.first} and {found.second}", "at": found.at, **fields}


# ---- recall


def _recall(args: argparse.Namespace, form: str) -> int:
    import hyena_cpu

    from ..bench_runs.recall_rows import ROWS, SETTING, TEST_SEED

    load = partial(
        hyena_cpu.load, threads=args.threads, dtype=args.dtype, max_memory=args.max_memory
    )
    what = {**dataclasses.asdict(SETTING), "rows": ROWS, "test_seed": TEST_SEED}
    facts = _facts(args, what, load(hyena_cpu.RECALL[0]).numerics)
    work = ((name, partial(_recall_row, args, load, name)) for name in hyena_cpu.RECALL)
    return _fill(args, form, RECALL_COLUMNS, facts, work)


def _recall_row(args: argparse.Namespace, load: Callable[[str], Model], name: str) -> Row:
    from ..bench_runs import recall_rows

    with load(name) as model:
        return dataclasses.asdict(recall_rows.measure(model, args.repetitions, args.seed))


# ---- all


def _facts(args: argparse.Namespace, what: Row, numerics: dict[str, Any]) -> Row:
    """What all rows share; `shared` is the part that stands in every row."""
    from ..bench_runs import machine

    found = machine.facts()
    return {
        "version": found["hyena_cpu"],
        **what,
        "numerics": numerics,
        "repetitions": args.repetitions,
        "seed": args.seed,
        "machine": found,
        "shared": {"version": found["hyena_cpu"], **what, **numerics, "cpu": found["cpu"]},
    }


def _fill(
    args: argparse.Namespace, form: str, columns: tuple[Column, ...], facts: Row, work: Work
) -> int:
    """Measures and writes row after row; Ctrl-C ends the table with the rows that are complete."""
    with Output(args.output) as out:
        report = Report(out, form, columns, facts)
        try:
            for name, measure in work:
                with Progress(name, enabled=args.progress):
                    row = measure()
                report.add(row)
        except KeyboardInterrupt:
            report.finish(interrupted=True)
            return 130
        report.finish(interrupted=False)
    return 0
