"""Messages: standard error for people, a file on request; standard output carries results only."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from .common import UsageError

NOTICE = 25  # said unless -q: less than a warning, more than a detail
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": NOTICE,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

log = logging.getLogger("hyena_cpu")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        kind = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"hyena-cpu: {kind}{record.getMessage()}"


class _File(logging.FileHandler):
    """One that says once if it cannot be written, and lets the run go on."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802
        """Called inside the `except` of what went wrong."""
        if not self.failed:
            self.failed = True
            print(error_line(f"--log-file {self.baseFilename}: {sys.exception()}"), file=sys.stderr)


def configure(args: argparse.Namespace) -> None:
    """Sets up the log from -q, -v, --log-file and HYENA_CPU_LOG; arguments win."""
    level = _level(args.quiet, args.verbose)
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(level)
    handlers: list[logging.Handler] = [console]
    if args.log_file is not None:
        try:
            file = _File(args.log_file, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--log-file {args.log_file}: {error.strerror}") from None
        file.setLevel(min(level, logging.INFO))
        handlers.append(file)
    for handler in handlers:
        handler.setFormatter(_Lines())
    for old in list(log.handlers):
        log.removeHandler(old)
        old.close()
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(min(handler.level for handler in handlers))
    log.propagate = False
    global _color
    _color = args.color


def note_error(message: str) -> None:
    """To the log file alone: the error that ends a run, which standard error gets in colour."""
    record = log.makeRecord(log.name, logging.ERROR, "", 0, message, (), None)
    for handler in log.handlers:
        if isinstance(handler, _File):
            handler.handle(record)


def notice(message: str, *values: object) -> None:
    """Something the user should know about a run that is in order, such as its seed."""
    log.log(NOTICE, message, *values)


_color: bool | None = None  # --color / --no-color; None: only on a terminal that wants it


def error_line(message: str) -> str:
    """`hyena-cpu: error: message`, the middle in red where that is welcome."""
    color = _color
    if color is None:
        dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        color = sys.stderr.isatty() and not dull
    word = "\x1b[1;31merror:\x1b[0m" if color else "error:"
    return f"hyena-cpu: {word} {message}"


def _level(quiet: bool, verbose: int) -> int:
    if quiet and verbose:
        raise UsageError("-q and -v exclude each other")
    if quiet:
        return logging.ERROR
    if verbose:
        return logging.INFO if verbose == 1 else logging.DEBUG
    name = os.environ.get("HYENA_CPU_LOG", "notice").lower()
    if name not in LEVELS:
        raise UsageError(f"HYENA_CPU_LOG is {name!r}, must be one of {', '.join(LEVELS)}")
    return LEVELS[name]
