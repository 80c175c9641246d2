"""Long filters in plain float64 (Hyena paper section 3.3; HyenaDNA and safari formulas).

Letters: L taps, C channels, E features, P width of the MLP, S modes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import FilterConfig
from . import ssm

F64 = NDArray[np.float64]


def sine_mlp(
    features: F64, weights: Sequence[F64], biases: Sequence[F64], freqs: Sequence[F64]
) -> F64:
    """Hidden layers: a <- sin(freq * (a W^T + b)); features [L, E] to [L, P]."""
    a = features
    for weight, bias, freq in zip(weights, biases, freqs, strict=True):
        a = np.sin(freq * (a @ weight.T + bias))
    return a


def filter_block(
    hidden: F64, weight: F64, times: F64 | None, rates: F64 | None, shift: float, t0: int, t1: int
) -> F64:
    """Last layer and window: [C, t1 - t0] of hidden [L, P], weight [C, P], times [L], rates [C]."""
    h = weight @ hidden[t0:t1].T
    if times is None or rates is None:
        return h
    return h * (np.exp(-rates[:, None] * times[None, t0:t1]) + shift)


def positional_features(L: int, E: int) -> F64:
    """z [L, E] = time, cos(f w), -sin(f w), as in HyenaDNA and safari."""
    t = np.arange(L) / (L - 1)
    w = 2 * math.pi * np.arange(L) / L
    f = np.linspace(1e-4, (E - 1) // 2 - 1, (E - 1) // 2)
    angle = w[:, None] * f
    return np.concatenate([t[:, None], np.cos(angle), -np.sin(angle)], axis=1)


def window_features(L: int, bands: int) -> F64:
    """[L, 2 bands + 1] = u, cos(2 pi u f), sin(2 pi u f) with u = t / L, of sine_window."""
    u = np.arange(L) / L
    angle = 2 * math.pi * u[:, None] * np.linspace(1e-4, bands - 1, bands)
    return np.concatenate([u[:, None], np.cos(angle), np.sin(angle)], axis=1)


def decay_rates(C: int) -> F64:
    """delta [C]: channel c falls to 0.01 after 1.5 (first) to 0.3 (last) of the range."""
    return np.linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, C)


def modal(poles: NDArray[Any], residues: NDArray[Any], L: int) -> F64:
    """h[c, t] = Re sum_s residue[c, s] pole[c, s]^t; both [C, S, 2] as (real, imaginary)."""
    h = np.zeros((poles.shape[0], L))
    for c in range(poles.shape[0]):
        for s in range(poles.shape[1]):
            term = complex(*residues[c, s])
            for t in range(L):
                h[c, t] += term.real
                term *= complex(*poles[c, s])
    return h


def relu_mlp(t: Mapping[str, F64]) -> F64:
    """[C, L]: features [L, E] through one hidden layer of ReLUs (Zoology's implicit BaseConv)."""
    hidden = np.maximum(t["features"] @ t["linear.0.weight"].T + t["linear.0.bias"], 0)
    return (hidden @ t["linear.1.weight"].T + t["linear.1.bias"]).T


def soft_threshold(taps: NDArray[Any], threshold: float) -> F64:
    """sign(k) max(|k| - threshold, 0)."""
    k = taps.astype(np.float64)
    return np.sign(k) * np.maximum(np.abs(k) - threshold, 0)


def long_filter(config: FilterConfig, tensors: Mapping[str, NDArray[Any]]) -> F64:
    """All taps [C, L] of a filter from its native tensors."""
    if config.kind == "explicit":
        return soft_threshold(tensors["taps"], config.threshold)
    if config.kind == "ssm_diag":
        return ssm.diagonal_taps(tensors, config.discretization, config.taps)
    if config.kind == "shift":
        return ssm.shift_taps(tensors)
    if config.kind == "modal":
        return modal(tensors["poles"], tensors["residues"], config.taps)
    wide = {name: value.astype(np.float64) for name, value in tensors.items()}
    if config.kind == "relu_mlp":
        return relu_mlp(wide)
    S, L = config.sine_layers, config.taps
    features = wide["features"] if config.kind == "implicit" else window_features(L, config.bands)
    hidden = sine_mlp(
        features,
        [wide[f"linear.{k}.weight"] for k in range(S)],
        [wide[f"linear.{k}.bias"] for k in range(S)],
        [wide[f"freq.{k}"] for k in range(S)],
    )
    times = rates = None
    if config.modulate and config.kind == "implicit":
        times, rates = wide["times"], np.abs(wide["deltas"])
    elif config.modulate:
        times, rates = np.arange(L, dtype=np.float64), np.exp(wide["log_rate"])
    shift = config.shift if config.kind == "implicit" else 0.0
    h = filter_block(hidden, wide[f"linear.{S}.weight"], times, rates, shift, 0, L)
    if config.normalize == "channel_l1":
        h /= np.abs(h).sum(axis=0, keepdims=True)
    elif config.normalize == "time_l2":
        h /= np.sqrt(np.square(h).sum(axis=1, keepdims=True)) + 1e-6
    return h
