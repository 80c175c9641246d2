"""The network: weights ready to run, from token ids to rows and from rows to numbers.

It knows rows of sequences end to end; what a sequence is to its caller is the engine's business.

Shapes: T tokens, D width, V = logits_width rows of the head.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernels, plan_phases, plan_states, planner, step
from .blocks import Block
from .checks import check_whole
from .config import ModelConfig
from .context import FEW_ROWS, context, split
from .errors import InputError, LimitError, ModelError
from .ids import token_ids
from .linear import Dtype, LayerTensors, Linear, Packing
from .norm import Norm
from .online_taps import Convolutions
from .state import State
from .step_plan import Decode
from .weights import Weights

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Progress = Callable[[int, int], None]

SPECTRA_BUDGET = 512 << 20  # bytes of transforms kept, or what a run leaves of max_memory

TRANSFORMED = ("hyena", "long_conv", "h3_conv", "base_conv", "h3", "s4d")  # kinds of mixers
MOST_IN_THIRDS = 1 << 26  # parameters, of which most take 10 bytes each then, not 4
PROGRESS_ROWS = 256  # calls on fewer tokens are over before anybody wonders

COMPAT = ("wrap_filter",)


class Network:
    """Embedding, blocks, norm and head, with how they are to be computed."""

    def __init__(
        self,
        weights: Weights,
        *,
        threads: int,
        max_memory: int | None = None,
        compat: Iterable[str] = (),
        dtype: Dtype = "float32",
        decode: Decode = "auto",
        on_progress: Progress | None = None,
    ) -> None:
        config, tensors = weights.config, weights.tensors
        self.config: ModelConfig = config
        self.folder = weights.folder
        self.generation = weights.generation
        self.notes = weights.notes
        _check_known("dtype", dtype, typing.get_args(Dtype))
        self.dtype: Dtype = dtype
        # States of rounded weights are those of another model.
        self.fingerprint = weights.fingerprint + ("" if dtype == "float32" else f"-{dtype}")
        self.threads = threads
        if isinstance(max_memory, float) and max_memory.is_integer():  # such as 2e9
            max_memory = int(max_memory)
        self.max_memory = max_memory
        if max_memory is not None:
            self.max_memory = check_whole("max_memory", max_memory, 0)
            kernels.bound_freed_memory()
        self.on_progress = on_progress
        self.compat = frozenset([compat] if isinstance(compat, str) else compat)
        for behaviour in sorted(self.compat):
            _check_known("compat", behaviour, COMPAT)
        self.num_parameters = weights.num_parameters
        _check_known("decode", decode, typing.get_args(Decode))
        self.decode: Decode = decode
        self.convolutions = Convolutions(SPECTRA_BUDGET, config.max_length, decode)
        self._thirds = self._has_thirds()
        layers = LayerTensors(tensors, Packing(dtype, kernels.Shelf(), self._thirds))
        self._embedding = tensors["embedding.weight"]
        self._positions = tensors.get("positions.weight")
        self.blocks = [
            Block(layer, config, layers.under(f"layers.{i}."), self.convolutions)
            for i, layer in enumerate(config.layers)
        ]
        if decode != "auto" and not any(one.stepped for one in plan_states.taps_of(self)):
            raise InputError(
                f"decode {decode!r} cannot act: {self.name} has no long convolution that goes on "
                "token by token"
            )
        self._norm = Norm(config.norm, tensors, "norm")
        self._head = self._classifier = None
        if config.classifier is not None:
            self._classifier = Linear.from_tensors(tensors, "classifier")
        else:
            name = "embedding" if config.tie_embeddings else "head"
            self._head = Linear(
                tensors[f"{name}.weight"], None, Packing(shelf=layers.packing.shelf)
            )
        self._recorded: step.RecordedStep | None = None
        # What steps have been checked for: lengths from .. to and a number of states, or rooms that
        # were made (as in `Engine._check_covered`) and a number of states.
        self._fitting: list[tuple[int, int, int]] = []
        self._fitting_rooms: tuple[set[tuple[int, int, int | None]], int] | None = None
        if self._head is not None:
            self._recorded = step.record(
                self._embedding, self._positions, self.blocks, self._norm, self._head
            )

    def _has_thirds(self) -> bool:
        """Where bits depend on how a sequence is cut anyway, and memory allows it."""
        if self.dtype != "float32" or not kernels.multiplies_thirds():
            return False
        convolves = any(layer.mixer.kind in TRANSFORMED for layer in self.config.layers)
        return convolves and self.num_parameters <= MOST_IN_THIRDS

    # ---- what it is

    @property
    def name(self) -> str:
        """The name in the config, else that of the folder."""
        return self.config.name or self.folder.name

    @property
    def max_length(self) -> int | None:
        """Most tokens a sequence may have; None if there is no limit."""
        return self.config.max_length

    @property
    def vocab_size(self) -> int:
        """Ids below this have a meaning; further rows of the logits are padding."""
        return self.config.vocab_size

    @property
    def logits_width(self) -> int:
        """Rows of the stored head, V."""
        return self.config.logits_width

    @property
    def numerics(self) -> dict[str, Any]:
        """How numbers are computed. Two runs with the same dtype and isa agree to the bit."""
        own = self.dtype == "bfloat16" and kernels.multiplies_pairs()
        isa = kernels.build + ("+bf16" if own else "")
        return {"dtype": self.dtype, "isa": isa, "threads": self.threads}

    @property
    def causal(self) -> bool:
        """Whether it can be continued token by token."""
        return all(block.mixer.causal for block in self.blocks)

    @property
    def branches(self) -> bool:
        """Whether sequences that begin alike can run through it side by side (`Context.prefix`)."""
        return all(getattr(block.mixer, "branches", False) for block in self.blocks)

    # ---- checks

    def check_ids(self, ids: ArrayLike, *, empty: bool = False) -> Ids:
        """ids as int32 [T], T > 0 unless they may be `empty`. InputError if they are none, or
        outside the embedding.
        """
        return token_ids(ids, self._embedding.shape[0], empty=empty)

    def check_length(self, length: int, batch: int = 1, **what: Any) -> None:
        """LimitError if a sequence of this length does not fit the model or `max_memory`.

        `what` goes to `planner.plan`, with no state unless it says so.
        """
        limit = self.max_length
        if limit is not None and length > limit:
            raise LimitError(
                f"the sequence has {length} tokens but {self.name} takes at most {limit}: "
                "shorten it or cut it into windows"
            )
        self._check_memory(length, batch, **({"state": False} | what))

    def _check_memory(self, length: int, batch: int = 1, **what: Any) -> None:
        if self.max_memory is not None:
            needed = planner.plan(self, length, batch, **what)
            needed.check(self.max_memory)
            left = self.max_memory - needed.needed
            self.convolutions.cache.limit(left - left // planner.KEPT_SHARE)
            # This call may keep what those steps were to have.
            self._fitting, self._fitting_rooms = [], None

    # ---- the forward pass

    def _rows(
        self,
        pieces: list[Ids],
        states: list[State] | None = None,
        *,
        depth: int | None = None,
        keep: bool = True,
        ahead: int | None = None,
        prefix: int = 0,
    ) -> Floats:
        """Residual stream [T, D] of pieces end to end after `depth` blocks (None: all of them).

        Every piece follows its state, or begins a sequence where there are none. keep: states take
        it in. ahead: and drop their histories but for so many further tokens. prefix: without
        states, rows of the first piece that every other one follows.

        A piece has the bits that it has by itself: where long ones have thirds, others go apart.
        """
        long = [len(piece) > FEW_ROWS for piece in pieces]
        if self._thirds and not prefix and any(long) and not all(long):
            rows: dict[int, Floats] = {}
            for kind in (True, False):
                own = [i for i, one in enumerate(long) if one is kind]
                batch = [pieces[i] for i in own]
                those = None if states is None else [states[i] for i in own]
                x = self._rows(batch, those, depth=depth, keep=keep, ahead=ahead)
                rows.update(zip(own, split(x, batch), strict=True))
            return np.concatenate([rows[i] for i in range(len(pieces))])
        if states is None:
            starts = [0, *[prefix] * (len(pieces) - 1)]
        else:
            starts = [state.position for state in states]
        ctx = context(pieces, starts, self.threads, self.compat, keep=keep, prefix=prefix)
        x = self._embedding[ctx.ids]
        if self._positions is not None:
            x += self._positions[ctx.positions]
        blocks = self.blocks[:depth]
        for i, block in enumerate(blocks):
            if i and type(block.mixer) is not type(blocks[i - 1].mixer):
                ctx.memory.close()  # arrays have other sizes now
                ctx = replace(ctx, memory=kernels.Memory())
            layers = None if states is None else [state.layers[i] for state in states]
            block.extend(layers, x, ctx)
            if layers is not None and ahead is not None:
                for layer in layers:
                    layer.drop_history(ahead, ctx.threads)
            if self.on_progress is not None and len(x) >= PROGRESS_ROWS:
                self.on_progress(len(x) * (i + 1) // len(blocks), len(x))
        ctx.memory.close()
        return x

    def _normed(self, x: Floats) -> Floats:
        return self._norm(x, self.threads)

    def _target_logprobs(self, x: Floats, targets: Ids) -> NDArray[np.float64]:
        """float64 [n]: natural log of p(targets[t]) by row t of the residual stream x [n, D]."""
        scores = np.empty(len(targets))
        for t in range(0, len(targets), plan_phases.HEAD_ROWS):
            rows = slice(t, min(t + plan_phases.HEAD_ROWS, len(targets)))
            logprobs = self._logprobs_of(x[rows])
            scores[rows] = logprobs[np.arange(len(logprobs)), targets[rows]]
        return scores

    def _logprobs_of(self, x: Floats) -> NDArray[np.float64]:
        """float64 [n, V]: natural logs of the softmax by rows of the residual stream x [n, D]."""
        return log_softmax(self._logits_of(self._normed(x)))

    def _logits_of(self, h: Floats) -> Floats:
        return self._checked_head()(h, self.threads)

    def _checked_head(self) -> Linear:
        """The head; ModelError if there is none."""
        if self._head is None:
            raise ModelError(f"{self.name} has no language-model head: use classify or hidden")
        return self._head


def _check_known(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{option} {value!r} is not known; known: {', '.join(known)}")


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """float64 [n, V]: natural log of the softmax of each row of logits [n, V]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
