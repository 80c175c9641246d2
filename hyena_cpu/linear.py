"""A dense layer whose weight is packed once, at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from . import kernels

Floats = NDArray[np.float32]
Dtype = Literal["float32", "bfloat16"]


class LayerTensors(dict[str, Floats]):
    """Tensors of a layer by name, the numbers that its dense layers multiply, and where they lie,
    beside those of other layers.
    """

    def __init__(
        self, tensors: Mapping[str, Floats], dtype: Dtype, shelf: kernels.Shelf | None = None
    ) -> None:
        super().__init__(tensors)
        self.dtype: Dtype = dtype
        self.shelf = kernels.Shelf() if shelf is None else shelf

    def under(self, prefix: str) -> LayerTensors:
        """Those whose names begin with a prefix, without it."""
        found = {n.removeprefix(prefix): t for n, t in self.items() if n.startswith(prefix)}
        return LayerTensors(found, self.dtype, self.shelf)


def dtype_of(tensors: Mapping[str, Floats]) -> Dtype:
    """What dense layers made of these tensors multiply: float32 unless they say more."""
    return tensors.dtype if isinstance(tensors, LayerTensors) else "float32"


def shelf_of(tensors: Mapping[str, Floats]) -> kernels.Shelf | None:
    """Where dense layers made of these tensors lie; None: each by itself."""
    return tensors.shelf if isinstance(tensors, LayerTensors) else None


class Linear:
    """y = act(x W^T + b) with weight [N, K] and optional bias [N].

    bfloat16: x and W are rounded to it as they are multiplied; sums, b and y stay float32.
    """

    def __init__(
        self,
        weight: Floats,
        bias: Floats | None,
        dtype: Dtype = "float32",
        shelf: kernels.Shelf | None = None,
    ) -> None:
        self.packed = kernels.PackedLinear(weight, dtype, shelf)
        self.bias = bias

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Floats], name: str, rows: slice = slice(None)
    ) -> Linear:
        """From `<name>.weight` and, where present, `<name>.bias`, or these rows of them."""
        weight, bias = tensors[f"{name}.weight"][rows], tensors.get(f"{name}.bias")
        bias = None if bias is None else bias[rows]
        return cls(weight, bias, dtype_of(tensors), shelf_of(tensors))

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
