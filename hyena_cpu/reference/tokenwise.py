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


def normalize(x: npt.ArrayLike, norm: Norm) -> Array:
    """norm(x), x [T, D]."""
    name, weight, bias, eps = norm
    if name == "rmsnorm":
        return dense.rms_norm(x, weight, eps)
    return dense.layer_norm(x, weight, bias, eps)


def project_conv(
    x: npt.ArrayLike,
    norm: Norm,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None,
    taps: npt.ArrayLike,
    short_bias: npt.ArrayLike | None,
    tail: npt.ArrayLike,
    parts: int,
) -> tuple[Array, Array]:
    """x [T, D], weight [C, D], taps [K, C], tail [K - 1, C] -> tiles [parts - 2, G, T, 16] of the
    first parts, and the product of the last two [G, T, 16].
    """
    projected = dense.linear(normalize(x, norm), weight, bias)
    tiles = conv.short_conv(projected, taps, short_bias, tail, parts)
    return tiles[:-2], tiles[-2] * tiles[-1]


def add_tiles(
    residual: npt.ArrayLike, z: npt.ArrayLike, weight: npt.ArrayLike, bias: npt.ArrayLike | None
) -> Array:
    """residual [T, N] + z W^T + bias for tiles z [G, T, 16] and weight [N, K]."""
    rows = conv.tiles_to_rows(z, np.shape(weight)[1])
    return np.asarray(residual, np.float64) + dense.linear(rows, weight, bias)


def add_gated_tiles(
    x: npt.ArrayLike,
    norm: Norm,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None,
    taps: npt.ArrayLike,
    short_bias: npt.ArrayLike | None,
    tail: npt.ArrayLike,
    z: npt.ArrayLike,
    out_weight: npt.ArrayLike,
    out_bias: npt.ArrayLike | None,
) -> Array:
    """x [T, D] + (x_0 * z) V^T + out_bias for tiles z [G, T, 16] and out_weight V [D, W].

    x_0 is what the short convolution makes of the first W channels of the projection of x: weight
    [C, D], taps [K, C], tail [K - 1, C].
    """
    width = np.shape(out_weight)[1]
    projected = dense.linear(normalize(x, norm), weight, bias)[:, :width]
    own = None if short_bias is None else np.asarray(short_bias)[:width]
    before = np.asarray(tail)[:, :width]
    gate = conv.short_conv(projected, np.asarray(taps)[:, :width], own, before, 1)[0]
    return add_tiles(x, gate * np.asarray(z, np.float64), out_weight, out_bias)


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
    wide = dense.linear(normalize(x, norm), up, up_bias)
    act = {"gelu_tanh": dense.gelu_tanh, "gelu_erf": dense.gelu_erf, "swiglu": dense.swiglu}[kind]
    return np.asarray(x, np.float64) + dense.linear(act(wide), down, down_bias)
