"""The newest inputs of a sequence in one long convolution.

Shapes: G groups of 16 channels, P rows.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parts import Parts
from .spectra import LANES

Floats = NDArray[np.float32]


class History:
    """Rows before position `end`: at least the newest `needed`, or all there were.

    chunks: [G, P_i, 16], oldest first; never written to, so that copies share them.
    """

    def __init__(self, groups: int, needed: int) -> None:
        self.chunks: list[Floats] = []
        self.end = 0
        self._groups = groups
        self._needed = needed

    def __len__(self) -> int:
        return sum(chunk.shape[1] for chunk in self.chunks)

    @property
    def first(self) -> int:
        """Position of the first row."""
        return self.end - len(self)

    @property
    def nbytes(self) -> int:
        """Bytes held, those shared included."""
        return sum(chunk.nbytes for chunk in self.chunks)

    def set(self, rows: Floats | None, end: int) -> None:
        """Nothing but these rows, the last of them before `end`; none: no rows."""
        self.chunks, self.end = [] if rows is None else [rows], end

    def append(self, rows: Floats) -> None:
        """Adds a chunk; drops chunks, and most of a long one, that nothing needs any more."""
        needed = self._needed
        self.end += rows.shape[1]
        if rows.shape[1] > 2 * needed:
            rows = rows[:, rows.shape[1] - needed :].copy()
        self.chunks.append(rows)
        held = len(self)
        while held - self.chunks[0].shape[1] >= needed:
            held -= self.chunks.pop(0).shape[1]

    def drop_newest(self, n: int) -> None:
        """Takes n rows back."""
        self.end -= n
        while n > 0:
            last = self.chunks.pop()
            if last.shape[1] > n:
                self.chunks.append(last[:, : last.shape[1] - n])
            n -= last.shape[1]

    def newest(self, n: int, later: Floats | None = None) -> Floats:
        """Up to n of the newest rows [G, <= n, 16], those of `later`, which follow, included."""
        parts = self.chunks if later is None else [*self.chunks, later]
        if not parts:
            return np.zeros((self._groups, 0, LANES), np.float32)
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return rows[:, max(0, rows.shape[1] - n) :]

    def fork(self) -> History:
        """A copy that shares the rows."""
        twin = copy(self)
        twin.chunks = list(self.chunks)
        return twin

    def share(self, other: History) -> None:
        """Holds the rows of `other`, which has been given the same, instead of its own."""
        if [len(c[0]) for c in self.chunks] == [len(c[0]) for c in other.chunks]:
            self.chunks = list(other.chunks)

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file. Chunks stay apart: sums go chunk by chunk."""
        return {"end": self.end, "chunks": [{"rows": chunk} for chunk in self.chunks]}

    def restore(self, parts: Parts) -> None:
        """Makes a new one what `parts` were taken of."""
        shape = self._groups, None, LANES
        self.chunks = [chunk.floats("rows", *shape) for chunk in parts.each("chunks")]
        self.end = parts.whole("end", len(self))
