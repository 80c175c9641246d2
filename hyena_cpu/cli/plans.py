"""--dry-run, for the commands that compute: what a run takes, printed and not taken."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .common import UsageError, flag_pair
from .output import Output

if TYPE_CHECKING:
    from ..plan_phases import Rows
    from ..planner import Plan

WRITTEN = ("resume", "plot", "stream", "echo")  # options that act on what a run writes


def add_dry_run_option(group: Any) -> None:
    """--dry-run."""
    flag_pair(group, "--dry-run", default=False, help="print the memory a run takes, do not run")


def check_dry_run(args: argparse.Namespace, *others: str) -> None:
    """UsageError for an option beside --dry-run that acts on what a run writes alone.

    `others`: further such options of the command.
    """
    for name in (*WRITTEN, *others):
        if args.dry_run and getattr(args, name, None):
            option = name.replace("_", "-")
            raise UsageError(f"--dry-run writes nothing, so --{option} cannot act")


def check_dry_run_of_table(args: argparse.Namespace) -> None:
    """`check_dry_run` where the plan is text in any case; formats are those of the file of -o."""
    check_dry_run(args, *(("json", "format") if args.output is None else ()))


def plan_rows(plan: Plan) -> Rows:
    """(name, bytes) of every buffer, and of all together at the end."""
    return (*plan.rows, ("total", plan.total))


def plan_table(plan: Plan) -> str:
    """`plan_rows` as lines of text."""
    rows = plan_rows(plan)
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {size:>15,}\n" for name, size in rows)


def print_plan(plan: Plan) -> None:
    """Writes the table to standard output."""
    with Output(None) as out:
        out.write(plan_table(plan))
