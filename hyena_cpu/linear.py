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
    thirds: whether float32 ones are kept a second time, as sums of bfloat16 numbers, for long
        pieces (`Linear.weight`).
    """

    dtype: Dtype = "float32"
    shelf: kernels.Shelf | None = None
    thirds: bool = False


class LayerTensors(dict[str, Floats]):
    """Tensors of a layer by name, and how its dense layers are packed."""

    def __init__(self, tensors: Mapping[str, Floats], packing: Packing) -> None:
        super().__init__(tensors)
        self.packing = packing

    def under(self, prefix: str) -> LayerTensors:
        """Those below a prefix, packed alike."""
        return LayerTensors(under(self, prefix), self.packing)


def under(tensors: Mapping[str, Floats], prefix: str) -> dict[str, Floats]:
    """The tensors below a prefix, with it removed."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def packing_of(tensors: Mapping[str, Floats]) -> Packing:
    """How dense layers made of these tensors are packed: in float32 by themselves unless they say
    more.
    """
    return tensors.packing if isinstance(tensors, LayerTensors) else Packing()


class Linear:
    """y = act(x W^T + b) with weight [N, K] and optional bias [N].

    bfloat16: x and W are rounded to it as they are multiplied; sums, b and y stay float32.
    """

    def __init__(
        self,
        weight: Floats,
        bias: Floats | None,
        packing: Packing | None = None,
        *,
        long: bool = False,
    ) -> None:
        packing = packing or Packing()
        self.packed = self._of_long = kernels.PackedLinear(weight, packing.dtype, packing.shelf)
        self.bias = bias
        if long and packing.thirds:
            self._of_long = kernels.PackedLinear(weight, "thirds")

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Floats],
        name: str,
        rows: slice = slice(None),
        *,
        long: bool = False,
    ) -> Linear:
        """From `<name>.weight` and, where present, `<name>.bias`, or these rows of them.

        long: `weight` is asked for those of long pieces.
        """
        weight, bias = tensors[f"{name}.weight"][rows], tensors.get(f"{name}.bias")
        bias = None if bias is None else bias[rows]
        return cls(weight, bias, packing_of(tensors), long=long)

    def weight(self, long: bool) -> kernels.PackedLinear:
        """What rows of long pieces (`Context.long`) are multiplied with, or of others. The results
        differ in rounding: on a CPU with tiles of bfloat16 the long ones have thirds.
        """
        return self._of_long if long else self.packed

    def __call__(
        self,
        x: Floats,
        threads: int,
        activation: str = "none",
        out: Floats | None = None,
        *,
        long: bool = False,
    ) -> Floats:
        """x [T, K] -> [T, N], written to `out` where that is given."""
        return kernels.linear(
            x, self.weight(long), bias=self.bias, activation=activation, out=out, threads=threads
        )

    def add_to(self, residual: Floats, x: Floats, threads: int, *, long: bool = False) -> None:
        """residual [T, N] += y of x [T, K], in place."""
        weight = self.weight(long)
        kernels.linear(x, weight, bias=self.bias, residual=residual, out=residual, threads=threads)

    @property
    def nbytes(self) -> int:
        kept = {id(packed): packed.nbytes for packed in (self.packed, self._of_long)}
        return sum(kept.values()) + (0 if self.bias is None else self.bias.nbytes)
