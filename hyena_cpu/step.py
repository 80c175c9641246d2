"""The decode step as one call: a model's layers recorded once, for csrc/step.cpp to go through.

It has the bits of `Block.extend` for one row of each sequence. A model with a layer of another kind
has no recorded step.

Shapes: B sequences, V rows of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .blocks import Block, IdentityMlp, Mlp
from .conv_state import ConvTail
from .kv_cache import KVCache
from .linear import Linear
from .mixers.attention import Attention
from .mixers.hyena import Hyena
from .norm import Norm
from .online import OnlineConv
from .state import State
from .step_plan import FOR_EVER

Floats = NDArray[np.float32]


class Seat:
    """What the layers of one state remember, sorted as `StepTape.run` takes it.

    It is good until the state changes in another way than by recorded steps.
    """

    def __init__(self, blocks: Sequence[Block], layers: Sequence[Any]) -> None:
        self._convs: list[OnlineConv] = []
        self._tails: list[tuple[ConvTail, Hyena, Norm]] = []
        self._caches: list[tuple[KVCache, Attention]] = []
        self._kernel: kernels.StepSeat | None = None
        self._left = 0  # steps that it is ready for
        for block, layer in zip(blocks, layers, strict=True):
            if isinstance(block.mixer, Hyena):
                self._tails.append((block.mixer.tail(layer), block.mixer, block.norm1))
                self._convs += layer.convs
            else:
                self._caches.append((layer, cast(Attention, block.mixer)))

    def ready(self, tape: kernels.StepTape, threads: int) -> kernels.StepSeat:
        """The tails and convolutions, with room for one row more: it is to be taken in."""
        kernel = self._kernel
        if kernel is None or self._left == 0:
            for tail, mixer, norm in self._tails:
                tail.make_rows(partial(mixer.project, norm=norm, threads=threads))
            convs = [conv.make_room(threads) for conv in self._convs]
            kernel = tape.seat([tail.kernel for tail, *_ in self._tails], convs)
            self._kernel = kernel
            self._left = min((conv.sure for conv in self._convs), default=FOR_EVER)
        self._left -= 1
        return kernel

    def caches(self) -> list[tuple[Floats, Floats, int, int]]:
        """The caches, with room for one row more."""
        found = []
        for cache, mixer in self._caches:
            cache.make_room(1)
            found.append((cache.keys, cache.values, cache.length, mixer.first_slot(cache)))
        return found

    def took_in(self) -> None:
        """A row is in: of a cache, one slot more is in use; the others know."""
        for cache, _ in self._caches:
            cache.length += 1
            cache.trim()


class RecordedStep:
    """One token of each of several sequences through a whole model."""

    def __init__(self, tape: kernels.StepTape, blocks: list[Block]) -> None:
        self._tape, self._blocks = tape, blocks

    def run(self, states: Sequence[State], tokens: list[int], threads: int) -> Floats:
        """Logits [B, V] after tokens that each state's layers take in."""
        positions, seats, caches = [], [], []
        for state in states:
            if state.seat is None:
                state.seat = Seat(self._blocks, state.layers)
            positions.append(state.position)
            seats.append(state.seat.ready(self._tape, threads))
            caches.append(state.seat.caches())
        logits = self._tape.run(tokens, positions, seats, caches, threads=threads)
        for state in states:
            state.seat.took_in()
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
    tape = kernels.StepTape(embedding, positions, worth)
    for block in blocks:
        if isinstance(block.mixer, Hyena) and block.mixer.causal:
            _record_hyena(tape, block.mixer, block.norm1)
        elif isinstance(block.mixer, Attention):
            _record_attention(tape, block.mixer, block.norm1)
        else:
            return None
        _record_mlp(tape, block.mlp)
    tape.head(norm.weights, head.packed, head.bias)
    return RecordedStep(tape, blocks)


def _record_hyena(tape: kernels.StepTape, mixer: Hyena, norm: Norm) -> None:
    tape.hyena(
        norm.weights,
        mixer.in_proj.packed,
        mixer.in_proj.bias,
        mixer.short_taps,
        mixer.short_bias,
        mixer.skips,
        mixer.out_proj.packed,
        mixer.out_proj.bias,
    )


def _record_attention(tape: kernels.StepTape, mixer: Attention, norm: Norm) -> None:
    rotary = mixer.config.rotary
    tape.attention(
        norm.weights,
        mixer.qkv.packed,
        mixer.qkv.bias,
        mixer.config.heads,
        None if rotary is None else (rotary.base, rotary.dims or mixer.head_width),
        mixer.sliding,
        mixer.out_proj.packed,
        mixer.out_proj.bias,
    )


def _record_mlp(tape: kernels.StepTape, mlp: Mlp | IdentityMlp | None) -> None:
    if isinstance(mlp, IdentityMlp):
        tape.identity(mlp.norm.weights)
    elif mlp is not None:
        tape.mlp(
            mlp.norm.weights,
            mlp.up.packed,
            mlp.up.bias,
            mlp.config.kind,
            mlp.down.packed,
            mlp.down.bias,
        )
