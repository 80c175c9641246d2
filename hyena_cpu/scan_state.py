"""What a recurrent layer remembers of one sequence: numbers of a fixed count.

Shapes: W width of a row, n and m rows, K rows before them.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from .parts import Parts
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]
Numbers = NDArray[Any]
# Positions between two marks; with two of them, a rewind of so many tokens finds one before it.
MARK_STEP = SURE_REWIND


def scan_bytes(size: int, width: int, before: int = 0) -> int:
    """Bytes of a ScanState at most: its numbers (`size` of 4 bytes), those at two marks, rows."""
    return 4 * (3 * size + (before + 2 * MARK_STEP) * width)


class ScanState:
    """The numbers of a recurrence, and how to get back to earlier ones: marks at the last two
    multiples of MARK_STEP, and the rows since the older one, through which the layer goes again
    after a rewind.

    now: the numbers at `position`, written by the layer. After a rewind None, until the layer has
    made them again from the last of `marks` and `since_mark`.
    marks: the numbers at `first`, `first` + MARK_STEP, never written to.
    """

    def __init__(self, start: Numbers, width: int, before: int = 0) -> None:
        """before: K, rows that are needed to take a row in again, zeros before the first."""
        self.now: Numbers | None = copied(start)
        self.position = 0
        self.first = 0
        self.marks = [start]
        self._before = before
        self._rows: Floats = np.zeros((before + 2 * MARK_STEP, width), np.float32)
        self._held = before  # rows in use

    last = None  # a sequence may go on for ever

    @property
    def tail(self) -> Floats:
        """The newest K rows [K, W]: a view."""
        return self._rows[self._held - self._before : self._held]

    @property
    def since_mark(self) -> Floats:
        """[K + m, W], the rows after the last mark, and those before them: a view."""
        return self._since(self.first + (len(self.marks) - 1) * MARK_STEP)

    def _since(self, position: int) -> Floats:
        return self._rows[self._held - (self.position - position) - self._before : self._held]

    def take(self, rows: Floats) -> None:
        """Keeps what will be needed of the next rows [n, W], which the layer then puts into `now`,
        one of `cuts` after the other.
        """
        end = self.position + len(rows)
        kept = self._before + end - max(self.first, (end // MARK_STEP - 1) * MARK_STEP)
        if self._held + len(rows) > len(self._rows):
            old = max(0, kept - len(rows))
            self._rows[:old] = self._rows[self._held - old : self._held]
            self._held = old
            rows = rows[-kept:]
        self._rows[self._held : self._held + len(rows)] = rows
        self._held += len(rows)

    def cuts(self, n: int) -> list[tuple[int, int]]:
        """The next n rows, cut where a mark has to be made that will be kept: (first, last)."""
        newest = (self.position + n) // MARK_STEP * MARK_STEP - self.position
        ends = [end for end in (newest - MARK_STEP, newest) if 0 < end < n] + [n]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def advance(self, n: int) -> None:
        """Says that `now` has taken in n more rows, the end of one of `cuts`."""
        self.position += n
        if self.now is not None and self.position % MARK_STEP == 0:
            follows = self.first + len(self.marks) * MARK_STEP == self.position
            self.marks = [*(self.marks[-1:] if follows else []), copied(self.now)]
            self.first = self.position - (len(self.marks) - 1) * MARK_STEP

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return self.first

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        del self.marks[(position - self.first) // MARK_STEP + 1 :]
        self._held -= self.position - position
        self.position, self.now = position, None

    def reserve(self, n: int) -> None:
        """Nothing to do: the numbers stay as many as they are."""

    def drop_history(self, n: int, threads: int) -> None:
        """Nothing to do: there is no history."""

    @property
    def nbytes(self) -> int:
        """Bytes held, marks shared with forks included."""
        numbers = sum(mark.nbytes for mark in self.marks)
        return numbers + self._rows.nbytes + (0 if self.now is None else self.now.nbytes)

    def fork(self) -> Self:
        """An independent copy that shares the marks."""
        twin = copy(self)
        twin.now = None if self.now is None else copied(self.now)
        twin.marks, twin._rows = list(self.marks), self._rows.copy()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        return {
            "position": self.position,
            "now": self.now,
            "marks": [{"numbers": mark} for mark in self.marks],
            "rows": self._since(self.first),
        }

    def restore(self, parts: Parts, threads: int) -> None:  # noqa: ARG002
        """Makes a new state what `parts` were taken of."""
        size = len(self.marks[0])
        self.position = parts.whole("position")
        now = parts.maybe_floats("now", size)
        self.now = None if now is None else copied(now)
        self.marks = [copied(mark.floats("numbers", size)) for mark in parts.each("marks")]
        rows = parts.floats("rows", None, self._rows.shape[1])
        self.first = self.position - len(rows)
        if (
            self.first % MARK_STEP
            or self.first < 0
            or not 1 <= len(self.marks) <= 2
            or len(self.marks) != len(rows) // MARK_STEP + 1
        ):
            raise parts.refuse(
                f"has {len(self.marks)} marks and {len(rows)} rows at position {self.position}"
            )
        self._hold(rows)

    def _hold(self, rows: Floats) -> None:
        """Nothing but these rows [<= K + 2 MARK_STEP, W]."""
        self._rows[: len(rows)] = rows
        self._held = len(rows)


def copied(numbers: Numbers) -> Numbers:
    """A copy that begins on a cache line: the kernel of modes takes half the time on such."""
    store = np.empty(numbers.size + 64 // numbers.itemsize, numbers.dtype)
    first = -store.ctypes.data % 64 // numbers.itemsize
    copy = store[first : first + numbers.size].reshape(numbers.shape)
    copy[...] = numbers
    return copy
