"""Which transforms of filters are kept, within a byte budget."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Key = tuple[int, int, int]  # filter bank, size, reach

# Spectra up to this part of the budget are kept at once, larger ones when they are needed again:
# most long sequences are one of a kind, and there are as many filters as layers.
SMALL_SHARE = 256
MOST_USES = 4096  # spectra whose last use is remembered


class SpectraCache:
    """Transforms of a model's filters that are needed again, `room` bytes of them.

    A spectrum is admitted from its second use on (small ones at once), where it fits beside those
    used since its last one: filters that take turns do not push one another out. room: at most
    `budget`, less while `max_memory` leaves less to a call.
    """

    def __init__(self, budget: int) -> None:
        self.budget = self.room = budget
        self._entries: dict[Key, Floats] = {}
        self._uses: OrderedDict[Key, int] = OrderedDict()  # number of the last use, oldest first
        self._count = 0
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._bytes

    def holds(self, key: Key) -> bool:
        """Whether the spectrum under this key is here."""
        return key in self._entries

    def wants(self, key: Key, nbytes: int) -> bool:
        """Whether a spectrum of this size would be kept, if there is room for it."""
        known = key in self._uses or nbytes <= self.budget // SMALL_SHARE
        return known and nbytes <= self.room // 2

    def get(self, key: Key) -> Floats | None:
        """The spectrum under this key; None if it is not here."""
        with self._lock:
            if key not in self._entries:
                return None
            self._used(key)
            return self._entries[key]

    def admits(self, key: Key, nbytes: int) -> bool:
        """Notes a use, and whether the spectrum is to be kept; makes room for it."""
        with self._lock:
            wanted, last = self.wants(key, nbytes), self._uses.get(key, 0)
            self._used(key)
            if wanted:
                self._drop(self.room - nbytes, last)
            return wanted and self._bytes + nbytes <= self.room

    def put(self, key: Key, spectrum: Floats) -> None:
        """Keeps a spectrum that was admitted, unless another call was faster."""
        with self._lock:
            if key not in self._entries and self._bytes + spectrum.nbytes <= self.room:
                self._entries[key] = spectrum
                self._bytes += spectrum.nbytes

    def limit(self, room: int) -> None:
        """Holds no more than `room` bytes, nor than the budget, from now on."""
        with self._lock:
            self.room = max(0, min(self.budget, room))
            self._drop(self.room, self._count + 1)

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._entries.clear()
            self._uses.clear()
            self._bytes = 0

    def _used(self, key: Key) -> None:
        self._count += 1
        self._uses[key] = self._count
        self._uses.move_to_end(key)
        if len(self._uses) > MOST_USES + len(self._entries):
            forgotten = next(old for old in self._uses if old not in self._entries)
            del self._uses[forgotten]

    def _drop(self, most: int, before: int) -> None:
        """Down to `most` bytes, the oldest first, but none that was used since use `before`."""
        for key in [key for key in self._uses if key in self._entries]:
            if self._bytes <= most or self._uses[key] >= before:
                return
            self._bytes -= self._entries.pop(key).nbytes
