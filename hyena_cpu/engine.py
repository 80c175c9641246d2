"""Token ids in, numbers out. Weights never change; what a sequence remembers is its `State`.

Shapes: T tokens, B sequences, D width, V = logits_width rows of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import kernels, planner, state_file
from .batches import grouped
from .blocks import Block
from .config import ModelConfig
from .context import Context, context
from .errors import InputError, LimitError, ModelError
from .ids import token_ids
from .linear import Linear
from .norm import Norm
from .online import ahead_for
from .online_taps import LONGEST_HORIZON, Convolutions
from .pooling import pooled
from .state import State
from .weights import Weights

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
Progress = Callable[[int, int], None]

SPECTRA_BUDGET = 512 << 20  # bytes of transforms kept, unless a smaller max_memory asks for less

PROGRESS_ROWS = 256  # calls on fewer tokens are over before anybody wonders

COMPAT = frozenset({"wrap_filter"})


class Engine:
    """Weights ready to run.

    One engine may be used from many threads at once, each with its own states. Arrays returned
    belong to the caller.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        threads: int,
        max_memory: int | None = None,
        compat: Iterable[str] = (),
        on_progress: Progress | None = None,
    ) -> None:
        config, tensors = weights.config, weights.tensors
        self.config: ModelConfig = config
        self.folder = weights.folder
        self.generation = weights.generation
        self.notes = weights.notes
        self.fingerprint = weights.fingerprint
        self.threads = threads
        self.max_memory = max_memory
        self.on_progress = on_progress
        self.compat = frozenset([compat] if isinstance(compat, str) else compat)
        unknown = sorted(self.compat - COMPAT)
        if unknown:
            raise InputError(f"compat {unknown[0]!r} is not known; known: {', '.join(COMPAT)}")
        self.num_parameters = weights.num_parameters
        budget = SPECTRA_BUDGET if max_memory is None else min(SPECTRA_BUDGET, max_memory // 4)
        self.convolutions = Convolutions(budget, config.max_length)
        self._embedding = tensors["embedding.weight"]
        self._positions = tensors.get("positions.weight")
        self.blocks = [
            Block(layer, config, _layer_tensors(tensors, i), self.convolutions)
            for i, layer in enumerate(config.layers)
        ]
        self._norm = Norm(config.norm, tensors, "norm")
        self._head = self._classifier = None
        if config.classifier is not None:
            self._classifier = Linear.from_tensors(tensors, "classifier")
        else:
            name = "embedding" if config.tie_embeddings else "head"
            self._head = Linear(tensors[f"{name}.weight"], None)

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
        return {"dtype": "float32", "isa": kernels.build, "threads": self.threads}

    @property
    def causal(self) -> bool:
        """Whether it can be continued token by token."""
        return all(block.mixer.causal for block in self.blocks)

    # ---- whole sequences, nothing remembered

    def logits(self, ids: ArrayLike) -> Floats:
        """float32 [T, V]: row t holds the scores of token t + 1."""
        ids = self.check_ids(ids)
        self.check_length(len(ids), logits_rows=len(ids))
        return self._logits_of(self._normed(self._run_whole(ids)))

    def hidden(self, ids: ArrayLike, layer: int = -1) -> Floats:
        """float32 [T, D]: 0 the embedding, 1..n after block n, -1 after the final norm."""
        ids = self.check_ids(ids)
        x = self._run_whole(ids, self._depth(layer))
        return self._normed(x) if layer < 0 else x

    def hidden_blocks(
        self, ids: ArrayLike, layer: int = -1, rows: int = planner.BLOCK_ROWS
    ) -> Iterator[Floats]:
        """`hidden` in pieces: float32 [<= rows, D], in order."""
        x = self._run_whole(self.check_ids(ids), self._depth(layer))
        for t in range(0, len(x), rows):
            block = x[t : t + rows]
            yield self._normed(block) if layer < 0 else block.copy()

    def hidden_each(self, sequences: Sequence[ArrayLike], layer: int = -1) -> list[Floats]:
        """`hidden` of each sequence: the same bits, in less time where many are short."""
        found = []
        for batch, x in self._run_batches(sequences, self._depth(layer)):
            h = self._normed(x) if layer < 0 else x
            found += [part.copy() for part in np.split(h, np.cumsum([len(i) for i in batch])[:-1])]
        return found

    def logprob_blocks(self, ids: ArrayLike) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """(t, float64 [n, V]): natural logs of the softmax over all V rows, n positions from t on.

        Row t is what the model says of token t + 1; the last row is of one that is not there.
        """
        x = self._run_whole(self.check_ids(ids))
        for t in range(0, len(x), planner.HEAD_ROWS):
            yield t, log_softmax(self._logits_of(self._normed(x[t : t + planner.HEAD_ROWS])))

    def token_logprobs(self, ids: ArrayLike) -> NDArray[np.float64]:
        """float64 [T - 1]: natural log of p(ids[t + 1] | ids[:t + 1]) over all V rows."""
        ids = self.check_ids(ids)
        return self._target_logprobs(self._run_whole(ids)[:-1], ids[1:])

    def token_logprobs_each(self, sequences: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
        """`token_logprobs` of each sequence: the same bits, in less time where many are short."""
        found = []
        for batch, x in self._run_batches(sequences):
            following = np.concatenate([np.append(ids[1:], 0) for ids in batch])
            scores = self._target_logprobs(x, following)
            ends = np.cumsum([len(ids) for ids in batch])
            found += [part[:-1].copy() for part in np.split(scores, ends[:-1])]
        return found

    def token_logprobs_after(self, state: State, ids: ArrayLike) -> NDArray[np.float64]:
        """float64 [T]: natural log of p(ids[t] | the state's sequence and ids[:t]).

        The state stays as it is, so many continuations can be compared from it; what its sequence
        adds to them is summed up once.
        """
        return self.token_logprobs_after_each(state, [ids])[0]

    def token_logprobs_after_each(
        self, state: State, sequences: Sequence[ArrayLike]
    ) -> list[NDArray[np.float64]]:
        """`token_logprobs_after` of each sequence: the same bits, in less time."""
        last = self._own(state).logits
        if last is None:
            raise InputError(
                "token_logprobs_after: the state is empty or was rewound: take in a token first"
            )
        first = log_softmax(last[None])[0]
        checked = [self.check_ids(ids) for ids in sequences]
        found = []
        # The bits of one depend on how far the sums of the history reach, so on no longer one.
        alike = (list(run) for _, run in groupby(checked, lambda ids: ahead_for(len(ids) - 1)))
        rows = planner.batch_rows(self)
        for batch in (batch for run in alike for batch in grouped(run, len, rows)):
            pieces = [ids[:-1] for ids in batch if len(ids) > 1]
            following = [ids[1:] for ids in batch if len(ids) > 1]
            scores = np.zeros(0)
            if pieces:
                x = self._run([state] * len(pieces), pieces, keep=False)
                scores = self._target_logprobs(x, np.concatenate(following))
            ends = np.cumsum([len(ids) - 1 for ids in batch])
            for ids, rest in zip(batch, np.split(scores, ends[:-1]), strict=True):
                found.append(np.concatenate([first[ids[:1]], rest]))
        return found

    def prefill_scored(self, ids: ArrayLike) -> tuple[State, NDArray[np.float64]]:
        """`prefill` of a new state and `token_logprobs`, in one pass."""
        ids = self.check_ids(ids)
        state = self.new_state()
        x = self._run([state], [ids])
        state.logits = self._logits_of(self._normed(x[-1:]))[0]
        return state, self._target_logprobs(x[:-1], ids[1:])

    def classify(self, sequences: Sequence[ArrayLike]) -> Floats:
        """float32 [B, labels] of a model with a classifier head; one row per sequence of ids.

        Pads inside a sequence are ordinary tokens, as in the originals (HyenaDNA).
        """
        head = self.config.classifier
        if head is None or self._classifier is None:
            raise ModelError(f"{self.name} has no classifier head")
        rows = []
        for sequence in sequences:
            ids = self.check_ids(sequence)
            h = self._normed(self._run_whole(ids))
            rows.append(pooled(h, ids, head.pool, self.config.special_tokens.pad))
        h = np.stack(rows) if rows else np.zeros((0, self.config.d_model), np.float32)
        return self._classifier(h, self.threads)

    # ---- sequences under way

    def new_state(self) -> State:
        """The state of an empty sequence."""
        if not self.causal:
            raise ModelError(
                f"{self.name} has a layer that reads the whole sequence at once, so it cannot be "
                "continued token by token: use logits, hidden or classify"
            )
        return State([block.mixer.new_state() for block in self.blocks], self.fingerprint)

    def prefill(
        self,
        ids: ArrayLike,
        state: State | None = None,
        *,
        max_new_tokens: int | None = None,
        history: Literal["keep", "drop"] = "keep",
    ) -> State:
        """Takes in a prompt (or its next part) and returns the state; `state.logits` is [V] of its
        last position. `max_new_tokens` reserves room for that many further tokens at once.

        history: "drop" lets every layer go, when the prompt is through it, of what more than
        `max_new_tokens` (needed then, at most 65,536) would need: memory that grows with the
        context becomes memory that grows with them, where filters are long, and `state.last` is
        where the sequence has to end. The numbers are the same.
        """
        state = self.new_state() if state is None else self._own(state)
        ids = self.check_ids(ids)
        room = self._room(state.position + len(ids), max_new_tokens)
        ahead = self._ahead(room, max_new_tokens, history)
        state.check_room(len(ids) + room)
        self._check_memory(state.position + len(ids) + room, new=len(ids), ahead=ahead)
        x = self._run([state], [ids], ahead=ahead)
        state.logits = self._logits_of(self._normed(x[-1:]))[0]
        state.reserve(room)
        return state

    def _ahead(self, room: int, max_new_tokens: int | None, history: str) -> int | None:
        """Tokens to plan for when a history is to be dropped; None: it is kept."""
        if history not in ("keep", "drop"):
            raise InputError(f"history is {history!r}, must be keep or drop")
        if history == "keep":
            return None
        if max_new_tokens is None or room > LONGEST_HORIZON:
            raise InputError(
                "prefill with history='drop' needs max_new_tokens, the tokens that will follow, up "
                f"to {LONGEST_HORIZON}"
            )
        return room or None  # where nothing can follow, nothing is prepared

    def load_state(self, path: str | Path) -> State:
        """A state that `State.save` wrote: it goes on as the saved one would have, bit for bit with
        the same kernels, otherwise to rounding.

        Raises:
            InputError: no state file, damaged, of another version, or of another model.
            LimitError: it does not fit the model or `max_memory`.
        """
        with state_file.reading(path, self.fingerprint) as file:
            state = self.new_state()
            self.check_length(max(1, file.head.position), new=1, state=True)
            state.restore(file.parts(), self.threads)
        if state.logits is not None and len(state.logits) != self.logits_width:
            raise InputError(f"{path}: holds {len(state.logits)} logits, not {self.logits_width}")
        return state

    def extend(self, state: State, ids: ArrayLike) -> Floats:
        """Appends ids to a sequence; float32 [T, V], one row per appended token."""
        ids = self.check_ids(ids)
        x = self._run([self._own(state)], [ids], logits_rows=len(ids))
        logits = self._logits_of(self._normed(x))
        state.logits = logits[-1].copy()
        return logits

    def step(self, states: State | Sequence[State], tokens: int | Sequence[int]) -> Floats:
        """One token for one State: [V]; one token for each of several: [B, V].

        A sequence gets the same bits alone and in any batch, at any place in it.
        """
        single = isinstance(states, State)
        batch = [states] if isinstance(states, State) else list(states)
        column = self.check_ids([tokens] if single else tokens)
        if len(batch) != len(column):
            raise InputError(f"step: {len(batch)} states but {len(column)} tokens")
        if len({id(state) for state in batch}) != len(batch):
            raise InputError("step: the same state appears twice; fork it first")
        x = self._run([self._own(s) for s in batch], [column[b : b + 1] for b in range(len(batch))])
        logits = self._logits_of(self._normed(x))
        for state, row in zip(batch, logits, strict=True):
            state.logits = row.copy()
        return logits[0] if single else logits

    # ---- checks

    def check_ids(self, ids: ArrayLike) -> Ids:
        """ids as int32 [T]. InputError if empty, not integers, or outside the embedding."""
        return token_ids(ids, self._embedding.shape[0])

    def check_length(
        self,
        length: int,
        batch: int = 1,
        *,
        new: int | None = None,
        logits_rows: int = 0,
        state: bool = False,
        ahead: int | None = None,
    ) -> None:
        """LimitError if a sequence of this length does not fit the model or `max_memory`."""
        limit = self.max_length
        if limit is not None and length > limit:
            raise LimitError(
                f"the sequence has {length} tokens but {self.name} takes at most {limit}: "
                "shorten it or cut it into windows"
            )
        self._check_memory(
            length, batch, new=new, logits_rows=logits_rows, state=state, ahead=ahead
        )

    def _check_memory(self, length: int, batch: int = 1, **what: Any) -> None:
        if self.max_memory is not None:
            planner.plan(self, length, batch, **what).check(self.max_memory)

    def _room(self, length: int, max_new_tokens: int | None) -> int:
        """Tokens to make room for after `length` of them."""
        if max_new_tokens is None:
            return 0
        if max_new_tokens < 0:
            raise InputError(f"max_new_tokens is {max_new_tokens}, must be at least 0")
        if self.max_length is None:
            return max_new_tokens
        return max(0, min(max_new_tokens, self.max_length - length))

    def _depth(self, layer: int) -> int:
        """Blocks to run for `layer` of `hidden`."""
        depth = len(self.blocks)
        if not -1 <= layer <= depth:
            raise InputError(
                f"layer is {layer}; this model has 0..{depth}, or -1 for the last norm"
            )
        return depth if layer < 0 else layer

    def _own(self, state: State) -> State:
        if not isinstance(state, State):
            raise InputError(f"a State is needed (from prefill, new_state or fork), got {state!r}")
        if state.fingerprint != self.fingerprint:
            raise InputError("this state belongs to another model")
        state.check()
        return state

    # ---- the forward pass

    def _run_whole(self, ids: Ids, depth: int | None = None) -> Floats:
        """Residual stream [T, D] after `depth` blocks (None: all of them)."""
        self.check_length(len(ids))
        ctx = context([len(ids)], [0], self.threads, self.compat)
        x = self._embed(ids, ctx)
        self._through(self.blocks[:depth], None, x, ctx)
        return x

    def _run_batches(
        self, sequences: Sequence[ArrayLike], depth: int | None = None
    ) -> Iterator[tuple[list[Ids], Floats]]:
        """`_run_whole` of consecutive sequences together: their ids, and rows end to end."""
        checked = [self.check_ids(ids) for ids in sequences]
        for batch in grouped(checked, len, planner.batch_rows(self)):
            lengths = [len(ids) for ids in batch]
            self.check_length(max(lengths), -(-sum(lengths) // max(lengths)))
            ctx = context(lengths, [0] * len(batch), self.threads, self.compat)
            x = self._embed(np.concatenate(batch), ctx)
            self._through(self.blocks[:depth], None, x, ctx)
            yield batch, x

    def _run(
        self,
        states: list[State],
        pieces: list[Ids],
        *,
        logits_rows: int = 1,
        keep: bool = True,
        ahead: int | None = None,
    ) -> Floats:
        """Appends one piece to each state, or only reads it; rows [sum of lengths, D].

        ahead: histories are dropped but for so many further tokens.
        """
        starts = [state.position for state in states]
        lengths = [len(piece) for piece in pieces]
        longest = max(s + n for s, n in zip(starts, lengths, strict=True))
        for state, n in zip(states, lengths, strict=True):
            state.check_room(n)
        rows = {"new": max(lengths), "logits_rows": logits_rows}
        self.check_length(longest, len(states), **rows, state=True, ahead=ahead)
        ctx = context(lengths, starts, self.threads, self.compat, keep=keep)
        x = self._embed(np.concatenate(pieces), ctx)
        if not keep:
            self._through(self.blocks, states, x, ctx)
            return x
        for state in states:
            state.torn = True
        self._through(self.blocks, states, x, ctx, ahead)
        for state, n in zip(states, lengths, strict=True):
            if ahead is not None:
                state.find_last()
            state.position += n
            state.torn = False
        return x

    def _through(
        self,
        blocks: list[Block],
        states: list[State] | None,
        x: Floats,
        ctx: Context,
        ahead: int | None = None,
    ) -> None:
        for i, block in enumerate(blocks):
            layers = None if states is None else [s.layers[i] for s in states]
            block.extend(layers, x, ctx)
            if layers is not None and ahead is not None:
                for layer in layers:
                    layer.drop_history(ahead, ctx.threads)
            if self.on_progress is not None and len(x) >= PROGRESS_ROWS:
                self.on_progress(len(x) * (i + 1) // len(blocks), len(x))

    def _embed(self, ids: Ids, ctx: Context) -> Floats:
        x = self._embedding[ids]
        if self._positions is not None:
            x += self._positions[ctx.positions]
        return x

    def _normed(self, x: Floats) -> Floats:
        return self._norm(x, self.threads)

    def _target_logprobs(self, x: Floats, targets: Ids) -> NDArray[np.float64]:
        """float64 [n]: natural log of p(targets[t]) by row t of the residual stream x [n, D]."""
        scores = np.empty(len(targets))
        for t in range(0, len(targets), planner.HEAD_ROWS):
            rows = slice(t, min(t + planner.HEAD_ROWS, len(targets)))
            logprobs = log_softmax(self._logits_of(self._normed(x[rows])))
            scores[rows] = logprobs[np.arange(len(logprobs)), targets[rows]]
        return scores

    def _logits_of(self, h: Floats) -> Floats:
        if self._head is None:
            raise ModelError(f"{self.name} has no language-model head: use classify or hidden")
        return self._head(h, self.threads)


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """float64 [n, V]: natural log of the softmax of each row of logits [n, V]."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _layer_tensors(tensors: dict[str, Floats], layer: int) -> dict[str, Floats]:
    prefix = f"layers.{layer}."
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
