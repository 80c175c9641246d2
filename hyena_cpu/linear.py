"""A dense layer whose weight is packed once, at load."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from . import kernels

Floats = NDArray[np.float32]


class Linear:
    """y = act(x W^T + b) with weight [N, K] and optional bias [N]."""

    def __init__(self, weight: Floats, bias: Floats | None) -> None:
        self.packed = kernels.PackedLinear(weight)
        self.bias = bias

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Floats], name: str) -> Linear:
        """From `<name>.weight` and, where present, `<name>.bias`."""
        return cls(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    def __call__(
        self, x: Floats, threads: int, activation: str = "none", out: Floats | None = None
    ) -> Floats:
        """x [T, K] -> [T, N], written to `out` where that is given."""
        return kernels.linear(
            x, self.packed, bias=self.bias, activation=activation, out=out, threads=threads
        )

    def add_to(self, residual: Floats, x: Floats, threads: int) -> None:
        """residual [T, N] += y of x [T, K], in place."""
        kernels.linear(
            x, self.packed, bias=self.bias, residual=residual, out=residual, threads=threads
        )

    @property
    def nbytes(self) -> int:
        return int(self.packed.nbytes) + (0 if self.bias is None else self.bias.nbytes)
