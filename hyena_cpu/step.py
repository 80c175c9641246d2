"""The decode step as one call: a model's layers recorded once, for csrc/step.cpp to go through.

It has the bits of `Block.extend` for one row of each sequence. A model with a layer of another kind
has no recorded step.

Shapes: B sequences, V rows of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .blocks import Block, IdentityMlp, Mlp
from .conv_state import ConvState
from .kv_cache import KVCache
from .linear import Linear
from .mixers.attention import Attention
from .mixers.hyena import Hyena
from .norm import Norm
from .state import State

Floats = NDArray[np.float32]


class HyenaLayer:
    """What a Hyena layer's states are to the step."""

    def __init__(self, plan: kernels.StepPlan, mixer: Hyena, norm: Norm) -> None:
        self.mixer, self.norm = mixer, norm
        plan.hyena(
            norm.weights,
            mixer.in_proj.packed,
            mixer.in_proj.bias,
            mixer.short_taps,
            mixer.short_bias,
            mixer.skips,
            mixer.out_proj.packed,
            mixer.out_proj.bias,
        )

    def parts(self, state: ConvState, threads: int) -> list[Any]:
        """Its tail and convolutions, ready for one row."""
        tail = self.mixer.tail(state)
        if not tail.kernel.known:
            tail.make_rows(lambda x: self.mixer.project(x, self.norm, threads))
        return [tail.kernel, *[conv.make_room(threads) for conv in state.convs]]

    def took_in(self, state: ConvState) -> None:
        """The parts have taken the row in themselves."""


class AttentionLayer:
    """What an attention layer's states are to the step."""

    def __init__(self, plan: kernels.StepPlan, mixer: Attention, norm: Norm) -> None:
        self.mixer = mixer
        rotary = mixer.config.rotary
        plan.attention(
            norm.weights,
            mixer.qkv.packed,
            mixer.qkv.bias,
            mixer.config.heads,
            None if rotary is None else (rotary.base, rotary.dims or mixer.head_width),
            mixer.sliding,
            mixer.out_proj.packed,
            mixer.out_proj.bias,
        )

    def parts(self, cache: KVCache, threads: int) -> list[Any]:  # noqa: ARG002
        """The cache, with room for one row."""
        cache.make_room(1)
        return [cache.keys, cache.values, cache.length, self.mixer.first_slot(cache)]

    def took_in(self, cache: KVCache) -> None:
        """One slot more is in use."""
        cache.length += 1
        cache.trim()


class RecordedStep:
    """One token of each of several sequences through a whole model."""

    def __init__(self, plan: kernels.StepPlan, layers: list[HyenaLayer | AttentionLayer]) -> None:
        self._plan, self._layers = plan, layers

    def run(self, states: Sequence[State], tokens: list[int], threads: int) -> Floats:
        """Logits [B, V] after tokens that each state's layers take in."""
        parts: list[list[Any]] = []
        for state in states:
            own: list[Any] = []
            for layer, remembered in zip(self._layers, state.layers, strict=True):
                own += layer.parts(remembered, threads)  # type: ignore[arg-type]
            parts.append(own)
        positions = [state.position for state in states]
        logits = self._plan.run(tokens, positions, parts, threads=threads)
        for state in states:
            for layer, remembered in zip(self._layers, state.layers, strict=True):
                layer.took_in(remembered)  # type: ignore[arg-type]
        return logits


# Multiply-adds that pay for one more thread: some 20 us of work.
WORTH = 1 << 18


def record(
    embedding: Floats,
    positions: Floats | None,
    blocks: list[Block],
    norm: Norm,
    head: Linear,
    worth: int = WORTH,
) -> RecordedStep | None:
    """The step of these layers; None if one of them is of a kind that cannot be recorded."""
    plan = kernels.StepPlan(embedding, positions, worth)
    layers: list[HyenaLayer | AttentionLayer] = []
    for block in blocks:
        if isinstance(block.mixer, Hyena) and block.mixer.causal:
            layers.append(HyenaLayer(plan, block.mixer, block.norm1))
        elif isinstance(block.mixer, Attention):
            layers.append(AttentionLayer(plan, block.mixer, block.norm1))
        else:
            return None
        _record_mlp(plan, block.mlp)
    plan.head(norm.weights, head.packed, head.bias)
    return RecordedStep(plan, layers)


def _record_mlp(plan: kernels.StepPlan, mlp: Mlp | IdentityMlp | None) -> None:
    if isinstance(mlp, IdentityMlp):
        plan.identity(mlp.norm.weights)
    elif mlp is not None:
        plan.mlp(
            mlp.norm.weights,
            mlp.up.packed,
            mlp.up.bias,
            mlp.config.kind,
            mlp.down.packed,
            mlp.down.bias,
        )
