"""LayerNorm and RMSNorm with their weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .config import NormConfig

Floats = NDArray[np.float32]


class Norm:
    """LayerNorm or RMSNorm over the width. `weights` is what fused kernels take."""

    def __init__(self, config: NormConfig, tensors: Mapping[str, Floats], name: str) -> None:
        self.config = config
        self.weight = tensors[f"{name}.weight"]
        self.bias = tensors.get(f"{name}.bias")
        self.weights = kernels.NormWeights(config.kind, self.weight, self.bias, config.eps)

    def __call__(self, x: Floats, threads: int) -> Floats:
        """x [T, D] -> [T, D]."""
        eps = self.config.eps
        if self.config.kind == "rmsnorm":
            return kernels.rms_norm(x, self.weight, eps, threads=threads)
        return kernels.layer_norm(x, self.weight, self.bias, eps, threads=threads)
