"""Attention for chosen positions only: y = x + s attn(x) there and y = x elsewhere.

attn is causal multi-head attention over all earlier positions, chosen or not. The learned choices
over whole sequences are those of Zoology (Arora et al. 2023): SelectiveLookups, SigmoidLookups and
SMA. They look ahead, so a layer with one is not causal; `running_top` is a causal form of ours. The
cost beside keys and values is that of the chosen queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config_selection import TOPS, WHOLE, SelectionConfig
from ..context import Context
from ..linear import Linear
from ..norm import Norm
from ..online_taps import Convolutions, OnlineTaps
from ..selection_state import SelectionState, selection_bytes
from . import choices

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
F64 = NDArray[np.float64]

_NO_NOTES: Ids = np.zeros(0, np.int32)


class Selection:
    """One layer: qkv [3 D, D] rows ordered q, k, v, each head-major, and out_proj of attention;
    `score` [1 or 2, D] of the learned choices.
    """

    taps: ClassVar[list[OnlineTaps]] = []

    def __init__(
        self,
        config: SelectionConfig,
        tensors: Mapping[str, Floats],
        d_model: int,
        convolutions: Convolutions,  # noqa: ARG002 (every mixer is made alike)
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.causal = config.choose not in WHOLE
        self.query = Linear.from_tensors(tensors, "qkv", slice(0, d_model))
        self.key_value = Linear.from_tensors(tensors, "qkv", slice(d_model, None))
        self.out_proj = Linear.from_tensors(tensors, "out_proj")
        self.score = Linear.from_tensors(tensors, "score") if config.choose in TOPS else None
        self.temperature = float(tensors.get("score.temperature", np.ones(1))[0])

    def new_state(self) -> SelectionState:
        """Nothing taken in."""
        noted = self.config.choose in ("token_seen", "bigram_seen", "running_top")
        heads = self.config.heads
        return SelectionState(heads, self.d_model // heads, noted)

    def extend(
        self, states: Sequence[SelectionState] | None, x: Floats, norm: Norm, ctx: Context
    ) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        h = norm(x, ctx.threads)
        strength = np.ones(len(x), np.float32)  # s
        chosen = np.zeros(len(x), np.bool_)
        notes = []
        for b, first, last in ctx.segments():
            rows = slice(first, last)
            before = _NO_NOTES if states is None else states[b].notes
            chosen[rows], own = self._choose(h[rows], before, rows, ctx, strength[rows])
            notes.append(own)
        at = np.flatnonzero(chosen)
        y = self._attention(states, h, at, notes, ctx)
        y *= strength[at, None]
        x += h
        x[at] += y

    def _choose(
        self, h: Floats, before: Ids, rows: slice, ctx: Context, strength: Floats
    ) -> tuple[NDArray[np.bool_], Ids]:
        """Which of the new rows h [n, D] of a sequence are chosen, and their notes [n]; `before`:
        the notes of all earlier rows.

        Writes learned scores to `strength` [n].
        """
        how, ids = self.config.choose, ctx.ids[rows]
        if how == "all":
            return np.ones(len(ids), np.bool_), ids
        if how == "random":
            share, seed = self.config.share or 0.0, self.config.seed or 0
            return choices.by_chance(ctx.positions[rows], share, seed), ids
        if how == "token_seen":
            return choices.token_seen(ids, before), ids
        if how == "bigram_seen":
            return choices.bigram_seen(ids, before), ids
        scores = self._scores(h, ctx.threads)
        strength[:] = scores
        if how == "running_top":
            steps = choices.steps_of(scores)
            return choices.running_top(steps, before, self.config.count or 1), steps
        count = self.config.count or math.isqrt(len(h) - 1) + 1  # ceil(sqrt(n))
        return choices.largest(scores, count), ids

    def _scores(self, h: Floats, threads: int) -> F64:
        """float64 [n]: the learned score of each row, in 0..1."""
        assert self.score is not None  # only learned choices ask
        z = self.score(h, threads).astype(np.float64)
        if self.config.choose == "softmax_top":
            weights = np.exp(z[:, 0] - z.max())
            shares: F64 = weights / weights.sum()
            return shares
        if self.config.choose == "sma_top":
            z = np.diff(z, axis=1) / self.temperature  # softmax over two, its second entry
        return 1.0 / (1.0 + np.exp(np.minimum(-z[:, 0], 700.0)))

    def _attention(
        self,
        states: Sequence[SelectionState] | None,
        h: Floats,
        at: NDArray[np.int64],
        notes: list[Ids],
        ctx: Context,
    ) -> Floats:
        """Takes in all rows h [T, D]; attn [m, D] of the rows `at` [m]."""
        kv = self.key_value(h, ctx.threads)  # [T, 2 D]
        k, v = kv[:, : self.d_model], kv[:, self.d_model :]
        q = self.query(h[at], ctx.threads)
        for b, first, last in ctx.segments():
            state = self.new_state() if states is None else states[b]
            state = state if ctx.keep else state.fork()
            state.take_in(k[first:last], v[first:last], notes[b])
            mine = slice(*np.searchsorted(at, (first, last)))
            slots = at[mine] + (state.position - last)
            keys, values = state.cache.keys, state.cache.values
            kernels.attend_at(q[mine], slots, keys, values, out=q[mine], threads=ctx.threads)
        return self.out_proj(q, ctx.threads)

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:  # noqa: ARG002
        """See Mixer."""
        row = 4 * self.d_model * rows
        return [
            ("normalised rows", row),
            ("projections", 2 * row),
            ("chosen rows", 3 * row),
            ("choice", 64 * rows),
            ("keys and values", 2 * row),
        ]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:  # noqa: ARG002
        """See Mixer."""
        return selection_bytes(length, self.d_model)
