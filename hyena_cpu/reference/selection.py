"""Float64 statements of attention for chosen positions and of convolutions at chosen lags.

Plain and direct. The learned choices over a whole sequence are those of Zoology (Arora et al. 2023,
SelectiveLookups, SigmoidLookups, SMA), the autocorrelation over one that of a notebook in its pull
request 2; the causal choices are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..config_selection import AutocorrelationConfig, SelectionConfig

F64 = NDArray[np.float64]
Ids = NDArray[np.int32]
WORD = (1 << 64) - 1


def selection(config: SelectionConfig, t: Mapping[str, F64], x: F64, ids: Ids, attn: F64) -> F64:
    """x + s attn at chosen positions and x elsewhere, with attn [T, D] that of every position."""
    s = scores(config, t, x)
    y = x.copy()
    for i in chosen(config, s, ids):
        y[i] += s[i] * attn[i]
    return y


def scores(config: SelectionConfig, t: Mapping[str, F64], x: F64) -> F64:
    """s [T]: the learned score of every position; 1 where nothing is learned."""
    if "score.weight" not in t:
        return np.ones(len(x))
    z = x @ t["score.weight"].T + t.get("score.bias", 0.0)
    if config.choose == "softmax_top":
        e = np.exp(z[:, 0] - z.max())
        return np.asarray(e / e.sum())
    if config.choose == "sma_top":
        e = np.exp((z - z.max(axis=1, keepdims=True)) / t["score.temperature"])
        return np.asarray(e[:, 1] / e.sum(axis=1))
    return np.asarray(1.0 / (1.0 + np.exp(-z[:, 0])))


def chosen(config: SelectionConfig, s: F64, ids: Ids) -> list[int]:
    """The chosen positions, in order."""
    every = range(len(ids))
    if config.choose == "all":
        return list(every)
    if config.choose == "random":
        return [i for i in every if uniform(config.seed or 0, i) < (config.share or 0.0)]
    if config.choose == "token_seen":
        return [i for i in every if ids[i] in ids[:i]]
    if config.choose == "bigram_seen":
        pairs = list(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
        return [i for i in every if i > 0 and pairs[i - 1] in pairs[: i - 1]]
    if config.choose == "running_top":
        steps = np.rint(s * 1e5)
        return [i for i in every if (steps[:i] >= steps[i]).sum() < (config.count or 1)]
    count = config.count or math.ceil(math.sqrt(len(s)))
    return sorted(sorted(every, key=lambda i: -s[i])[:count])


def uniform(seed: int, position: int) -> float:
    """(m(m(seed) + position) >> 11) 2^-53, m the finaliser of SplitMix64 (Steele et al. 2014)."""
    return (_mixed((_mixed(seed) + position) & WORD) >> 11) * 2.0**-53


def _mixed(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def autocorrelation(config: AutocorrelationConfig, x: F64, ids: Ids) -> F64:
    """y[t] = sum_i w_i x[t - l_i + 1], w = softmax over i of <x[t], x[t - l_i]>, at the lags of t.

    x is zero before the start; y is zero where t has no lags.
    """
    y = np.zeros_like(x)
    for t in range(len(x)):
        lags = lags_of(config, x, ids, t)
        if not lags:
            continue
        e = np.array([x[t] @ _row(x, t - lag) for lag in lags])
        e = np.exp(e - e.max())
        for w, lag in zip(e / e.sum(), lags, strict=True):
            y[t] += w * _row(x, t - lag + 1)
    return y


def lags_of(config: AutocorrelationConfig, x: F64, ids: Ids, t: int) -> list[int]:
    """The lags of position t, at most top_k; of equally good ones the shorter."""
    if config.lags == "repeats":
        reach = min(t, (config.max_lag or 1) - 1)
        return [lag for lag in range(1, reach + 1) if ids[t - lag] == ids[t]][: config.top_k]
    whole = config.lags == "whole"
    seen = x if whole else x[: t + 1]
    lags = range(1, len(x) if whole else config.max_lag or 1)
    r = {lag: float((seen[lag:] * seen[: max(0, len(seen) - lag)]).sum()) for lag in lags}
    return sorted(lags, key=lambda lag: -r[lag])[: config.top_k]


def lag_products(rows: F64, first: int, reach: int) -> F64:
    """p [n, reach] of n rows from `first` on: p[i, l - 1] is that of row first + i with the one l
    rows before it, zero before the start.
    """
    rows = np.asarray(rows, np.float64)
    p = np.zeros((len(rows) - first, reach))
    for i in range(len(p)):
        for lag in range(1, min(reach, first + i) + 1):
            p[i, lag - 1] = rows[first + i] @ rows[first + i - lag]
    return p


def _row(x: F64, t: int) -> F64:
    return x[t] if t >= 0 else np.zeros(x.shape[1])
