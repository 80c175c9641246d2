"""One line on standard error that shows a long step is alive; nothing when nobody watches."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

PATIENCE_S = 2.0  # a step shorter than this shows nothing
INTERVAL_S = 0.5


class Progress:
    """A context that writes `label: done/total, rate, seconds` from a second thread while it lasts.

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
        self._done = self._total = 0
        self._width = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._begin = 0.0

    def update(self, done: int, total: int) -> None:
        """Says how far the step is. Cheap: only stores the numbers. A total of 0 is unknown."""
        self._done, self._total = done, total

    def __enter__(self) -> Self:
        if self._enabled:
            self._begin = time.monotonic()
            self._thread = threading.Thread(target=self._write, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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
        total = f"/{self._total}" if self._total else ""
        rate = f", {self._done / seconds:,.0f}/s" if self._done else ""
        counts = f"{self._done}{total}{rate}, " if self._done or self._total else ""
        return f"{self._label}: {counts}{seconds:.0f} s"

    def _show(self, line: str) -> None:
        self._stream.write("\r" + line.ljust(self._width) + ("" if line else "\r"))
        self._stream.flush()
        self._width = len(line)
