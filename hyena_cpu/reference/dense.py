"""Float64 statements of the dense kernels: products, norms, activations.

Shapes: T rows, K inputs, N outputs, D width, F half of a gated width.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def linear(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    activation: str = "none",
    residual: npt.ArrayLike | None = None,
) -> Array:
    """act(x [T, K] weight [N, K]^T + bias [N]) + residual [T, N]."""
    y = _f64(x) @ _f64(weight).T
    if bias is not None:
        y = y + _f64(bias)
    y = {"none": _f64, "gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf, "silu": silu}[activation](y)
    return y if residual is None else y + _f64(residual)


def bfloat16(x: npt.ArrayLike) -> Array:
    """x, float32, with 8 significant bits: the nearest such number, the even one of two."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return _f64(kept.astype(np.uint32).view(np.float32))


def layer_norm(
    x: npt.ArrayLike, weight: npt.ArrayLike, bias: npt.ArrayLike | None, eps: float
) -> Array:
    """(x - mean) / sqrt(var + eps) * weight [D] + bias [D] over rows of x [T, D]; var biased."""
    x = _f64(x)
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return _f64(scaled * _f64(weight) + (0.0 if bias is None else _f64(bias)))


def rms_norm(x: npt.ArrayLike, weight: npt.ArrayLike, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight [D] over rows of x [T, D]."""
    x = _f64(x)
    return _f64(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * _f64(weight))


def exponential(x: npt.ArrayLike) -> Array:
    """e^x, x clamped to [-87, 88]."""
    return _f64(np.exp(np.clip(_f64(x), -87.0, 88.0)))


def sigmoid(x: npt.ArrayLike) -> Array:
    """1 / (1 + e^-x), written so that e^-x cannot overflow."""
    return _f64(0.5 * (1.0 + np.tanh(0.5 * _f64(x))))


def gelu_tanh(x: npt.ArrayLike) -> Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), arXiv 1606.08415."""
    x = _f64(x)
    return _f64(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


def gelu_erf(x: npt.ArrayLike) -> Array:
    """x Phi(x), Phi the standard normal distribution, arXiv 1606.08415."""
    x = _f64(x)
    erfc = np.array([math.erfc(-v / math.sqrt(2.0)) for v in x.ravel()]).reshape(x.shape)
    return _f64(0.5 * x * erfc)


def silu(x: npt.ArrayLike) -> Array:
    """x sigmoid(x)."""
    return _f64(x) * sigmoid(x)


def swiglu(x: npt.ArrayLike) -> Array:
    """silu(a) * b for x [T, 2F] = a beside b, arXiv 2002.05202."""
    a, b = np.split(_f64(x), 2, axis=-1)
    return silu(a) * b


def glu(x: npt.ArrayLike) -> Array:
    """a * sigmoid(b) for x [T, 2F] = a beside b, arXiv 1612.08083."""
    a, b = np.split(_f64(x), 2, axis=-1)
    return _f64(a * sigmoid(b))


def _f64(x: npt.ArrayLike) -> Array:
    return np.asarray(x, np.float64)
