"""Diagonal and shift state spaces in plain float64, as filters and token by token.

Sources: S4D (Gu et al. 2022, arXiv 2206.11893), H3 (Fu et al. 2022, arXiv 2212.14052) and its code.
Letters: C channels, S modes (one of each conjugate pair), K taps, L length, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config_ssm import H3Config

F64 = NDArray[np.float64]
C128 = NDArray[np.complex128]
Tensors = Mapping[str, NDArray[Any]]


def discretized(t: Tensors, discretization: str) -> tuple[C128, C128, C128]:
    """A, B, C [C, S] of x[t] = A x[t - 1] + B u[t], y[t] = 2 Re sum_s C_s x_s[t]."""
    a = -np.exp(t["log_decay"].astype(float)) + 1j * t["frequency"].astype(float)
    dt = np.exp(t["log_dt"].astype(float))[:, None]
    b, c = (t[name][..., 0] + 1j * t[name][..., 1].astype(float) for name in "BC")
    if discretization == "bilinear":
        return (1 + a * dt / 2) / (1 - a * dt / 2), b * dt / (1 - a * dt / 2), c
    return np.exp(a * dt), b * (np.exp(a * dt) - 1) / a, c


def diagonal_taps(t: Tensors, discretization: str, L: int) -> F64:
    """k[c, l] = 2 Re sum_s C B A^l: [C, L]."""
    a, b, c = discretized(t, discretization)
    taps: F64 = 2 * np.stack([(b * c * a**time).real.sum(axis=1) for time in range(L)], axis=1)
    return taps


def diagonal_recurrence(t: Tensors, discretization: str, u: F64) -> F64:
    """The same convolved with u [L, C], one step after the other."""
    a, b, c = discretized(t, discretization)
    x = np.zeros_like(a)
    y = np.empty(u.shape)
    for time in range(len(u)):
        x = a * x + b * u[time][:, None]
        y[time] = 2 * (c * x).real.sum(axis=1)
    return y


def shift_taps(t: Tensors) -> F64:
    """k[c, l] = sum_n B[c, n] C[c, n + l], [C, K]."""
    b, c = t["B"].astype(float), t["C"].astype(float)
    K = b.shape[1]
    return np.stack([(b[:, : K - n] * c[:, n:]).sum(axis=1) for n in range(K)], axis=1)


def shift_recurrence(t: Tensors, u: F64) -> F64:
    """The same convolved with u [L, C]: states move on by one, and B u is added."""
    b, c = t["B"].astype(float), t["C"].astype(float)
    s = np.zeros_like(b)
    y = np.empty(u.shape)
    for time in range(len(u)):
        s = np.concatenate([np.zeros((len(s), 1)), s[:, :-1]], axis=1) + b * u[time][:, None]
        y[time] = (c * s).sum(axis=1)
    return y


def h3(config: H3Config, t: Tensors, q: F64, k: F64, v: F64) -> F64:
    """q, k, v [L, D] to out [L, D] without the last linear layer; channel i H + h is dimension i of
    head h. By the recurrences: `reference.model.h3` has the convolutions.
    """
    d, heads = config.head_dim, q.shape[1] // config.head_dim
    s = shift_recurrence(under(t, "shift_filter."), k) + t["shift_skip"] * k
    out = np.zeros_like(q)
    for i in range(d):
        for j in range(d):
            own, other = (slice(n * heads, (n + 1) * heads) for n in (i, j))
            kv = s[:, own] * v[:, other]
            y = diagonal_recurrence(under(t, "filter."), config.discretization, kv)
            out[:, other] += q[:, own] * (y + t["skip"] * kv)
    return out


def under(t: Tensors, prefix: str) -> dict[str, NDArray[Any]]:
    """The tensors below a prefix, with it removed."""
    return {n.removeprefix(prefix): v for n, v in t.items() if n.startswith(prefix)}
