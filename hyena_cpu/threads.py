"""How many threads to use when nobody says: no more than the CPU time this process may get.

The parsers take the text of the system's files, so that every case can be tested anywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .checks import check_whole
from .errors import InputError

MOST_THREADS = 4096  # more than any machine has; above it a number is a slip of the keyboard

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ThreadChoice:
    """A number of threads and what decided it."""

    count: int
    reason: str


def default_threads(argument: int | None = None) -> int:
    """The number of threads: argument, else environment, else what the machine allows."""
    return choose_threads(argument).count


def choose_threads(argument: int | None = None) -> ThreadChoice:
    """The number of threads and why.

    In this order: the argument; HYENA_CPU_THREADS; OMP_NUM_THREADS (its first number); the least of
    CPU affinity, CPU quota of the control group (rounded down, at least 1) and physical cores.

    Raises:
        InputError: the argument or HYENA_CPU_THREADS is not a whole number in 1..4096.
    """
    if argument is not None:
        return ThreadChoice(check_whole("threads", argument, 1, MOST_THREADS), "argument")
    for name in ("HYENA_CPU_THREADS", "OMP_NUM_THREADS"):
        count = parse_threads(os.environ.get(name, ""))
        if count is not None:
            return ThreadChoice(count, name)
        if name == "HYENA_CPU_THREADS" and os.environ.get(name):
            text = os.environ[name]
            raise InputError(f"{name} is {text!r}, must be a whole number in 1..{MOST_THREADS}")
    limits = machine_limits()
    reason = min(limits, key=lambda name: limits[name])
    return ThreadChoice(limits[reason], reason)


def machine_limits() -> dict[str, int]:
    """What the machine allows, by name; a limit that is not set or not known is absent."""
    usable = _affinity()
    limits = {"CPU affinity": len(usable)}
    quota = cpu_quota()
    if quota is not None:
        limits["CPU quota"] = max(math.floor(quota), 1)
    cores = count_cores(_siblings(usable))
    if cores:
        limits["physical cores"] = cores
    return limits


def parse_threads(text: str) -> int | None:
    """The number in an environment variable such as `4` or `4,2`; None if none is in 1..4096."""
    first = text.split(",")[0].strip().lstrip("0")
    if not (first.isascii() and first.isdigit() and len(first) <= len(str(MOST_THREADS))):
        return None
    return int(first) if int(first) <= MOST_THREADS else None


def parse_cpu_max(text: str) -> float | None:
    """CPUs allowed by a cgroup v2 `cpu.max` ("150000 100000"); None for "max" or nonsense."""
    parts = text.split()
    return parse_cfs(parts[0], parts[1]) if len(parts) == 2 else None


def parse_cfs(quota: str, period: str) -> float | None:
    """CPUs allowed by the cgroup v1 quota and period files; a quota of -1 is none."""
    try:
        allowed, length = int(quota), int(period)
    except ValueError:
        return None
    return allowed / length if allowed > 0 and length > 0 else None


def parse_cgroup(text: str) -> dict[str, PurePosixPath]:
    """/proc/self/cgroup: controller -> group path; the unified hierarchy (v2) is under ""."""
    groups = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            groups.update({name: PurePosixPath(path) for name in controllers.split(",")})
    return groups


def count_cores(siblings: Iterable[str]) -> int:
    """Distinct cores among the `thread_siblings_list` texts of the usable CPUs."""
    return len({text.strip() for text in siblings if text.strip()})


def cpu_quota(cgroup: str | None = None, root: Path = _CGROUP) -> float | None:
    """CPUs that the control group of this process may use, the tightest of it and its parents.

    Args:
        cgroup: text of /proc/self/cgroup; None reads it.
        root: where control groups are mounted.
    """
    groups = parse_cgroup(_text(Path("/proc/self/cgroup")) if cgroup is None else cgroup)
    limits = [parse_cpu_max(_text(d / "cpu.max")) for d in _ancestors(root, groups.get(""))]
    for mount in ("cpu", "cpu,cpuacct"):
        for folder in _ancestors(root / mount, groups.get("cpu")):
            quota = _text(folder / "cpu.cfs_quota_us")
            limits.append(parse_cfs(quota, _text(folder / "cpu.cfs_period_us")))
    return min((limit for limit in limits if limit is not None), default=None)


def _ancestors(root: Path, group: PurePosixPath | None) -> Iterator[Path]:
    """The group's folder and those above it; inside a container only `root` may exist."""
    inner = group.relative_to("/") if group is not None else PurePosixPath()
    for path in (inner, *inner.parents):
        yield root / path


def _affinity() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _siblings(cpus: Iterable[int]) -> list[str]:
    return [_text(_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list") for cpu in cpus]


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
