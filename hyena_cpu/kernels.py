"""The compiled kernels: chooses the build for this CPU once, at import.

Every kernel is an attribute of this module under the name its float64 statement has in
`hyena_cpu.reference`. `HYENA_CPU_ISA` forces a build and is refused when the CPU lacks it.
"""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from . import _isa
from .errors import HyenaError


def available() -> list[str]:
    """Names of the builds in this package that this CPU can run, slowest first."""
    return [build for build in _isa.built() if _isa.runs(build)]


def load(build: str) -> ModuleType:
    """The extension module of one build. Raises HyenaError if it is absent or cannot run here."""
    if build not in _isa.built():
        raise HyenaError(
            f"kernel build {build!r} is not in this package; it has: {', '.join(_isa.built())}"
        )
    if not _isa.runs(build):
        raise HyenaError(f"kernel build {build!r} needs instructions that this CPU does not have")
    return importlib.import_module(f"._kernels_{build}", __package__)


def choose() -> str:
    """The build `HYENA_CPU_ISA` asks for, else the fastest that runs here."""
    forced = os.environ.get("HYENA_CPU_ISA", "")
    return forced or available()[-1]


module = load(choose())
build: str = module.build


def __getattr__(name: str) -> Any:
    return getattr(module, name)
