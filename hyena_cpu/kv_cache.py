"""What an attention layer remembers of one sequence.

Shapes: H heads, hd head width.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .parts import Parts
from .spectra import LANES
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]
KEY_BLOCK = 128  # attention sums over blocks of this many slots (csrc/attention.cpp)
# Slots held at most beyond a window: what a rewind may need, and parts of two blocks.
SPARE_SLOTS = SURE_REWIND + 2 * KEY_BLOCK


class KVCache:
    """Keys and values of one attention layer: keys [H, cap/16, hd, 16], values [H, cap, hd].

    With a `window`, slots that no later query can see are dropped in whole key blocks, so the
    slot of a position never moves within its block and sums keep their order. Where queries see
    blocks of `window` positions, that holds too: none begins earlier than a sliding window would.
    """

    def __init__(self, heads: int, head_width: int, window: int | None) -> None:
        self.window = window
        self.keys: Floats = np.zeros((heads, 0, head_width, LANES), np.float32)
        self.values: Floats = np.zeros((heads, 0, head_width), np.float32)
        self.length = 0  # slots in use
        self.dropped = 0  # positions before the first slot

    def make_room(self, n: int) -> None:
        """Makes room for n more positions, half as many as are held at least."""
        if self.length + n > self.values.shape[1]:
            kept = self.length - self._out_of_sight()
            self._move_to(kept + max(kept // 2, n))

    def trim(self) -> None:
        """Lets go of slots out of sight, if they are most of what is held."""
        if self.window is not None and self.values.shape[1] > 2 * (self.window + SPARE_SLOTS):
            self._move_to(self.length - self._out_of_sight())

    def reserve(self, n: int) -> None:
        """Takes the memory for n more positions now (at most a window of them)."""
        if self.window is not None:
            n = min(n, self.window + SURE_REWIND + KEY_BLOCK)
        if self.length + n > self.values.shape[1]:
            self._move_to(self.length - self._out_of_sight() + n)

    last = None  # a sequence may go on for ever

    def drop_history(self, n: int, threads: int) -> None:  # noqa: ARG002
        """`reserve`: attention needs all that it keeps."""
        self.reserve(n)

    def _out_of_sight(self) -> int:
        """Slots, in whole key blocks, that no later query can see, even after a sure rewind."""
        if self.window is None:
            return 0
        return max(0, self.length - (self.window - 1) - SURE_REWIND) // KEY_BLOCK * KEY_BLOCK

    def _move_to(self, slots: int) -> None:
        """Fresh arrays of at least `slots` slots that start with those still in sight."""
        drop = self._out_of_sight()
        kept = self.length - drop
        slots = -(-slots // KEY_BLOCK) * KEY_BLOCK
        heads, _, head_width, _ = self.keys.shape
        keys = np.zeros((heads, slots // LANES, head_width, LANES), np.float32)
        values = np.zeros((heads, slots, head_width), np.float32)
        values[:, :kept] = self.values[:, drop : self.length]
        blocks = -(-kept // LANES)
        keys[:, :blocks] = self.keys[:, drop // LANES : drop // LANES + blocks]
        self.keys, self.values, self.length = keys, values, kept
        self.dropped += drop

    @property
    def position(self) -> int:
        """Tokens taken in."""
        return self.dropped + self.length

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return 0 if self.window is None or self.dropped == 0 else self.dropped + self.window - 1

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on. Slots beyond it are written anew when needed."""
        self.length = position - self.dropped

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes

    def fork(self) -> KVCache:
        """An independent copy."""
        twin = copy(self)
        twin.keys, twin.values = self.keys.copy(), self.values.copy()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file: the slots in use."""
        keys, values = self.keys[:, : -(-self.length // LANES)], self.values[:, : self.length]
        return {"dropped": self.dropped, "keys": keys, "values": values}

    def restore(self, parts: Parts, threads: int) -> None:  # noqa: ARG002
        """Makes a new cache what `parts` were taken of."""
        heads, _, head_width, _ = self.keys.shape
        dropped = parts.whole("dropped")
        values = parts.floats("values", heads, None, head_width)
        length = values.shape[1]
        blocks = -(-length // LANES)
        keys = parts.floats("keys", heads, blocks, head_width, LANES)
        least = 0 if self.window is None else self.window - 1
        if dropped % KEY_BLOCK or (dropped and (self.window is None or length < least)):
            raise parts.refuse(f"has {length} slots after {dropped} dropped ones")
        self._move_to(length)
        self.keys[:, :blocks], self.values[:, :length] = keys, values
        self.length, self.dropped = length, dropped
