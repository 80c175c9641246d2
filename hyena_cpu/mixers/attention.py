"""Causal multi-head softmax attention with optional rotary positions and sliding or blocked window.

Scores are q . k / sqrt(head width); rotary positions turn the first half of a head with its
second half (Su et al. 2021), angles in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from ..config import AttentionConfig
from ..context import Context
from ..kv_cache import KEY_BLOCK, SPARE_SLOTS, KVCache
from ..linear import Linear
from ..norm import Norm
from ..online_taps import Convolutions, OnlineTaps

Floats = NDArray[np.float32]


class Attention:
    """One attention layer: qkv [3 D, D] rows ordered q, k, v, each head-major."""

    causal = True
    taps: ClassVar[list[OnlineTaps]] = []

    def __init__(
        self,
        config: AttentionConfig,
        tensors: Mapping[str, Floats],
        d_model: int,
        convolutions: Convolutions,  # noqa: ARG002 (every mixer is made alike)
    ) -> None:
        self.config = config
        self.d_model = d_model
        self.head_width = d_model // config.heads
        self.qkv = Linear.from_tensors(tensors, "qkv", long=True)
        self.out_proj = Linear.from_tensors(tensors, "out_proj", long=True)

    def new_state(self) -> KVCache:
        """An empty cache of keys and values."""
        return KVCache(self.config.heads, self.head_width, self.config.window)

    def extend(self, states: Sequence[KVCache] | None, x: Floats, norm: Norm, ctx: Context) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""
        width = self.d_model
        h = norm(x, ctx.threads)
        qkv = self.qkv(h, ctx.threads, long=ctx.long)  # [T, 3 D]
        q, k, v = qkv[:, :width], qkv[:, width : 2 * width], qkv[:, 2 * width :]
        if self.config.rotary is not None:
            # q and k lie side by side: turned together, every angle is computed once.
            heads, rotary = 2 * self.config.heads, self.config.rotary
            both = qkv[:, : 2 * width]
            kernels.rotary(
                both, ctx.positions, heads, rotary.base, rotary.dims, threads=ctx.threads
            )
        for b, first, last in ctx.segments():
            cache = self.new_state() if states is None else states[b]
            cache = cache if ctx.keep else cache.fork()
            n = last - first
            cache.make_room(n)
            kernels.kv_append(cache.keys, cache.values, k[first:last], v[first:last], cache.length)
            for i, j, start in self._runs(cache, n):
                kernels.attend(
                    q[first + i : first + j],
                    cache.keys,
                    cache.values,
                    cache.length + i,
                    start,
                    self.sliding,
                    out=h[first + i : first + j],
                    threads=ctx.threads,
                )
            cache.length += n
            if states is not None:
                cache.trim()
        self.out_proj.add_to(x, h, ctx.threads, long=ctx.long)

    def _runs(self, cache: KVCache, n: int) -> Iterator[tuple[int, int, int]]:
        """(first, after the last, slot) of runs of n new rows that see nothing before the slot."""
        block, position = self.config.window, cache.position
        if block is None or not self.config.blocked:
            yield 0, n, 0
            return
        for edge in range(position // block * block, position + n, block):
            start, end = max(edge, position), min(edge + block, position + n)
            yield start - position, end - position, edge - cache.dropped

    def first_slot(self, cache: KVCache) -> int:
        """The first slot that the next row may see, whatever its window."""
        return next(self._runs(cache, 1))[2]

    @property
    def sliding(self) -> int:
        """Positions that a row sees, its own included; 0 if blocks or nothing bound them."""
        return 0 if self.config.blocked else self.config.window or 0

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:
        """See Mixer."""
        row = 4 * self.d_model * rows
        rest = [("normalised rows", row), ("projections", 3 * row)]
        if kept:  # counted with the state
            return rest
        # Of several sequences, all as long as the longest, one at a time.
        slots = -(-rows // (KEY_BLOCK if alone else 2 * KEY_BLOCK)) * KEY_BLOCK
        return [*rest, ("keys and values", 2 * 4 * self.d_model * slots)]

    def state_bytes(self, length: int, ahead: int | None = None) -> int:  # noqa: ARG002
        """See Mixer."""
        slots = length + length // 2  # see KVCache.make_room and trim
        if self.config.window is not None:
            slots = min(slots, 2 * (self.config.window + SPARE_SLOTS))
        return 2 * 4 * self.d_model * -(-slots // KEY_BLOCK) * KEY_BLOCK

    def prompt_bytes(self, length: int) -> int:
        """Bytes of one state that has taken in `length` tokens at once; see the planner."""
        return 2 * 4 * self.d_model * -(-length // KEY_BLOCK) * KEY_BLOCK
