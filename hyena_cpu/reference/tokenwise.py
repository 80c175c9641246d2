"""The token-wise parts of a layer in float64: the same kernels, one after the other.

Weights are plain arrays [N, K] where the engine takes them packed; a norm is
(kind, weight [D], bias [D] or None, eps).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import conv, dense

Array = npt.NDArray[np.float64]
Norm = tuple[str, npt.ArrayLike, npt.ArrayLike | None, float]


def project_conv(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None,
    taps: npt.ArrayLike,
    short_bias: npt.ArrayLike | None,
    tail: npt.ArrayLike,
    parts: int,
) -> Array:
    """x [T, D], weight [C, D], taps [K, C], tail [K - 1, C] -> tiles [parts, G, T, 16]."""
    return conv.short_conv(dense.linear(x, weight, bias), taps, short_bias, tail, parts)


def add_tiles(
    residual: npt.ArrayLike, z: npt.ArrayLike, weight: npt.ArrayLike, bias: npt.ArrayLike | None
) -> Array:
    """residual [T, N] + z W^T + bias for tiles z [G, T, 16] and weight [N, K]."""
    rows = conv.tiles_to_rows(z, np.shape(weight)[1])
    return np.asarray(residual, np.float64) + dense.linear(rows, weight, bias)


def add_mlp(
    x: npt.ArrayLike,
    norm: Norm,
    up: npt.ArrayLike,
    up_bias: npt.ArrayLike | None,
    kind: str,
    down: npt.ArrayLike,
    down_bias: npt.ArrayLike | None,
) -> Array:
    """x + down(act(up(norm(x)))), x [T, D]."""
    name, weight, bias, eps = norm
    h = (
        dense.rms_norm(x, weight, eps)
        if name == "rmsnorm"
        else dense.layer_norm(x, weight, bias, eps)
    )
    wide = dense.linear(h, up, up_bias)
    act = {"gelu_tanh": dense.gelu_tanh, "gelu_erf": dense.gelu_erf, "swiglu": dense.swiglu}[kind]
    return np.asarray(x, np.float64) + dense.linear(act(wide), down, down_bias)
