"""The compiled kernels: chooses the build for this CPU once, at first use.

Every kernel is an attribute of this module under the name its float64 statement has in
`hyena_cpu.reference`; `module` is the extension module and `build` its name. `HYENA_CPU_ISA` forces
a build and is refused with a HyenaError, at first use, when it cannot run here.
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
    """The build `HYENA_CPU_ISA` asks for, else the fastest that runs here.

    Raises:
        HyenaError: that build cannot run here, or none of this package can.
    """
    runnable = available()
    if not runnable:
        raise HyenaError(
            f"no kernel build of this package runs on this CPU; it has: {', '.join(_isa.built())}"
        )
    forced = os.environ.get("HYENA_CPU_ISA", "")
    if forced and forced not in runnable:
        raise HyenaError(
            f"HYENA_CPU_ISA is {forced!r}, must be one of {', '.join(runnable)} on this CPU"
        )
    return forced or runnable[-1]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python's own questions about a module need no kernels
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = load(choose())
    value = module if name == "module" else getattr(module, name)
    globals()[name] = value
    return value
