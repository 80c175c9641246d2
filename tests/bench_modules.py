"""The modules of bench/, for tests: `from bench_modules import summary`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
if not BENCH.is_dir():
    pytest.skip("bench/ is absent: this is not a checkout", allow_module_level=True)
sys.path.append(str(BENCH))  # at the end: bench/ has a conftest of its own

import children  # noqa: E402
import latency  # noqa: E402
import run  # noqa: E402
import sides  # noqa: E402
import stages  # noqa: E402
import summary  # noqa: E402

__all__ = ["children", "latency", "run", "sides", "stages", "summary"]
