"""What a recurrent layer remembers of one sequence: numbers of a fixed count.

Shapes: M numbers, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parts import Parts
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]
# Positions between two marks; with two of them, a rewind of so many tokens finds one before it.
MARK_STEP = SURE_REWIND


def scan_bytes(size: int, width: int) -> int:
    """Bytes of a ScanState at most: its numbers, those at two marks, the layer's inputs since."""
    return 4 * (3 * size + 2 * MARK_STEP * width)


class ScanState:
    """The numbers of a recurrence, and how to get back to earlier ones: marks at multiples of
    MARK_STEP and the layer's inputs since, through which the layer goes again after a rewind.

    now: float32 [M] at `position`, written by the layer. After a rewind None, until the layer has
    made them again from the last of `marks` and `since_mark`.
    marks: float32 [M] each, never written to: at `first`, `first` + MARK_STEP, ..
    """

    def __init__(self, start: Floats, width: int) -> None:
        self.now: Floats | None = start.copy()
        self.position = 0
        self.first = 0
        self.marks: list[Floats] = [start]
        self._rows: Floats = np.empty((2 * MARK_STEP, width), np.float32)

    @property
    def room(self) -> int:
        """Rows until the next mark: as many can be taken in at once, at least 1."""
        return MARK_STEP - self.position % MARK_STEP

    @property
    def since_mark(self) -> Floats:
        """[m, D], the inputs after the last mark: a view."""
        begin = (len(self.marks) - 1) * MARK_STEP
        return self._rows[begin : self.position - self.first]

    def take_in(self, x: Floats) -> None:
        """Appends inputs x [n, D], n <= room, which the layer then puts into `now`."""
        held = self.position - self.first
        self._rows[held : held + len(x)] = x
        self.position += len(x)

    def mark(self) -> None:
        """Keeps a copy of `now` if it belongs to one of the positions with a mark."""
        if self.now is None or self.position % MARK_STEP:
            return
        self.marks.append(self.now.copy())
        if len(self.marks) > 2:
            del self.marks[0]
            self.first += MARK_STEP
            self._rows[:MARK_STEP] = self._rows[MARK_STEP:]

    def skip_to(self, position: int, now: Floats) -> None:
        """To a later multiple of MARK_STEP, with nothing remembered of the way there."""
        self.position = self.first = position
        self.now, self.marks = now, [now.copy()]

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return self.first

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        del self.marks[(position - self.first) // MARK_STEP + 1 :]
        self.position, self.now = position, None

    last = None  # a sequence may go on for ever

    def reserve(self, n: int) -> None:
        """Nothing to do: the numbers stay as many as they are."""

    def drop_history(self, n: int, threads: int) -> None:
        """Nothing to do: there is no history."""

    @property
    def nbytes(self) -> int:
        """Bytes held, marks shared with forks included."""
        numbers = sum(mark.nbytes for mark in self.marks)
        return numbers + self._rows.nbytes + (0 if self.now is None else self.now.nbytes)

    def fork(self) -> ScanState:
        """An independent copy that shares the marks."""
        twin = ScanState(self.marks[0], self._rows.shape[1])
        twin.position, twin.first, twin.marks = self.position, self.first, list(self.marks)
        twin.now = None if self.now is None else self.now.copy()
        twin._rows = self._rows.copy()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        return {
            "position": self.position,
            "now": self.now,
            "marks": [{"numbers": mark} for mark in self.marks],
            "rows": self._rows[: self.position - self.first],
        }

    def restore(self, parts: Parts, threads: int) -> None:  # noqa: ARG002
        """Makes a new state what `parts` were taken of."""
        size = len(self.marks[0])
        self.position = parts.whole("position")
        now = parts.maybe_floats("now", size)
        self.now = None if now is None else now.copy()
        self.marks = [mark.floats("numbers", size).copy() for mark in parts.each("marks")]
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
        self._rows[: len(rows)] = rows
