"""The command line. Commands live in one module each, imported only when they are called."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from ..errors import HyenaError

COMMANDS = {
    "generate": "continue a prompt",
    "score": "how likely a model finds texts or sequences: a table",
    "embed": "vectors of texts or sequences: npy, npz, parquet or a table",
    "variants": "what a model says of alleles against a reference: a table",
    "tokenize": "show the tokens of a text",
    "info": "what a model is and how it will be computed",
    "bench": "how fast a model, or a layer of every kind, runs here: a table",
    "verify": "whether a model is computed as it should be: a table",
    "convert": "write a model folder from another program's checkpoint",
    "mqar": "associative recall: write its rows, or how often models are right on them",
    "recall": "how likely a model finds what a text has said before: a table",
}

USAGE = "usage: hyena-cpu COMMAND [options]"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; every error is one line on standard error.

    0 success, 1 internal error, 2 usage, 3 model, 4 input data, 5 numbers, 6 limits,
    130 interrupted. A closed pipe ends quietly with 0.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if sys.stderr is None:  # closed: messages have nowhere to go
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115  for as long as the process lasts
        code = _run(arguments)
    except BrokenPipeError:
        from ..streams import silence_stdout

        silence_stdout()
        return 0
    except KeyboardInterrupt:
        return 130
    except HyenaError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError as error:
        return _fail(f"out of memory: {error}; try a shorter input or --max-memory", 6)
    except Exception as error:
        return _internal(error, arguments)
    return code


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help"):
        from .output import Output

        Output(None).write(_help())
        return 0
    if first == "--version":
        from .common import version
        from .output import Output

        Output(None).write(f"hyena-cpu {version()}\n")
        return 0
    if first not in COMMANDS:
        problem = f"{first!r} is no command" if first else "a command is missing"
        return _fail(f"{problem}: choose one of {', '.join(COMMANDS)} (see hyena-cpu --help)", 2)
    command = importlib.import_module(f".{first}", __name__)
    from .. import kernels
    from .common import UsageError

    try:
        args = command.parser().parse_args(arguments[1:])
    except SystemExit:  # --help has been printed
        return 0
    from .logs import configure
    from .output import check_files

    check_files(args)
    configure(args)
    try:
        kernels.choose()
    except HyenaError as error:
        raise UsageError(str(error)) from None
    try:
        code: int = command.run(args)
    except BrokenPipeError:
        _check_nothing_lost(args)
        raise
    return code


def _check_nothing_lost(args: argparse.Namespace) -> None:
    """WriteError for a file that was asked for beside a standard output that its reader closed."""
    from ..streams import WriteError, silence_stdout

    for option in ("state_out", "plot"):
        if (path := getattr(args, option, None)) is not None:
            silence_stdout()
            raise WriteError(
                f"standard output was closed before the end of the run, so "
                f"--{option.replace('_', '-')} {path} was not written"
            )


def _help() -> str:
    lines = [f"  {name:<10} {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [USAGE, "", *lines, "", "hyena-cpu COMMAND --help shows the options; also: --version\n"]
    )


def _fail(message: str, code: int) -> int:
    from .logs import error_line, note_error

    sentence = " ".join(message.split())
    note_error(sentence)
    print(error_line(sentence), file=sys.stderr)
    return code


def _internal(error: Exception, arguments: list[str]) -> int:
    if any(a.startswith("-vv") for a in arguments) or arguments.count("-v") > 1:
        traceback.print_exc()
    hint = "this is a fault of hyena-cpu, run again with -vv for the traceback"
    return _fail(f"internal error: {type(error).__name__}: {error} ({hint})", 1)
