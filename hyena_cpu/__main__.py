"""The entry of the program, for `hyena-cpu` and for `python -m hyena_cpu`.

Importing takes most of a short run, so Ctrl-C has to be quiet there too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

from . import errors


def main() -> int:
    """Runs the program with the arguments of the process and returns its exit code."""
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _leave)
    from . import cli, kernels, model  # noqa: F401  the heavy imports of every command

    with contextlib.suppress(errors.HyenaError):  # said when the command needs them
        kernels.load(kernels.choose())

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Ends the process at once: an exception inside an import can get lost, and nothing is open."""
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
