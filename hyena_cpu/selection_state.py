"""What a layer of chosen queries remembers of one sequence."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .kv_cache import KEY_BLOCK, KVCache
from .parts import Parts

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


def selection_bytes(length: int, width: int) -> int:
    """Bytes of a SelectionState after `length` tokens: twice as many slots as that, at most."""
    slots = -(-2 * length // KEY_BLOCK) * KEY_BLOCK
    return (2 * 4 * width + 4) * slots


class SelectionState:
    """Keys and values of every position, and a note of each for later choices.

    A note is the token of the position or its score. All notes are kept, which makes any rewind
    exact and is little beside the keys and values. `noted`: whether the choice needs notes at all.
    """

    def __init__(self, heads: int, head_width: int, noted: bool) -> None:
        self.cache = KVCache(heads, head_width, None)
        self.noted = noted
        self._notes: Ids = np.zeros(0, np.int32)  # one for every slot of the cache

    @property
    def notes(self) -> Ids:
        """int32 [position], a view; empty where the choice needs none."""
        return self._notes[: self.cache.length]

    def take_in(self, k: Floats, v: Floats, notes: Ids) -> None:
        """Appends keys and values [n, D] of n positions, and their notes [n]."""
        cache, n = self.cache, len(k)
        cache.make_room(n)
        kernels.kv_append(cache.keys, cache.values, k, v, cache.length)
        if self.noted:
            self._fit_notes()
            self._notes[cache.length : cache.length + n] = notes
        cache.length += n

    def _fit_notes(self) -> None:
        slots = self.cache.values.shape[1]
        if self.noted and len(self._notes) < slots:
            self._notes = np.concatenate([self.notes, np.zeros(slots - len(self.notes), np.int32)])

    @property
    def position(self) -> int:
        """Tokens taken in."""
        return self.cache.position

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return self.cache.oldest

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        self.cache.rewind(position)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.cache.nbytes + self._notes.nbytes

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""
        self.cache.reserve(n)
        self._fit_notes()

    last = None  # a sequence may go on for ever

    def drop_history(self, n: int, threads: int) -> None:  # noqa: ARG002
        """`reserve`: attention needs all that it keeps."""
        self.reserve(n)

    def fork(self) -> SelectionState:
        """An independent copy."""
        twin = copy(self)
        twin.cache, twin._notes = self.cache.fork(), self._notes.copy()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        return {"cache": self.cache.parts(), "notes": self.notes if self.noted else None}

    def restore(self, parts: Parts, threads: int) -> None:
        """Makes a new state what `parts` were taken of."""
        self.cache.restore(parts.part("cache"), threads)
        notes = parts.maybe_ids("notes", self.cache.length)
        if (notes is not None) != self.noted:
            raise parts.refuse("has no notes" if self.noted else "has notes")
        if notes is not None:
            self._fit_notes()
            self._notes[: len(notes)] = notes
