"""The real command line around a FakeModel: `python fake_cli.py JSON COMMAND ...`.

JSON holds the FakeModel's settings. Only loading is replaced, so processes, pipes, signals and
exit codes are the real ones.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from fake_model import FakeModel

import hyena_cpu
from hyena_cpu.cli import main


def load(*_: object, **__: object) -> Any:
    return FakeModel(**json.loads(sys.argv[1]))


hyena_cpu.load = load  # type: ignore[assignment]
sys.exit(main(sys.argv[2:]))
