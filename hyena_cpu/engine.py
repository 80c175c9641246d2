"""Token ids in, numbers out. Weights never change; what a sequence remembers is its `State`.

Shapes: T tokens, B sequences, D width, V = logits_width rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import plan_phases, planner, pooling, state_file
from .batches import grouped
from .errors import InputError, ModelError
from .network import Floats, Ids, Network, log_softmax
from .online import ahead_for
from .state import State
from .step_plan import MOST_DROPPED


class Engine(Network):
    """Sequences through a network: whole ones, and those under way.

    One engine may be used from many threads at once, each with its own states. Arrays returned
    belong to the caller.
    """

    # ---- whole sequences, nothing remembered

    def logits(self, ids: ArrayLike) -> Floats:
        """float32 [T, V]: row t holds the scores of token t + 1."""
        ids = self.check_ids(ids)
        return self._logits_of(self._normed(self._whole([ids], logits_rows=len(ids))))

    def hidden(self, ids: ArrayLike, layer: int = -1) -> Floats:
        """float32 [T, D]: 0 the embedding, 1..n after block n, -1 after the final norm."""
        ids = self.check_ids(ids)
        x = self._whole([ids], self.depth_of(layer), hidden_rows=len(ids))
        return self._normed(x) if layer < 0 else x

    def hidden_blocks(
        self, ids: ArrayLike, layer: int = -1, rows: int = pooling.BLOCK_ROWS
    ) -> Iterator[Floats]:
        """`hidden` in pieces: float32 [<= rows, D], in order."""
        ids = self.check_ids(ids)
        x = self._whole([ids], self.depth_of(layer), hidden_rows=min(rows, len(ids)))
        for t in range(0, len(x), rows):
            block = x[t : t + rows]
            yield self._normed(block) if layer < 0 else block.copy()

    def hidden_each(self, sequences: Sequence[ArrayLike], layer: int = -1) -> list[Floats]:
        """`hidden` of each sequence: the same bits, in less time where many are short."""
        found = []
        for batch, x in self._batches(sequences, self.depth_of(layer), hidden=True):
            found += [self._normed(h) if layer < 0 else h.copy() for h in split(x, batch)]
        return found

    def logprob_blocks(self, ids: ArrayLike) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """(t, float64 [n, V]): natural logs of the softmax over all V rows, n positions from t on.

        Row t is what the model says of token t + 1; the last row is of one that is not there.
        """
        x = self._whole([self.check_ids(ids)])
        for t in range(0, len(x), plan_phases.HEAD_ROWS):
            yield t, log_softmax(self._logits_of(self._normed(x[t : t + plan_phases.HEAD_ROWS])))

    def token_logprobs(self, ids: ArrayLike) -> NDArray[np.float64]:
        """float64 [T - 1]: natural log of p(ids[t + 1] | ids[:t + 1]) over all V rows."""
        ids = self.check_ids(ids)
        return self._target_logprobs(self._whole([ids])[:-1], ids[1:])

    def token_logprobs_each(self, sequences: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
        """`token_logprobs` of each sequence: the same bits, in less time where many are short."""
        found = []
        for batch, x in self._batches(sequences):
            following = np.concatenate([np.append(ids[1:], 0) for ids in batch])
            scores = self._target_logprobs(x, following)
            found += [part[:-1].copy() for part in split(scores, batch)]
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
            before, after = [ids[:-1] for ids in batch], [ids[1:] for ids in batch]
            pieces = [ids for ids in before if len(ids)]
            scores = np.zeros(0)
            if pieces:
                x = self._run([state] * len(pieces), pieces, keep=False)
                scores = self._target_logprobs(x, np.concatenate(after))
            for ids, rest in zip(batch, split(scores, after), strict=True):
                found.append(np.concatenate([first[ids[:1]], rest]))
        return found

    def prefill_scored(self, ids: ArrayLike) -> tuple[State, NDArray[np.float64]]:
        """`prefill` of a new state and `token_logprobs`, in one pass."""
        ids = self.check_ids(ids)
        state = self.new_state()
        x = self._run([state], [ids], scored=True)
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
            h = self._normed(self._whole([ids]))
            rows.append(pooling.pooled(h, ids, head.pool, self.config.special_tokens.pad))
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
        x = self._run([state], [ids], ahead=ahead, room=room)[-1:].copy()
        state.logits = self._logits_of(self._normed(x))[0]
        state.reserve(room)
        return state

    def _ahead(self, room: int, max_new_tokens: int | None, history: str) -> int | None:
        """Tokens to plan for when a history is to be dropped; None: it is kept."""
        if history not in ("keep", "drop"):
            raise InputError(f"history is {history!r}, must be keep or drop")
        if history == "keep":
            return None
        if self.decode == "direct":
            raise InputError("history='drop' cannot act: decode 'direct' sums over the history")
        if max_new_tokens is None or room > MOST_DROPPED:
            raise InputError(
                "prefill with history='drop' needs max_new_tokens, the tokens that will follow, up "
                f"to {MOST_DROPPED}"
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
            position = max(1, file.head.position)
            self.check_length(position, new=position, state=True)
            state.restore(file.parts(), self.threads)
        if state.logits is not None and len(state.logits) != self.logits_width:
            raise InputError(f"{path}: holds {len(state.logits)} logits, not {self.logits_width}")
        return state

    def extend(self, state: State, ids: ArrayLike) -> Floats:
        """Appends ids to a sequence; float32 [T, V], one row per appended token."""
        ids = self.check_ids(ids)
        rows = self._normed(self._run([self._own(state)], [ids], logits_rows=len(ids)))
        logits = self._logits_of(rows)
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

    def _room(self, length: int, max_new_tokens: int | None) -> int:
        """Tokens to make room for after `length` of them."""
        if max_new_tokens is None:
            return 0
        if max_new_tokens < 0:
            raise InputError(f"max_new_tokens is {max_new_tokens}, must be at least 0")
        if self.max_length is None:
            return max_new_tokens
        return max(0, min(max_new_tokens, self.max_length - length))

    def depth_of(self, layer: int) -> int:
        """Blocks to run for `layer` of `hidden`; InputError if the model has no such layer."""
        depth = len(self.blocks)
        if not -1 <= layer <= depth:
            raise InputError(f"layer is {layer}, must be in 0..{depth}, or -1 for the last norm")
        return depth if layer < 0 else layer

    def _own(self, state: State) -> State:
        if not isinstance(state, State):
            raise InputError(f"a State is needed (from prefill, new_state or fork), got {state!r}")
        if state.fingerprint != self.fingerprint:
            raise InputError("this state belongs to another model")
        state.check()
        return state

    # ---- the forward pass

    def _whole(self, batch: list[Ids], depth: int | None = None, **what: Any) -> Floats:
        """`_rows` of complete sequences; `what` else is to be planned for."""
        longest, total = max(map(len, batch)), sum(map(len, batch))
        self.check_length(longest, -(-total // longest), **what)
        return self._rows(batch, depth=depth)

    def _batches(
        self, sequences: Sequence[ArrayLike], depth: int | None = None, *, hidden: bool = False
    ) -> Iterator[tuple[list[Ids], Floats]]:
        """`_whole` of consecutive sequences together: their ids, and rows end to end. hidden: the
        caller copies the rows.
        """
        checked = [self.check_ids(ids) for ids in sequences]
        for batch in grouped(checked, len, planner.batch_rows(self)):
            rows = sum(map(len, batch)) if hidden else 0
            yield batch, self._whole(batch, depth, hidden_rows=rows)

    def _run(
        self,
        states: list[State],
        pieces: list[Ids],
        *,
        logits_rows: int = 1,
        keep: bool = True,
        ahead: int | None = None,
        room: int = 0,
        scored: bool = False,
    ) -> Floats:
        """Appends one piece to each state, or only reads it; rows [sum of lengths, D].

        ahead: histories are dropped but for so many further tokens. room, scored: as for
        `planner.plan`.
        """
        lengths = [len(piece) for piece in pieces]
        for state, n in zip(states, lengths, strict=True):
            state.check_room(n)
        longest = max(s.position + n for s, n in zip(states, lengths, strict=True))
        self.check_length(
            longest + room,
            len(states),
            new=max(lengths),
            room=room,
            logits_rows=logits_rows,
            state=True,
            scored=scored or not keep,
            ahead=ahead,
            peek=not keep,
        )
        if not keep:
            return self._rows(pieces, states, keep=False)
        for state in states:
            state.torn = True
        x = self._rows(pieces, states, ahead=ahead)
        for state, n in zip(states, lengths, strict=True):
            if ahead is not None:
                state.find_last()
            state.position += n
            state.torn = False
        return x


def split(rows: NDArray[Any], batch: list[Ids]) -> list[NDArray[Any]]:
    """Rows end to end as those of each sequence."""
    return np.split(rows, np.cumsum([len(ids) for ids in batch])[:-1])
