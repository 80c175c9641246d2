"""Token ids in, numbers out. Weights never change; what a sequence remembers is its `State`.

Shapes: T tokens, B sequences, D width, V = logits_width rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import planner, state_file
from .batches import grouped
from .checks import MOST_TOKENS, check_whole
from .context import split
from .conv_state import ConvState
from .errors import InputError, ModelError
from .fitting import Fitting, dropped_for
from .network import PROGRESS_ROWS, Floats, Ids, log_softmax
from .online import ahead_for
from .state import NO_ROOM, State
from .step import RecordedStep
from .step_plan import MOST_DROPPED

SMALL_BYTES = 1 << 20  # of logits that need no room of their own


class Engine(Fitting):
    """Sequences through a network: whole ones, and those under way.

    One engine may be used from many threads at once, each with its own states. Arrays returned
    belong to the caller.
    """

    def token_logprobs_branching(
        self, trunk: ArrayLike, branches: Sequence[ArrayLike], prefix: int
    ) -> list[NDArray[np.float64]]:
        """`token_logprobs` of sequences that begin with the same `prefix` tokens, taken in once.

        trunk: one of them, T tokens. branches: of each other one the n tokens that follow the
        prefix, 1 <= n <= T - prefix. Returns float64 [T - 1] of the trunk and then, for every
        branch, [n]: natural log of p(its token | all before it). Each has the same bits whatever
        other branches there are.

        Raises:
            InputError: the prefix is not in 1 .. T - 1, or a branch is longer than what the trunk
                has after it.
        """
        trunk, checked = self.check_ids(trunk), [self.check_ids(ids) for ids in branches]
        longest = max(map(len, checked), default=0)
        if not 1 <= prefix < len(trunk) or longest > len(trunk) - prefix:
            raise InputError(
                f"token_logprobs_branching: a prefix of {prefix} tokens and branches of up to "
                f"{longest} do not fit a trunk of {len(trunk)}"
            )
        if not self.branches:
            state, before = self.prefill_scored(trunk[:prefix])
            after, *others = self.token_logprobs_after_each(state, [trunk[prefix:], *checked])
            return [np.concatenate([before, after]), *others]
        found: list[NDArray[np.float64]] = []
        for batch in list(grouped(checked, len, planner.batch_rows(self))) or [[]]:
            found += self._branching(trunk, batch, prefix)[bool(found) :]
        return found

    def _branching(self, trunk: Ids, branches: list[Ids], prefix: int) -> list[NDArray[np.float64]]:
        """`token_logprobs_branching` of a trunk and some branches, in one pass."""
        pieces = [ids[:-1] for ids in branches]
        total = len(trunk) + sum(map(len, pieces))
        self.check_length(len(trunk), -(-total // len(trunk)))
        x = self._rows([trunk, *filter(len, pieces)], prefix=prefix)
        first = self._logprobs_of(x[prefix - 1 : prefix])[0]
        following = [ids[1:] for ids in branches]
        scores = self._target_logprobs(x, np.concatenate([trunk[1:], trunk[:1], *following]))
        rest = split(scores[len(trunk) :], following)
        return [
            scores[: len(trunk) - 1].copy(),
            *(np.append(first[ids[0]], own) for ids, own in zip(branches, rest, strict=True)),
        ]

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
                "token_logprobs_after: the next token of this state is not known (it is empty, or "
                "was rewound): take in a token first"
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
        _done([state], self._logits_of(self._normed(x[-1:])))
        return state, self._target_logprobs(x[:-1], ids[1:])

    # ---- sequences under way

    def new_state(self) -> State:
        """The state of an empty sequence."""
        if not self.causal:
            raise ModelError(
                f"{self.name} has a layer that reads the whole sequence at once, so it cannot be "
                "continued token by token: use logits, hidden or classify"
            )
        layers = [block.mixer.new_state() for block in self.blocks]
        return State(layers, self.fingerprint, self._check_room)

    def prefill(
        self,
        ids: ArrayLike,
        state: State | None = None,
        *,
        max_new_tokens: int | None = None,
        history: Literal["keep", "drop"] = "keep",
        latency: Literal["smooth", "throughput"] | None = None,
    ) -> State:
        """Takes in a prompt (or its next part) and returns the state; `state.logits` is [V] of its
        last position. `max_new_tokens` reserves room for that many further tokens at once.

        history: "drop" lets every layer go, when the prompt is through it, of what more than
        `max_new_tokens` (needed then, at most 65,536) would need: memory that grows with the
        context becomes memory that grows with them, where filters are long, and `state.last` is
        where the sequence has to end. The numbers are the same.

        latency: "smooth" (None, for a new sequence) spreads the work of long convolutions over the
        tokens that follow, so that none takes much longer than others. "throughput" lets it fall
        together: less memory and a little less time in all, but some tokens take many times as long
        as others. The numbers are the same up to rounding. A sequence keeps what it began with.
        """
        if latency not in ("smooth", "throughput", None):
            raise InputError(f"latency is {latency!r}, must be smooth or throughput")
        state = self.new_state() if state is None else self._own(state)
        ids = self.check_ids(ids)
        room = self._room(state.position + len(ids), max_new_tokens)
        ahead = self._ahead(room, max_new_tokens, history)
        state.check_room(len(ids) + room)
        if latency is not None:
            _align(state, latency)
        x = self._run([state], [ids], ahead=ahead, room=room)[-1:].copy()
        for layer in state.layers:
            layer.reserve(room)  # checked with the prompt
        if state.last is None and room > 0:
            state.room = state.position, state.position + room
        _done([state], self._logits_of(self._normed(x)))
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
            self._check_loaded(file.head)
            state.restore(file.parts(), self.threads)
            if state.last is None and file.head.room_end > state.position:
                state.room = state.position, file.head.room_end
        if state.logits is not None and len(state.logits) != self.logits_width:
            raise InputError(f"{path}: holds {len(state.logits)} logits, not {self.logits_width}")
        return state

    def extend(self, state: State, ids: ArrayLike) -> Floats:
        """Appends ids to a sequence; float32 [T, V], one row per appended token."""
        ids = self.check_ids(ids)
        rows = self._normed(self._run([self._own(state)], [ids], logits_rows=len(ids)))
        logits = self._logits_of(rows)
        _done([state], logits[-1:])
        return logits

    def step(self, states: State | Sequence[State], tokens: int | Sequence[int]) -> Floats:
        """One token for one State: [V]; one token for each of several: [B, V].

        A sequence gets the same bits alone and in any batch, at any place in it.
        """
        if isinstance(states, State):
            return self._step([self._own(states)], self._step_tokens([tokens]))[0]
        if not isinstance(states, Iterable):
            self._own(states)
        batch, column = [self._own(state) for state in states], self._step_tokens(tokens)
        if len(batch) != len(column):
            raise InputError(f"step: {len(batch)} states but {len(column)} tokens")
        if len({id(state) for state in batch}) != len(batch):
            raise InputError("step: the same state appears twice; fork it first")
        return self._step(batch, column)

    def _step(self, states: list[State], tokens: list[int]) -> Floats:
        """Logits [B, V] after one token of each."""
        if self._recorded is None or len(states) >= PROGRESS_ROWS:
            x = self._run(states, [np.array([token], np.int32) for token in tokens])
            logits = self._logits_of(self._normed(x))
        else:
            logits = self._recorded_step(self._recorded, states, tokens)
        _done(states, logits)
        return logits

    def _recorded_step(
        self, recorded: RecordedStep, states: list[State], tokens: list[int]
    ) -> Floats:
        """What `_run` and the head do, in one call; states are torn until `_done`."""
        for state in states:
            if state.last is not None:
                state.check_room(1)
        self._check_step(states)
        for state in states:
            state.torn, state.logits = True, None
        logits = recorded.run(states, tokens, self.threads)
        for state in states:
            state.position += 1
        return logits

    def _step_tokens(self, tokens: Any) -> list[int]:
        """Checked ids of one token of each sequence."""
        if not isinstance(tokens, list) or not tokens:
            return self.check_ids(tokens).tolist()
        rows = len(self._embedding)
        for token in tokens:  # plain numbers, as nearly always, are told without an array
            if type(token) is not int or not 0 <= token < rows:
                return self.check_ids(tokens).tolist()
        return tokens

    # ---- checks

    def _room(self, length: int, max_new_tokens: int | None) -> int:
        """Tokens to make room for after `length` of them."""
        if max_new_tokens is None:
            return 0
        max_new_tokens = check_whole("max_new_tokens", max_new_tokens, 0, MOST_TOKENS)
        if self.max_length is None:
            return max_new_tokens
        return max(0, min(max_new_tokens, self.max_length - length))

    def _own(self, state: State) -> State:
        if not isinstance(state, State):
            raise InputError(f"a State is needed (from prefill, new_state or fork), got {state!r}")
        if state.fingerprint != self.fingerprint:
            raise InputError("this state belongs to another model")
        state.check()
        return state

    # ---- the forward pass

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
        """Appends one piece to each state, or only reads it; rows [sum of lengths, D]. States that
        took one in are torn until `_done`.

        ahead: histories are dropped but for so many further tokens. room, scored: as for
        `planner.plan`.
        """
        self._checked_head()
        lengths = [len(piece) for piece in pieces]
        longest_piece = max(lengths)
        for state, n in zip(states, lengths, strict=True):
            state.check_room(n)
        longest = max(s.position + n for s, n in zip(states, lengths, strict=True))
        small = 4 * logits_rows * self.logits_width <= SMALL_BYTES
        covered = not room and small and self._covered(states, lengths)
        if keep and covered:
            self._check_covered(states)
        else:
            dropped = dropped_for(states) if keep else None
            self.check_length(
                longest + room,
                len(states),
                new=longest_piece,
                room=room,
                logits_rows=logits_rows,
                state=True,
                scored=scored or not keep,
                ahead=dropped or ahead,
                dropped=dropped is not None,
                peek=not keep,
                held=self._held(states) if keep else 0,
            )
        if not keep:
            return self._rows(pieces, states, keep=False)
        for state in states:
            state.torn, state.seat, state.logits = True, None, None
            if state.last is None and not covered:
                state.room = NO_ROOM
        x = self._rows(pieces, states, ahead=ahead)
        for state, n in zip(states, lengths, strict=True):
            state.position += n
            if ahead is not None:
                state.find_last()
        return x

    def _held(self, states: list[State]) -> int:
        """Bytes that the states hold for steps; 0 where nobody asks."""
        if self.max_memory is None:
            return 0
        layers = (layer for state in states for layer in state.layers)
        return sum(layer.steps_nbytes for layer in layers if isinstance(layer, ConvState))


def _done(states: list[State], logits: Floats) -> None:
    """States have taken in all that a call gave them, the last of which has these logits [B, V]. Up
    to here they are torn: whoever called again would have it taken in twice.
    """
    rows = [row.copy() for row in logits]
    for state, row in zip(states, rows, strict=True):
        state.logits, state.torn = row, False


def _align(state: State, latency: str) -> None:
    """What long convolutions of a sequence that begins do at once, or one after the other."""
    aligned = latency == "throughput"
    for layer in state.layers:
        if isinstance(layer, ConvState) and layer.aligned != aligned:
            if state.position > 0:
                raise InputError(
                    f"latency {latency!r} is chosen where a sequence begins, not later"
                )
            layer.align(aligned)
