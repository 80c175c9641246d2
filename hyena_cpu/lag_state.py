"""What a layer that looks back by a limited lag remembers of one sequence."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parts import Parts
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]
Words = NDArray[np.int32]


def lag_bytes(reach: int, width: int, words: int) -> int:
    """Bytes of a LagState at most."""
    return 4 * (SURE_REWIND + reach) * (width + words)


class LagState:
    """The last rows [m, D] of a sequence, each with a note [W] of 32-bit words.

    A next row looks `reach` rows back. SURE_REWIND rows more are kept, so that so many can be taken
    back and what comes after has the same bits.
    """

    def __init__(self, reach: int, width: int, words: int) -> None:
        self.reach = reach
        self.position = 0
        self.rows: Floats = np.zeros((0, width), np.float32)
        self.notes: Words = np.zeros((0, words), np.int32)

    def take_in(self, rows: Floats, notes: Words) -> None:
        """Appends rows [n, D] and notes [n, W]."""
        keep = SURE_REWIND + self.reach
        self.rows = np.concatenate([self.rows, rows[-keep:]])[-keep:].copy()
        self.notes = np.concatenate([self.notes, notes[-keep:]])[-keep:].copy()
        self.position += len(rows)

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        first = self.position - len(self.rows)
        return 0 if first == 0 else first + self.reach

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        left = len(self.rows) - (self.position - position)
        self.rows, self.notes = self.rows[:left], self.notes[:left]
        self.position = position

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.rows.nbytes + self.notes.nbytes

    last = None  # a sequence may go on for ever

    def reserve(self, n: int) -> None:
        """Nothing: it does not grow."""

    def drop_history(self, n: int, threads: int) -> None:
        """Nothing: there is no more than further tokens need."""

    def fork(self) -> LagState:
        """An independent copy."""
        return copy(self)  # rows and notes are never written to

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        return {"position": self.position, "rows": self.rows, "notes": self.notes.reshape(-1)}

    def restore(self, parts: Parts, threads: int) -> None:  # noqa: ARG002
        """Makes a new state what `parts` were taken of."""
        self.position = parts.whole("position")
        rows = parts.floats("rows", None, self.rows.shape[1])
        words = self.notes.shape[1]
        notes = parts.maybe_ids("notes", len(rows) * words)
        least, most = min(self.position, self.reach), min(self.position, SURE_REWIND + self.reach)
        if notes is None or not least <= len(rows) <= most:
            raise parts.refuse(f"has {len(rows)} rows at position {self.position}")
        self.rows, self.notes = rows, notes.reshape(-1, words)
