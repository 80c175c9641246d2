"""The command line in this process: exit code, output and messages without starting Python again.

What is about processes themselves (signals, pipes, the environment, memory, how the program starts)
takes `program` and `fake` of `test_cli` instead.
"""

from __future__ import annotations

import io
import os
import sys
from subprocess import CompletedProcess
from typing import Any
from unittest import mock

import pytest
from conftest import PACKAGE_HOME, environment
from fake_model import FakeModel

import hyena_cpu
from hyena_cpu.cli import main


def run_cli(*args: object, data: bytes = b"", **variables: str) -> CompletedProcess[bytes]:
    """The program, with `data` as its standard input, and no variables of ours but these."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(held), "utf-8") for held in (data, b"", b""))
    variables = environment(**variables)
    with mock.patch.dict(os.environ, variables, clear=True), pytest.MonkeyPatch.context() as patch:
        patch.chdir(PACKAGE_HOME)
        for stream, name in ((given, "stdin"), (out, "stdout"), (err, "stderr")):
            patch.setattr(sys, name, stream)
        code = main([str(arg) for arg in args])
    printed = []
    for stream in (out, err):
        stream.flush()
        printed.append(stream.buffer.getvalue())  # type: ignore[attr-defined]
    return CompletedProcess(args, code, *printed)


def run_fake(model: dict[str, Any], *args: object, data: bytes = b"") -> CompletedProcess[bytes]:
    """The command line around a FakeModel of these settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hyena_cpu, "load", lambda *_, **__: FakeModel(**model))
        return run_cli(*args, data=data)
