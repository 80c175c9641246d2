"""One line on standard error that shows a long step is alive; nothing when nobody watches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

from .closing import Closing

PATIENCE_S = 2.0  # a step shorter than this shows nothing
INTERVAL_S = 0.5


class Progress(Closing):
    """A context that writes how far a step is from a second thread while it lasts.

    `label: done/total, rate, seconds so far, time left`, as far as they are known.

    The line appears after two seconds and is wiped at the end, so output that follows is clean.

    Args:
        label: what is going on.
        enabled: None shows the line only if `stream` is a terminal.
        stream: where to write; None is standard error.
    """

    def __init__(
        self, label: str, *, enabled: bool | None = None, stream: TextIO | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._enabled = self._stream.isatty() if enabled is None else enabled
        self._label = label
        self._state: tuple[int, int, float | None] = 0, 0, None
        self._width = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._begin = 0.0

    def update(self, done: int, total: int, share: float | None = None) -> None:
        """Says how far the step is. Cheap: only stores the numbers.

        Args:
            done, total: how many; a total of 0 is unknown.
            share: 0..1 of the work that is done, where `done` and `total` do not tell.
        """
        if share is None and total:
            share = done / total
        self._state = done, total, share

    def __enter__(self) -> Self:
        if self._enabled:
            self._begin = time.monotonic()
            self._thread = threading.Thread(target=self._write, daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Wipes the line. May be called twice."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        if self._width:
            self._show("")

    def _write(self) -> None:
        wait = PATIENCE_S
        while not self._stop.wait(wait):
            self._show(self._line(time.monotonic() - self._begin))
            wait = INTERVAL_S

    def _line(self, seconds: float) -> str:
        done, total, share = self._state
        of = f"/{total:,}" if total else ""
        rate = f", {done / seconds:,.0f}/s" if done else ""
        counts = f"{done:,}{of}{rate}, " if done or total else ""
        left = f", about {_duration(seconds * (1 / share - 1))} left" if share else ""
        return f"{self._label}: {counts}{_duration(seconds)}{left}"

    def _show(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
        self._stream.flush()
        self._width = len(line)


class Watch:
    """Tells a `Progress` how far a command is that scores sequences in groups as it reads a file.

    Args:
        progress: the line.
        share: 0..1 of the input that has been read, None where that is not known.
        resumed: what was read before the first group is not this run's work.
    """

    def __init__(
        self, progress: Progress, share: Callable[[], float | None], *, resumed: bool
    ) -> None:
        self._progress, self._share = progress, share
        self._begin: float | None = None if resumed else 0.0
        self._span: tuple[float | None, float | None] = (0.0, 0.0)  # before and after the group
        self._before = self._done = self._total = 0
        self._at = 0  # tokens of the group last shown

    def scored(self, done: int, total: int) -> None:
        """`done` of the `total` tokens of a group are done; a group begins with 0."""
        if not done:
            self._before += self._total
            share = self._share()
            if self._begin is None:
                self._begin, self._span = share, (share, share)
            self._span = self._span[1], share
            self._at = 0
        self._done, self._total = done, total
        self._show(done)

    def inside(self, done: int, _total: int) -> None:
        """The model is `done` tokens into what it was last given."""
        self._show(min(self._done + done, self._total))

    def _show(self, at: int) -> None:
        self._at = max(self._at, at)  # windows overlap
        self._progress.update(self._before + self._at, 0, self._work_done(self._at))

    def _work_done(self, at: int) -> float | None:
        first, (low, high) = self._begin, self._span
        if first is None or low is None or high is None or first >= 1.0:
            return None
        share = low + (high - low) * (at / self._total if self._total else 1.0)
        return max(share - first, 0.0) / (1.0 - first)


def _duration(seconds: float) -> str:
    """In the largest unit of which there are at least two."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
