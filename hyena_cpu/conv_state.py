"""What a layer made of convolutions remembers of one sequence.

Shapes: K short taps, C projected channels, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .online import OnlineConv
from .parts import Parts
from .step_plan import SURE_REWIND

Floats = NDArray[np.float32]


def tail_bytes(taps: int, channels: int, width: int) -> int:
    """Bytes of a ConvTail."""
    return kernels.conv_tail_bytes(taps - 1, channels, width, SURE_REWIND + taps - 1)


def rows_before(x: Floats, shape: tuple[int, int], project: Callable[[Floats], Floats]) -> Floats:
    """[K - 1, C], what `project` makes of the last rows of x [n, D], zeros before the first."""
    rows, last = np.zeros(shape, np.float32), x[max(0, len(x) - shape[0]) :]
    if len(last):
        rows[-len(last) :] = project(last)
    return rows


class ConvTail:
    """What a short convolution of K taps remembers.

    rows: float32 [K - 1, C], its last inputs (projected rows), zeros before the first. After a
    rewind None, until the layer has made them again of `recent`, from which they came. They have
    the bits of single rows, whatever way was taken.
    recent: float32 [m, D], what the layer itself was given last: at least SURE_REWIND + K - 1 rows
    if there were so many.
    kernel: where both are, for the decode step.
    """

    def __init__(self, taps: int, channels: int, width: int) -> None:
        self.kernel = kernels.ConvTail(taps - 1, channels, width, SURE_REWIND + taps - 1)
        self.stale = False  # whether `rows` is None
        self._shape = (taps - 1, channels)
        self._width = width

    @property
    def rows(self) -> Floats | None:
        """A copy."""
        return self.kernel.rows

    @property
    def recent(self) -> Floats:
        """A copy of what is held."""
        return self.kernel.inputs

    @property
    def position(self) -> int:
        """Rows taken in."""
        return self.kernel.position

    def known_rows(self, project: Callable[[Floats], Floats]) -> Floats:
        """`rows`; made again by `project`, of inputs [n, D] to [n, C], where they are None."""
        self.make_rows(project)
        rows = self.kernel.rows
        assert rows is not None
        return rows

    def make_rows(self, project: Callable[[Floats], Floats]) -> None:
        """Makes `rows` again where they are None."""
        if self.stale:
            self.kernel.rows = rows_before(self.recent, self._shape, project)
            self.stale = False

    def take_in(self, x: Floats, rows: Floats | None) -> None:
        """Appends the layer's inputs x [n, D]; `rows` is how the convolution's own end now, None if
        that is to be made of them.
        """
        self.kernel.take_in(x)
        self.stale = rows is None
        if rows is not None:
            self.kernel.rows = rows

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return self.kernel.oldest

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        self.kernel.rewind(position)
        self.stale = True

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.kernel.nbytes

    def fork(self) -> ConvTail:
        """An independent copy."""
        twin = copy(self)
        twin.kernel = self.kernel.fork()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file."""
        return {"position": self.position, "rows": self.rows, "recent": self.recent}

    def restore(self, parts: Parts) -> None:
        """Makes a new tail what `parts` were taken of."""
        position = parts.whole("position")
        rows = parts.maybe_floats("rows", *self._shape)
        recent = parts.floats("recent", None, self._width)
        least, most = min(position, self._shape[0]), min(position, self.kernel.capacity)
        if not least <= len(recent) <= most:
            raise parts.refuse(f"has {len(recent)} recent rows at position {position}")
        self.kernel.resume(position, recent)
        self.stale = rows is None
        if rows is not None:
            self.kernel.rows = rows


class ConvState:
    """State of a mixer made of convolutions: a tail where it has a short one, and the long ones.

    alike: all long ones are given the same rows, which they hold together.
    """

    def __init__(
        self, convs: list[OnlineConv], tail: ConvTail | None = None, *, alike: bool = False
    ) -> None:
        self.convs = convs
        self.tail = tail
        self._alike = alike

    @property
    def aligned(self) -> bool:
        """See OnlineConv."""
        return any(conv.aligned for conv in self.convs)

    def align(self, aligned: bool) -> None:
        """Chooses that, before the first token."""
        for conv in self.convs:
            conv.aligned = aligned

    def share(self) -> None:
        """Lets go of what several of its convolutions hold alike."""
        if self._alike:
            for conv in self.convs[1:]:
                conv.share_history(self.convs[0])

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
        chunks = {id(chunk): chunk.nbytes for conv in self.convs for chunk in conv.chunks}
        tail = 0 if self.tail is None else self.tail.nbytes
        return tail + sum(chunks.values()) + self.steps_nbytes

    @property
    def steps_nbytes(self) -> int:
        """Of these, what steps hold that it is prepared for."""
        return sum(conv.steps_nbytes for conv in self.convs)

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
        self.share()

    def fork(self) -> ConvState:
        """An independent copy."""
        tail = None if self.tail is None else self.tail.fork()
        return ConvState([conv.fork() for conv in self.convs], tail, alike=self._alike)

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
        self.share()
