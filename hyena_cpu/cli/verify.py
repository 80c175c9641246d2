"""hyena-cpu verify: whether a model is computed as it should be: a table of checks."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from ..errors import NumericError
from ..progress import Progress
from .common import (
    Parser,
    UsageError,
    add_log_options,
    add_model_options,
    add_output_options,
    hub_options,
    log,
    output_format,
    version,
)
from .output import Output, to_json, to_table

if TYPE_CHECKING:
    from ..verify import Check
    from ..weights import Weights

FORMATS = ("tsv", "csv", "json")


def parser() -> Parser:
    """Options of the command."""
    p = Parser(
        "verify",
        "Checks a model's weights and arithmetic: worked numbers in float64, steps against the "
        "whole, threads and batches, and the reference values in its folder. Exit code 5 if a "
        "check fails.",
    )
    p.add_argument("folder", nargs="?", metavar="MODEL", help="the same as -m")
    add_model_options(p, dtype=False, memory=False)
    add_output_options(p, FORMATS, by_suffix=True)
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    form = output_format(args, FORMATS[0], by_suffix=FORMATS)
    with Progress("verifying", enabled=args.progress):
        weights = _weights(args)
        checks, numerics = _checks(weights, args.threads)
    facts = {
        "version": version(),
        "model": weights.config.name,
        "fingerprint": weights.fingerprint,
        "numerics": numerics,
        "ok": all(check.ok is not False for check in checks),
        "checks": [dataclasses.asdict(check) for check in checks],
    }
    with Output(args.output) as out:
        out.write(to_json(facts, indent=1) if form == "json" else _table(form, checks))
    failed = [check.name for check in checks if check.ok is False]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise NumericError(f"{weights.config.name} fails this check: {failed[0]}{more}")
    return 0


def _weights(args: argparse.Namespace) -> Weights:
    import hyena_cpu

    if args.folder is not None and args.model is not None:
        raise UsageError("give the model once: as MODEL or with -m")
    with hub_options(args) as options:
        weights = hyena_cpu.read_weights(
            args.folder if args.model is None else args.model, allow_nonfinite=True, **options
        )
    for note in weights.notes:
        log.info("%s", note)
    return weights


def _checks(weights: Weights, threads: int | None) -> tuple[list[Check], dict[str, object]]:
    """The checks, and how numbers were computed; nothing is computed with weights like NaN."""
    from ..model import Model
    from ..threads import default_threads
    from ..verify import finite, verify

    found = finite(weights)
    if not all(check.ok for check in found):
        return found, {}
    model = Model(weights, None, threads=default_threads(threads))
    return verify(model, weights), model.numerics


def _table(form: str, checks: list[Check]) -> str:
    rows = []
    for check in checks:
        numbers = (None if x is None else f"{x:.3g}" for x in (check.value, check.bound))
        verdict = {True: "yes", False: "no", None: "skipped"}[check.ok]
        rows.append((check.name, *numbers, verdict, check.note))
    return to_table(form, dict.fromkeys(("check", "value", "bound", "ok", "note"), str), rows)
