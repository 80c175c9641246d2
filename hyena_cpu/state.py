"""What a sequence has to remember: one entry per layer, and the position.

Every piece is plain data that can be copied (`fork`) and knows its size (`nbytes`). A mixer makes
its own kind with `new_state()`; nothing here knows a model.

Shapes: K short taps, C projected channels, H heads, hd head width.
"""

from __future__ import annotations

import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .online import OnlineConv
from .spectra import LANES

Floats = NDArray[np.float32]
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
    """State of a mixer made of convolutions: a tail where it has a short one, and the long ones."""

    def __init__(self, convs: list[OnlineConv], tail: ConvTail | None = None) -> None:
        self.convs = convs
        self.tail = tail

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""
        for conv in self.convs:
            conv.reserve(n)

    @property
    def nbytes(self) -> int:
        tail = 0 if self.tail is None else self.tail.nbytes
        return tail + sum(conv.nbytes for conv in self.convs)

    def fork(self) -> ConvState:
        tail = None if self.tail is None else self.tail.fork()
        return ConvState([conv.fork() for conv in self.convs], tail)


class State:
    """One sequence under way: feed it with `Model.extend` or `Model.step`.

    position: tokens taken in so far. logits: float32 [logits_width] of the last one, or None.
    torn: a call was interrupted while it changed the layers; the state cannot go on.
    """

    def __init__(self, layers: list[LayerState], fingerprint: str) -> None:
        self.layers = layers
        self.fingerprint = fingerprint
        self.position = 0
        self.logits: Floats | None = None
        self.torn = False

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)

    def fork(self) -> State:
        """An independent copy: what one does the other never sees."""
        twin = State([layer.fork() for layer in self.layers], self.fingerprint)
        twin.position, twin.torn = self.position, self.torn
        twin.logits = None if self.logits is None else self.logits.copy()
        return twin

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now. InputError if n is negative."""
        if n < 0:
            raise InputError(f"reserve: n is {n}, must be at least 0")
        for layer in self.layers:
            layer.reserve(n)
