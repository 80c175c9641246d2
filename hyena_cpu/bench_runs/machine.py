"""The machine and the versions that figures belong to."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np


def facts() -> dict[str, Any]:
    """CPU, memory, system and versions; None where the system does not tell."""
    import hyena_cpu

    total = memory("MemTotal")
    return {
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": total,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "hyena_cpu": hyena_cpu.__version__,
        "kernels": hyena_cpu.build_info(),
    }


def cpu_name() -> str:
    """What the system calls the processor."""
    for line in _text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def memory(name: str) -> int | None:
    """Bytes of a line of /proc/meminfo, such as MemAvailable; None outside Linux."""
    return _kib(_text("/proc/meminfo"), name)


def resident() -> int | None:
    """Bytes of this process that are in memory now."""
    return _kib(_text("/proc/self/status"), "VmRSS")


def peak_resident() -> int | None:
    """The most bytes that were in memory since `forget_peak`, or since the start."""
    return _kib(_text("/proc/self/status"), "VmHWM")


def forget_peak() -> bool:
    """Makes the peak begin again from now; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _kib(text: str, name: str) -> int | None:
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return None


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
