"""What a sequence has to remember: one entry per layer, and the position.

Every piece is plain data that can be copied (`fork`) and knows its size (`nbytes`). A mixer makes
its own kind with `new_state()`; nothing here knows a model.

Shapes: K short taps, C projected channels, G tiles of 16 channels, H heads, hd head width.
"""

from __future__ import annotations

import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
LANES = 16
KEY_BLOCK = 128  # attention sums over blocks of this many slots (csrc/attention.cpp)


class LayerState(Protocol):
    """The state of one mixer for one sequence."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    def fork(self) -> LayerState:
        """An independent copy."""

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""


class ConvTail:
    """The last K - 1 inputs of a short convolution: float32 [K - 1, C], zeros at the start."""

    def __init__(self, taps: int, channels: int) -> None:
        self.rows: Floats = np.zeros((taps - 1, channels), np.float32)

    def push(self, x: Floats) -> None:
        """Appends rows x [n, C] and keeps the newest K - 1."""
        keep = self.rows.shape[0]
        if len(x) >= keep:
            self.rows = x[len(x) - keep :].copy()
        else:
            self.rows = np.concatenate([self.rows[len(x) :], x])

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def fork(self) -> ConvTail:
        return copy.deepcopy(self)


class ConvHistory:
    """The gated inputs of one long convolution that its taps can still reach.

    Kept as tiles in a buffer that doubles; once the filter cannot reach further back than
    `reach` rows, older rows are dropped and memory stays constant.
    """

    def __init__(self, channels: int, reach: int) -> None:
        self.reach = reach
        self._tiles: Floats = np.zeros((-(-channels // LANES), 0, LANES), np.float32)
        self._begin = 0  # first kept row of the buffer
        self._end = 0  # row after the newest

    def __len__(self) -> int:
        """Rows of history that the next output can use: at most `reach`."""
        return min(self._end - self._begin, self.reach)

    def append(self, n: int) -> Floats:
        """Makes room for n rows and returns them, float32 [G, n, 16], for the caller to fill."""
        if self._end + n > self._tiles.shape[1]:
            self._move_to(max(2 * len(self), len(self) + n, 4 * LANES))
        self._begin = self._end - len(self)
        self._end += n
        return self._tiles[:, self._end - n : self._end]

    def window(self, n: int) -> Floats:
        """The newest n rows and the history they see: [G, len before + n, 16]."""
        return self._tiles[:, max(self._begin, self._end - n - self.reach) : self._end]

    def reserve(self, n: int) -> None:
        """Takes the memory for n further rows now (at most what the taps can reach)."""
        n = min(n, self.reach)
        if self._end + n > self._tiles.shape[1]:
            self._move_to(len(self) + n)

    def _move_to(self, rows: int) -> None:
        """A fresh buffer of at least `rows` rows that starts with the kept ones."""
        kept = self._tiles[:, self._end - len(self) : self._end]
        # An odd number of rows keeps the distance between tiles off the powers of two.
        fresh = np.zeros((kept.shape[0], rows + 1 - rows % 2, LANES), np.float32)
        fresh[:, : kept.shape[1]] = kept
        self._tiles, self._begin, self._end = fresh, 0, kept.shape[1]

    @property
    def nbytes(self) -> int:
        return self._tiles.nbytes

    def fork(self) -> ConvHistory:
        return copy.deepcopy(self)


class KVCache:
    """Keys and values of one attention layer: keys [H, cap/16, hd, 16], values [H, cap, hd].

    With a `window`, slots that no later query can see are dropped in whole key blocks, so the
    slot of a position never moves within its block and sums keep their order.
    """

    def __init__(self, heads: int, head_width: int, window: int | None) -> None:
        self.window = window
        self.keys: Floats = np.zeros((heads, 0, head_width, LANES), np.float32)
        self.values: Floats = np.zeros((heads, 0, head_width), np.float32)
        self.length = 0  # slots in use

    def make_room(self, n: int) -> None:
        """Makes room for n more positions, doubling what is held."""
        if self.length + n > self.values.shape[1]:
            kept = self.length - self._out_of_sight()
            self._move_to(max(2 * kept, kept + n))

    def reserve(self, n: int) -> None:
        """Takes the memory for n more positions now (at most a window of them)."""
        if self.window is not None:
            n = min(n, self.window + KEY_BLOCK)
        if self.length + n > self.values.shape[1]:
            self._move_to(self.length - self._out_of_sight() + n)

    def _out_of_sight(self) -> int:
        """Slots, in whole key blocks, that no later query can see."""
        if self.window is None:
            return 0
        return max(0, self.length - (self.window - 1)) // KEY_BLOCK * KEY_BLOCK

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

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def fork(self) -> KVCache:
        return copy.deepcopy(self)


class ConvState:
    """State of a mixer made of convolutions: a tail where it has a short one, and histories."""

    def __init__(self, histories: list[ConvHistory], tail: ConvTail | None = None) -> None:
        self.histories = histories
        self.tail = tail

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""
        for history in self.histories:
            history.reserve(n)

    @property
    def nbytes(self) -> int:
        tail = 0 if self.tail is None else self.tail.nbytes
        return tail + sum(history.nbytes for history in self.histories)

    def fork(self) -> ConvState:
        return copy.deepcopy(self)


class State:
    """One sequence under way: feed it with `Model.extend` or `Model.step`.

    position: tokens taken in so far. logits: float32 [logits_width] of the last one, or None.
    """

    def __init__(self, layers: list[LayerState], fingerprint: str) -> None:
        self.layers = layers
        self.fingerprint = fingerprint
        self.position = 0
        self.logits: Floats | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def fork(self) -> State:
        """An independent copy: what one does the other never sees."""
        twin = State([layer.fork() for layer in self.layers], self.fingerprint)
        twin.position = self.position
        twin.logits = None if self.logits is None else self.logits.copy()
        return twin

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""
        for layer in self.layers:
            layer.reserve(n)
