"""Sides in processes of their own, asked in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

SIDES = Path(__file__).with_name("sides.py")
LEAST = 3  # repetitions, however long they take
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Side:
    """A name in tables, the options of `sides.py`, and variables of its process."""

    name: str
    options: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Measured:
    """What a side answered: seconds of each call, or bytes; `absent` says why there is nothing."""

    values: list[float] = field(default_factory=list)
    faults: list[float] = field(default_factory=list)
    absent: str | None = None

    @property
    def median(self) -> float | None:
        """Of the values, None if there are none."""
        return statistics.median(self.values) if self.values else None


class Child:
    """One process. A context: it ends with it."""

    def __init__(self, side: Side) -> None:
        threads = {name: str(side.options["threads"]) for name in THREADS}
        self._process = subprocess.Popen(
            [sys.executable, str(SIDES), json.dumps(dict(side.options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **threads, **side.environment},
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer; {"absent": why} of a process that ended instead."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        try:
            print(json.dumps(request), file=into, flush=True)
            line = out.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"absent": f"its process ended with code {self._process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def times(
    sides: Sequence[Side], what: str, length: int, repetitions: int, budget_s: float
) -> list[Measured]:
    """Calls of every side in turn, a, b, a, b, ...: `repetitions` each, fewer (3 at least) once
    `budget_s` are over.
    """
    found = [Measured() for _ in sides]
    with ExitStack() as stack:
        children = [stack.enter_context(Child(side)) for side in sides]
        begin = time.monotonic()
        for done in range(repetitions):
            if done >= LEAST and time.monotonic() - begin > budget_s:
                break
            for child, one in zip(children, found, strict=True):
                if one.absent is None:
                    _take(child.ask(do=what, length=length), "seconds", one)
    return found


def sizes(sides: Sequence[Side], what: str, length: int) -> list[Measured]:
    """Bytes, asked once of every side, one process after the other."""
    found = [Measured() for _ in sides]
    for side, one in zip(sides, found, strict=True):
        with Child(side) as child:
            _take(child.ask(do=what, length=length), "bytes", one)
    return found


def latency(side: Side, length: int, steps: int) -> tuple[Measured, dict[str, float]]:
    """The median of single steps, and what else `latency.spread` says of them."""
    found = Measured()
    with Child(side) as child:
        answer = child.ask(do="latency", length=length, steps=steps)
        _take(answer, "seconds", found)
    return found, {name: answer[name] for name in ("p99", "max", "first") if name in answer}


def floor(side: Side, what: str, length: int) -> float | None:
    """Seconds that the machine itself needs, measured as the side is run; None if not known."""
    with Child(side) as child:
        return child.ask(do="floor", of=what, length=length).get("seconds")


def _take(answer: dict[str, Any], key: str, one: Measured) -> None:
    if key in answer:
        one.values.append(answer[key])
        one.faults += [answer["faults"]] if "faults" in answer else []
    else:
        one.absent, one.values = answer["absent"], []
