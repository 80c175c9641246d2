"""A dense layer whose weight is packed once, at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import kernels

Floats = NDArray[np.float32]
Dtype = Literal["float32", "bfloat16"]


class Packing(NamedTuple):
    """How dense layers are packed: the numbers that they multiply, and where they lie.

    shelf: beside others on it; None: each by itself.
    """

    dtype: Dtype = "float32"
    shelf: kernels.Shelf | None = None


class LayerTensors(dict[str, Floats]):
    """Tensors of a layer by name, and how its dense layers are packed."""

    def __init__(self, tensors: Mapping[str, Floats], packing: Packing) -> None:
        super().__init__(tensors)
        self.packing = packing

    def under(self, prefix: str) -> LayerTensors:
        """Those whose names begin with a prefix, without it."""
        found = {n.removeprefix(prefix): t for n, t in self.items() if n.startswith(prefix)}
        return LayerTensors(found, self.packing)


def packing_of(tensors: Mapping[str, Floats]) -> Packing:
    """How dense layers made of these tensors are packed: in float32 by themselves unless they say
    more.
    """
    return tensors.packing if isinstance(tensors, LayerTensors) else Packing()


class Linear:
    """y = act(x W^T + b) with weight [N, K] and optional bias [N].

    bfloat16: x and W are rounded to it as they are multiplied; sums, b and y stay float32.
    """

    def __init__(self, weight: Floats, bias: Floats | None, packing: Packing | None = None) -> None:
        self.packed = kernels.PackedLinear(weight, *(packing or Packing()))
        self.bias = bias

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Floats], name: str, rows: slice = slice(None)
    ) -> Linear:
        """From `<name>.weight` and, where present, `<name>.bias`, or these rows of them."""
        weight, bias = tensors[f"{name}.weight"][rows], tensors.get(f"{name}.bias")
        return cls(weight, None if bias is None else bias[rows], packing_of(tensors))

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
