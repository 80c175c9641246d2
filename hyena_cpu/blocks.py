"""A residual block: norm -> mixer -> + -> norm -> MLP -> +, pre-norm throughout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .config import LayerConfig, MlpConfig, ModelConfig
from .context import Context
from .linear import LayerTensors, Linear
from .mixers import build_mixer
from .norm import Norm
from .online_taps import Convolutions

Floats = NDArray[np.float32]
_ROWS = 256  # rows that are normalised at a time where they need not be in memory as a whole


class Mlp:
    """down(act(up norm(x))), or the gated form."""

    def __init__(self, config: MlpConfig, model: ModelConfig, tensors: LayerTensors) -> None:
        self.config = config
        self.norm = Norm(model.norm, tensors, "norm2")
        self.up = Linear.from_tensors(tensors, "mlp.up", long=True)
        self.down = Linear.from_tensors(tensors, "mlp.down", long=True)

    def add_to(self, x: Floats, ctx: Context) -> None:
        """x [T, D] += its MLP, in place."""
        kernels.add_mlp(
            x,
            self.norm.weights,
            self.up.weight(ctx.long),
            self.up.bias,
            self.config.kind,
            self.down.weight(ctx.long),
            self.down.bias,
            threads=ctx.threads,
        )


class IdentityMlp:
    """norm(x) itself."""

    def __init__(self, model: ModelConfig, tensors: LayerTensors) -> None:
        self.norm = Norm(model.norm, tensors, "norm2")

    def add_to(self, x: Floats, ctx: Context) -> None:
        """x [T, D] += norm(x), in place."""
        for first in range(0, len(x), _ROWS):
            rows = x[first : first + _ROWS]
            rows += self.norm(rows, ctx.threads)


class Block:
    """One layer of the residual stream."""

    def __init__(
        self,
        config: LayerConfig,
        model: ModelConfig,
        tensors: LayerTensors,
        convolutions: Convolutions,
    ) -> None:
        self.config = config
        self.norm1 = Norm(model.norm, tensors, "norm1")
        self.mixer = build_mixer(config.mixer, tensors.under("mixer."), model.d_model, convolutions)
        self.mlp: Mlp | IdentityMlp | None = None
        if config.mlp is not None and config.mlp.kind == "identity":
            self.mlp = IdentityMlp(model, tensors)
        elif config.mlp is not None:
            self.mlp = Mlp(config.mlp, model, tensors)

    def extend(self, states: Sequence[Any] | None, x: Floats, ctx: Context) -> None:
        """Adds this layer's contribution to x [T, D] in place."""
        self.mixer.extend(states, x, self.norm1, ctx)
        if self.mlp is not None:
            self.mlp.add_to(x, ctx)
