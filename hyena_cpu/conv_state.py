"""What a layer made of convolutions remembers of one sequence.

Shapes: K short taps, C projected channels, D width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .online import OnlineConv
from .parts import Parts
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]


def tail_bytes(taps: int, channels: int, width: int) -> int:
    """Bytes of a ConvTail."""
    return 4 * ((taps - 1) * channels + 2 * (SURE_REWIND + taps - 1) * width)


class ConvTail:
    """What a short convolution of K taps remembers.

    rows: float32 [K - 1, C], its last inputs (projected rows), zeros before the first. After a
    rewind None, until the layer has made them again of `recent`, from which they came.
    recent: float32 [m, D], what the layer itself was given last: at least SURE_REWIND + K - 1 rows
    if there were so many.
    """

    def __init__(self, taps: int, channels: int, width: int) -> None:
        self.rows: Floats | None = np.zeros((taps - 1, channels), np.float32)
        self.position = 0
        self._shape = (taps - 1, channels)
        self._kept = SURE_REWIND + taps - 1
        # Twice as many, so that rows are moved down once in so many steps.
        self._buffer: Floats = np.empty((2 * self._kept, width), np.float32)
        self._held = 0  # rows of the buffer in use

    @property
    def recent(self) -> Floats:
        """A view of what is held."""
        return self._buffer[: self._held]

    @property
    def before(self) -> Floats:
        """The layer's inputs, K - 1 or as many as there were, that `rows` are made of."""
        return self.recent[max(0, self._held - self._shape[0]) :]

    def take_in(self, x: Floats, rows: Floats) -> None:
        """Appends the layer's inputs x [n, D]; `rows` is how the convolution's own end now."""
        self.rows = rows
        self.position += len(x)
        self._hold(x if len(x) <= self._kept else x[-self._kept :])

    def _hold(self, x: Floats) -> None:
        if self._held + len(x) > len(self._buffer):
            keep = self._kept - len(x)
            self._buffer[:keep] = self._buffer[self._held - keep : self._held]
            self._held = keep
        self._buffer[self._held : self._held + len(x)] = x
        self._held += len(x)

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        first = self.position - self._held
        return 0 if first == 0 else first + self._shape[0]

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        self._held -= self.position - position
        self.position = position
        self.rows = None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return tail_bytes(self._shape[0] + 1, self._shape[1], self._buffer.shape[1])

    def fork(self) -> ConvTail:
        """An independent copy."""
        twin = ConvTail(self._shape[0] + 1, self._shape[1], self._buffer.shape[1])
        twin.position = self.position
        twin.rows = self.rows  # never written to
        twin._hold(self.recent)
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        return {"position": self.position, "rows": self.rows, "recent": self.recent}

    def restore(self, parts: Parts) -> None:
        """Makes a new tail what `parts` were taken of."""
        self.position = parts.whole("position")
        self.rows = parts.maybe_floats("rows", *self._shape)
        recent = parts.floats("recent", None, self._buffer.shape[1])
        least = min(self.position, self._shape[0])
        if not least <= len(recent) <= min(self.position, len(self._buffer)):
            raise parts.refuse(f"has {len(recent)} recent rows at position {self.position}")
        self._hold(recent)


class ConvState:
    """State of a mixer made of convolutions: a tail where it has a short one, and the long ones."""

    def __init__(self, convs: list[OnlineConv], tail: ConvTail | None = None) -> None:
        self.convs = convs
        self.tail = tail

    @property
    def _all(self) -> list[OnlineConv | ConvTail]:
        return [*self.convs] if self.tail is None else [self.tail, *self.convs]

    @property
    def position(self) -> int:
        """Tokens taken in."""
        return self._all[0].position

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return max(one.oldest for one in self._all)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(one.nbytes for one in self._all)

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""
        for conv in self.convs:
            conv.reserve(n)

    @property
    def last(self) -> int | None:
        """Where the sequence has to end, or None."""
        return min((conv.last for conv in self.convs if conv.last is not None), default=None)

    def drop_history(self, n: int, threads: int) -> None:
        """`reserve`, and lets go of what the n tokens do not need."""
        for conv in self.convs:
            conv.drop_history(n, threads)

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        for one in self._all:
            one.rewind(position)

    def fork(self) -> ConvState:
        """An independent copy."""
        tail = None if self.tail is None else self.tail.fork()
        return ConvState([conv.fork() for conv in self.convs], tail)

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        tail = None if self.tail is None else self.tail.parts()
        return {"tail": tail, "convs": [conv.parts() for conv in self.convs]}

    def restore(self, parts: Parts, threads: int) -> None:
        """Makes a new state what `parts` were taken of."""
        tail = parts.maybe_part("tail")
        if (tail is None) != (self.tail is None):
            raise parts.refuse("has a tail" if self.tail is None else "has no tail")
        if self.tail is not None and tail is not None:
            self.tail.restore(tail)
        for conv, saved in zip(self.convs, parts.each("convs", len(self.convs)), strict=True):
            conv.restore(saved, threads)
        if {one.position for one in self._all} != {self.position}:
            raise parts.refuse("has parts at different positions")
