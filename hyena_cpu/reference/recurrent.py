"""Recurrent mixers in float64, each in forms that have nothing in common but their result.

`linear_scan`, `wkv_scan` and `selective_scan` state the kernels of these names: token by token,
with a state. The `.._parallel` functions say the same as sums over all pairs of tokens, and
`retention_chunked` as both in turn. The layers below are built on the parallel forms.

Sources: Based (arXiv 2402.18668), RetNet (arXiv 2307.08621), RWKV-v4 (arXiv 2305.13048), Mamba
(arXiv 2312.00752).

Shapes: T tokens, D width, H heads, f width of a query, F features, V values of a head, N numbers
per channel. q, k [T, H, f], v [T, H, V].
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..config_recurrent import (
    BasedConfig,
    MambaConfig,
    RecurrentConfig,
    RetNetConfig,
    RwkvChannelConfig,
    RwkvTimeConfig,
)
from .dense import sigmoid

F64 = NDArray[np.float64]
Tensors = Mapping[str, F64]

# ---- linear attention


def taylor(x: F64) -> F64:
    """[.., f] -> [.., 1 + f + f^2]: features with phi(q) . phi(k) = 1 + s + s^2 / 2 for
    s = q . k / sqrt(f) (arXiv 2402.18668, section 4.1).
    """
    f = x.shape[-1]
    pairs = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], f * f)
    ones = np.ones((*x.shape[:-1], 1))
    return np.concatenate([ones, x / f**0.25, pairs / math.sqrt(2 * f)], axis=-1)


def linear_scan(
    q: F64, k: F64, v: F64, decay: F64, state: F64, eps: float | None = None
) -> tuple[F64, F64]:
    """S = decay S + k^T v, y = q S; with eps divided by the same sums of ones instead of v.

    q, k hold features already. decay [H]; state [H, f, V], or [H, f, V + 1] with eps. Returns y
    [T, H, V] and the state after the last token.
    """
    if eps is not None:
        v = np.concatenate([v, np.ones((*v.shape[:2], 1))], axis=2)
    y = np.empty((len(q), *v.shape[1:]))
    for t in range(len(q)):
        state = decay[:, None, None] * state + k[t][:, :, None] * v[t][:, None, :]
        y[t] = np.einsum("hf,hfv->hv", q[t], state)
    return (y if eps is None else y[..., :-1] / (y[..., -1:] + eps)), state


def based_parallel(q: F64, k: F64, v: F64, eps: float) -> F64:
    """y_t = sum_{j<=t} a_tj v_j / (sum_{j<=t} a_tj + eps), a = 1 + s + s^2 / 2 [T, H, V]."""
    s = np.einsum("thf,jhf->htj", q, k) / math.sqrt(q.shape[2])
    a = np.tril(1 + s + s * s / 2)
    return np.einsum("htj,jhv->thv", a, v) / (a.sum(axis=2).T[..., None] + eps)


def retention_parallel(q: F64, k: F64, v: F64, decay: F64) -> F64:
    """(q k^T * M) v, M_tj = decay^(t-j) for j <= t (arXiv 2307.08621, equation 5)."""
    ago = np.arange(len(q))[:, None] - np.arange(len(q))[None, :]
    mask = np.where(ago >= 0, decay[:, None, None] ** np.maximum(ago, 0), 0.0)
    return np.einsum("htj,jhv->thv", np.einsum("thf,jhf->htj", q, k) * mask, v)


def retention_chunked(q: F64, k: F64, v: F64, decay: F64, size: int) -> F64:
    """The parallel form inside chunks, a state between them (equation 7)."""
    state = np.zeros((len(decay), q.shape[2], v.shape[2]))
    out = []
    for begin in range(0, len(q), size):
        own = slice(begin, begin + size)
        n = len(q[own])
        reached = decay[:, None] ** (1 + np.arange(n))  # [H, n]: what is left of the state
        y = retention_parallel(q[own], k[own], v[own], decay)
        out.append(y + np.einsum("ht,thf,hfv->thv", reached, q[own], state))
        left = decay[:, None] ** (n - 1 - np.arange(n))
        added = np.einsum("ht,thf,thv->hfv", left, k[own], v[own])
        state = (decay**n)[:, None, None] * state + added
    return np.concatenate(out)


# ---- RWKV-v4


def wkv_scan(k: F64, v: F64, w: F64, u: F64, state: F64) -> tuple[F64, F64]:
    """wkv_t = (sum_{j<t} e^(w (t-1-j) + k_j) v_j + e^(u + k_t) v_t) / (the same without v).

    k, v [T, D]; w <= 0 and u [D]. state [3, D]: numerator and denominator over e^m, and m, which
    is -inf before the first token. Returns [T, D] and the state after the last one.
    """
    above, below, top = state
    y = np.empty_like(k)
    for t in range(len(k)):
        m = np.maximum(top, u + k[t])
        old, own = np.exp(top - m), np.exp(u + k[t] - m)
        y[t] = (old * above + own * v[t]) / (old * below + own)
        m = np.maximum(top + w, k[t])
        old, own = np.exp(top + w - m), np.exp(k[t] - m)
        above, below, top = old * above + own * v[t], old * below + own, m
    return y, np.stack([above, below, top])


def wkv_parallel(k: F64, v: F64, w: F64, u: F64) -> F64:
    """The same as weighted means over all tokens before and the current one [T, D]."""
    length = len(k)
    ago = np.arange(length)[:, None] - np.arange(length)[None, :] - 1  # t - 1 - j
    exponent = np.maximum(ago, 0)[..., None] * w + k[None]  # [T, T, D]
    exponent[ago < 0] = -np.inf
    exponent[np.arange(length), np.arange(length)] = u + k
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.einsum("tjd,jd->td", weights, v) / weights.sum(axis=1)


# ---- Mamba


def selective_scan(
    x: F64, dt: F64, b: F64, c: F64, rates: F64, skip: F64, state: F64
) -> tuple[F64, F64]:
    """s_n = e^(d rates_n) s_n + d b_n x, y = sum_n c_n s_n + skip x, d = softplus(dt).

    x, dt [T, D]; b, c [T, N]; rates [D, N] not positive; skip [D]; state [D, N]. Returns [T, D] and
    the state after the last token.
    """
    d = softplus(dt)
    y = np.empty_like(x)
    for t in range(len(x)):
        state = np.exp(d[t][:, None] * rates) * state + (d[t] * x[t])[:, None] * b[t]
        y[t] = state @ c[t] + skip * x[t]
    return y, state


def selective_parallel(x: F64, dt: F64, b: F64, c: F64, rates: F64, skip: F64) -> F64:
    """y_t = sum_{j<=t} sum_n c_tn e^(rates_n (d_{j+1} + .. + d_t)) b_jn d_j x_j + skip x_t."""
    d = softplus(dt)
    y = skip * x
    for t in range(len(x)):
        # Sums from the end, without differences of large ones.
        later = np.concatenate([np.cumsum(d[t:0:-1], axis=0)[::-1], np.zeros((1, d.shape[1]))])
        kept = np.exp(later[:, :, None] * rates)  # [t + 1, D, N]
        y[t] += np.einsum("n,jdn,jn,jd->d", c[t], kept, b[: t + 1], (d * x)[: t + 1])
    return y


# ---- layers: x [T, D] is normalised; tensors are those of docs/formats.md


def mixer(config: RecurrentConfig, t: Tensors, x: F64) -> F64:
    """The operator a config describes, on one whole sequence."""
    if isinstance(config, BasedConfig):
        return based(config, t, x)
    if isinstance(config, RetNetConfig):
        return retnet(config, t, x)
    if isinstance(config, RwkvTimeConfig):
        return rwkv_time(t, x)
    if isinstance(config, RwkvChannelConfig):
        return rwkv_channel(t, x)
    return mamba(config, t, x)


def based(config: BasedConfig, t: Tensors, x: F64) -> F64:
    """proj, Taylor attention, proj."""
    q, k, v = (_heads(t, f"{name}_proj", x, config.heads) for name in "qkv")
    y = based_parallel(q, k, v, config.eps)
    return y.reshape(len(x), -1) @ t["out_proj.weight"].T


def retnet(config: RetNetConfig, t: Tensors, x: F64) -> F64:
    """Rotary positions, retention, group norm, gate (arXiv 2307.08621, equation 8)."""
    q, k, v = (_heads(t, f"{name}_proj", x, config.heads) for name in "qkv")
    hd = q.shape[2]
    angle = np.arange(len(x))[:, None] * config.base ** (-2.0 * np.arange(hd // 2) / hd)
    turn = np.exp(1j * angle)[:, None, :]
    q, k = _turned(q, turn), _turned(k, turn) / math.sqrt(hd)
    decay = 1.0 - np.exp2(-5.0 - np.arange(config.heads))
    y = retention_parallel(q, k, v, decay)
    y = y - y.mean(axis=2, keepdims=True)
    y = y / np.sqrt((y * y).mean(axis=2, keepdims=True) + config.eps)
    gate = x @ t["gate_proj.weight"].T
    return (gate * sigmoid(gate) * y.reshape(len(x), -1)) @ t["out_proj.weight"].T


def rwkv_time(t: Tensors, x: F64) -> F64:
    """sigmoid(r) * wkv(k, v), projected (arXiv 2305.13048, equations 11 to 17)."""
    r, k, v = (_shifted(t, name, x) @ t[f"{name}_proj.weight"].T for name in "rkv")
    y = wkv_parallel(k, v, -np.exp(t["time_decay"]), t["time_first"])
    return (sigmoid(r) * y) @ t["out_proj.weight"].T


def rwkv_channel(t: Tensors, x: F64) -> F64:
    """sigmoid(r) * value(relu(key)^2) (equation 18)."""
    r, k = (_shifted(t, name, x) @ t[f"{name}_proj.weight"].T for name in "rk")
    return sigmoid(r) * (np.maximum(k, 0.0) ** 2 @ t["v_proj.weight"].T)


def mamba(config: MambaConfig, t: Tensors, x: F64) -> F64:
    """Projection, short convolution, selective scan, gate (arXiv 2312.00752, algorithm 2)."""
    R, N, K = config.rank, config.state, config.conv_taps
    u, z = np.split(x @ t["in_proj.weight"].T + t.get("in_proj.bias", 0.0), 2, axis=1)
    conv = np.zeros_like(u) + t.get("short_conv.bias", 0.0)
    for ago in range(min(K, len(u))):
        conv[ago:] += t["short_conv.weight"][:, K - 1 - ago] * u[: len(u) - ago]
    u = conv * sigmoid(conv)
    r, b, c = np.split(u @ t["x_proj.weight"].T, [R, R + N], axis=1)
    dt = r @ t["dt_proj.weight"].T + t["dt_proj.bias"]
    y = selective_parallel(u, dt, b, c, -np.exp(t["A_log"]), t["skip"])
    return (y * z * sigmoid(z)) @ t["out_proj.weight"].T + t.get("out_proj.bias", 0.0)


# ---- pieces


def _heads(t: Tensors, name: str, x: F64, heads: int) -> F64:
    return (x @ t[f"{name}.weight"].T).reshape(len(x), heads, -1)


def _turned(x: F64, turn: NDArray[np.complex128]) -> F64:
    """x [T, H, hd]: element i turns with element i + hd/2."""
    first, second = np.split(x, 2, axis=2)
    pairs = (first + 1j * second) * turn
    return np.concatenate([pairs.real, pairs.imag], axis=2)


def _shifted(t: Tensors, name: str, x: F64) -> F64:
    """x mixed with the row before it, zeros before the first."""
    m = t[f"mix_{name}"]
    before = np.concatenate([np.zeros((1, x.shape[1])), x[:-1]])
    return x * m + before * (1 - m)


def softplus(x: F64) -> F64:
    """log(1 + e^x)."""
    return np.asarray(np.logaddexp(0.0, x))
