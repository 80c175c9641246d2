"""A convolution whose taps lie at lags that the input chooses, by attention among the lags.

With x the normed input, zero before the start, and lags l_1 .. l_k of a position t:

    w_i = softmax over i of <x[t], x[t - l_i]>;   y[t] = sum_i w_i x[t - l_i + 1]

that is, what followed the rows like this one. Lags chosen over the whole sequence are those of a
notebook of Zoology (HazyResearch/zoology, pull request 2); choosing them causally, from prefix sums
of the autocorrelation or from repeated tokens, is our form. There are no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config_selection import AutocorrelationConfig
from ..context import Context
from ..lag_state import LagState, lag_bytes
from ..norm import Norm
from ..online_taps import Convolutions, OnlineTaps

Floats = NDArray[np.float32]
F64 = NDArray[np.float64]
Ids = NDArray[np.int32]
Lags = NDArray[np.int64]


class Autocorrelation:
    """One layer; its states are those of the causal ways to choose lags."""

    taps: ClassVar[list[OnlineTaps]] = []

    def __init__(
        self,
        config: AutocorrelationConfig,
        tensors: Mapping[str, Floats],  # noqa: ARG002 (every mixer is made alike)
        d_model: int,
        convolutions: Convolutions,  # noqa: ARG002
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.causal = config.lags != "whole"
        self.reach = (config.max_lag or 1) - 1  # the longest lag
        # A note is the token, or the autocorrelation up to this row in words of 32 bits.
        self.words = 2 * self.reach if config.lags == "running" else 1

    def new_state(self) -> LagState:
        """Nothing taken in."""
        return LagState(self.reach, self.d_model, self.words)

    def extend(
        self, states: Sequence[LagState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        h = norm(x, ctx.threads)
        for b, first, last in ctx.segments():
            own = slice(first, last)
            if not self.causal:
                lags = np.tile(whole_lags(h[own], self.config.top_k), (last - first, 1))
                x[own] += follow(h[own], 0, lags, np.ones(lags.shape, np.bool_))
                continue
            state = self.new_state() if states is None else states[b]
            before = len(state.rows)
            rows = np.concatenate([state.rows, h[own]])
            lags, present, notes = self._lags(state, rows, ctx.ids[own], ctx.threads)
            x[own] += follow(rows, before, lags, present)
            if states is not None and ctx.keep:
                state.take_in(h[own], notes)

    def _lags(
        self, state: LagState, rows: Floats, ids: Ids, threads: int
    ) -> tuple[Lags, NDArray[np.bool_], Ids]:
        """Of n new rows: their lags [n, k], which of these are there, and their notes [n, W]."""
        k, before = self.config.top_k, len(state.rows)
        if self.config.lags == "running":
            products = kernels.lag_products(rows, before, self.reach, threads=threads)
            sums = np.zeros((1 + len(products), self.reach))
            if before:
                sums[0] = state.notes[-1].view(np.float64)
            sums[1:] = products
            np.cumsum(sums, axis=0, out=sums)  # one chain of additions, however rows are cut
            lags = np.argsort(-sums[1:], axis=1, kind="stable")[:, :k] + 1
            return lags, np.ones(lags.shape, np.bool_), sums[1:].view(np.int32)
        nothing = np.full(max(0, self.reach - before), -1, np.int32)
        known = np.concatenate([nothing, state.notes[:, 0], ids])[-(self.reach + len(ids)) :]
        windows = np.lib.stride_tricks.sliding_window_view(known, self.reach + 1)
        repeated = windows[:, -2::-1] == windows[:, -1:]  # [n, reach], lags 1, 2, ..
        order = np.argsort(~repeated, axis=1, kind="stable")[:, :k]
        return order + 1, np.take_along_axis(repeated, order, axis=1), ids[:, None]

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:  # noqa: ARG002
        """See Mixer."""
        row = 4 * self.d_model * rows
        each = {"whole": 64, "running": 28 * self.reach, "repeats": 16 * self.reach}
        return [
            ("normalised rows", 2 * row),
            ("matched rows", 4 * row),
            ("choice of lags", (each[self.config.lags] + 48 * self.config.top_k) * rows),
        ]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:  # noqa: ARG002
        """See Mixer."""
        return lag_bytes(self.reach, self.d_model, self.words)


def whole_lags(x: Floats, top_k: int) -> Lags:
    """int64 [min(top_k, T - 1)]: lags 1 .. T - 1 with the largest sum over t of <x[t], x[t - l]>.

    Of equal ones the shorter. By transforms of twice the length, in float64, a channel at a time.
    """
    length = len(x)
    power = np.zeros(length + 1)
    for channel in x.T:
        spectrum = np.fft.rfft(channel.astype(np.float64), 2 * length)
        power += spectrum.real**2 + spectrum.imag**2
    r = np.fft.irfft(power, 2 * length)[1:length]
    return np.argsort(-r, kind="stable")[:top_k].astype(np.int64) + 1


def follow(rows: Floats, first: int, lags: Lags, present: NDArray[np.bool_]) -> Floats:
    """y [n, D] of rows from `first` on, where lags [n, k] are `present`; zero where none is."""
    x = rows[first:]
    y = np.zeros_like(x)
    if lags.shape[1] == 0:
        return y
    padded = np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows])
    at = np.arange(first, len(rows))[:, None] - lags + 1  # in `padded`, whose first row is zero
    scores = np.full(lags.shape, -np.inf)
    for i in range(lags.shape[1]):
        own = (x * padded[np.maximum(at[:, i], 0)]).sum(axis=1)
        scores[:, i] = np.where(present[:, i], own, -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), np.finfo(float).min))
    total = np.zeros(len(x))
    for i in range(lags.shape[1]):
        total += weights[:, i]
        y += weights[:, i, None].astype(np.float32) * padded[np.maximum(at[:, i] + 1, 0)]
    y /= np.maximum(total, 1.0)[:, None].astype(np.float32)  # the largest weight is 1
    return y
