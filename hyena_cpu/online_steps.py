"""The steps of one sequence in one long convolution under way, counted from where it began."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .step_plan import FOR_EVER

Floats = NDArray[np.float32]


class OnlineSteps:
    """A kernel's state that began at position `base` of a sequence; all positions here are those of
    the sequence.

    sure: the position up to which the kernel has all it needs.
    """

    def __init__(self, base: int, kernel: kernels.OnlineState, sure: int) -> None:
        self.base = base
        self.kernel = kernel
        self.sure = sure

    @property
    def position(self) -> int:
        """Rows taken in, those before `base` included."""
        return self.base + self.kernel.position

    @property
    def first(self) -> int:
        """The first row that it holds, or will hold."""
        return self.base + self.kernel.first

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        return self.base + self.kernel.oldest

    @property
    def end(self) -> int:
        """The last position that there is room for."""
        return self.base + self.kernel.horizon

    @property
    def ready(self) -> int:
        """Steps that it has all it needs for."""
        return self.sure - self.position

    def inputs(self, first: int, last: int) -> Floats:
        """A copy of rows [G, last - first, 16], which it holds."""
        return self.kernel.inputs(first - self.base, last - self.base)

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""
        self.kernel.rewind(position - self.base)

    def fork(self) -> OnlineSteps:
        """An independent copy."""
        twin = copy(self)
        twin.kernel = self.kernel.fork()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything to go on from, as plain data; what is in tiles can be computed again."""
        kernel = self.kernel
        return {
            "base": self.base,
            "horizon": min(kernel.horizon, FOR_EVER),
            "period": kernel.period if kernel.kind in ("rolling", "direct") else 0,
            "first": kernel.first,
            "inputs": kernel.inputs(kernel.first, kernel.position),
            "future": kernel.future,
        }
