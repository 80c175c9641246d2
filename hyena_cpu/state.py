"""What a sequence has to remember: one entry per layer, and the position.

Every piece is plain data that can be copied (`fork`), taken back (`rewind`), turned into the parts
of a file (`parts`, `restore`) and knows its size (`nbytes`). A mixer makes its own kind with
`new_state()`; nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import kernels, state_file
from .checks import MOST_TOKENS, check_whole
from .closing import Closing
from .errors import InputError, LimitError
from .ids import token_ids
from .parts import Parts

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]


class LayerState(Protocol):
    """The state of one mixer for one sequence."""

    @property
    def position(self) -> int:
        """Tokens taken in."""

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""

    def fork(self) -> LayerState:
        """An independent copy."""

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now."""

    @property
    def last(self) -> int | None:
        """Where the sequence has to end, having dropped what more tokens would need; or None."""

    def drop_history(self, n: int, threads: int) -> None:
        """`reserve`, and lets go of what the n tokens do not need."""

    def rewind(self, position: int) -> None:
        """Back to a position from `oldest` on."""

    def parts(self) -> dict[str, Any]:
        """Everything that goes into a file, as plain data; arrays are not copied."""

    def restore(self, parts: Parts, threads: int) -> None:
        """Makes a new state what `parts` were taken of. InputError if they do not fit."""


NO_ROOM = (0, 0)


class State(Closing):
    """One sequence under way: feed it with `Model.extend` or `Model.step`, one thread at a time.

    position: tokens taken in so far. logits: float32 [logits_width] of the last one, or None where
    they are not known: at the start, and after a rewind. torn: a call was interrupted, or failed,
    after it had begun to change the layers; the state cannot go on. last: where it has to end,
    because its history was dropped, or None. room: from where to where its memory was made and
    checked at once. As a context it is closed at the end.
    """

    def __init__(
        self,
        layers: list[LayerState],
        fingerprint: str,
        afford: Callable[[State, int], int] | None = None,
    ) -> None:
        """afford: of so many tokens more, how many can come; raises LimitError if there is no
        memory for them.
        """
        self.layers = layers
        self.fingerprint = fingerprint
        self._afford = afford
        self.position = 0
        self.logits: Floats | None = None
        self.torn = False
        self.closed = False
        self.last: int | None = None
        self.room = NO_ROOM
        self._tokens: Ids | None = None
        self.seat: Any = None  # what the recorded step keeps of the layers (step.py)

    @property
    def nbytes(self) -> int:
        """Bytes held. A file of it takes no more, its header of some KiB apart."""
        beside = sum(0 if a is None else a.nbytes for a in (self.logits, self._tokens))
        return beside + sum(layer.nbytes for layer in self.layers)

    @property
    def tokens(self) -> Ids | None:
        """int32 [position], the ids taken in, or None if nobody has told them all: a state itself
        has no need of them, but what goes on from a file may (a repetition penalty).
        """
        told = self._tokens
        return told.copy() if told is not None and len(told) == self.position else None

    def tell(self, tokens: Ids) -> None:
        """Says which ids [position] were taken in, to be saved as well. InputError if they are not
        so many ids.
        """
        told = token_ids(tokens, 1 << 31, empty=True)
        if len(told) != self.position:
            raise InputError(f"tell: {len(told)} tokens for a state at {self.position}")
        self._tokens = told.copy()

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to: 128 tokens ago at least."""
        return max((layer.oldest for layer in self.layers), default=0)

    def check(self) -> None:
        """InputError if it cannot go on."""
        if self.closed:
            raise InputError("this state has been closed")
        if self.torn:
            raise InputError(
                "this state was left half-changed by an interrupted call: go on from a fork made "
                "before it, or begin a new one"
            )

    def check_room(self, n: int) -> None:
        """LimitError if its history was dropped and it cannot take in n tokens more."""
        if self.last is not None and self.position + n > self.last:
            self.find_last()  # a filter that ends needs no older rows after a while
        if self.last is not None and self.position + n > self.last:
            raise LimitError(
                f"the history of this state was dropped, so it ends at position {self.last} and "
                f"cannot reach {self.position + n}: prefill with history='keep' to go on longer"
            )

    def covers(self, n: int) -> bool:
        """Whether n further tokens, taken in one by one, stay in the room that was made."""
        return self.position + n <= self.room[1]

    def find_last(self) -> None:
        """Sets `last`, and `room` up to it, as layers that dropped their history have it now."""
        found = [layer.last for layer in self.layers if layer.last is not None]
        before, self.last = self.last, min(found, default=None)
        if self.last is not None and before is None:
            self.room = self.position, self.last

    def fork(self) -> State:
        """An independent copy: what one does the other never sees."""
        twin = State.__new__(State)
        vars(twin).update(vars(self))  # ids that were told are never written to
        twin.layers, twin.seat = [layer.fork() for layer in self.layers], None
        twin.logits = None if self.logits is None else self.logits.copy()
        return twin

    def reserve(self, n: int) -> None:
        """Takes the memory for n further tokens now, or for as many as the model's context has. It
        is not asked for again when they come.

        Raises:
            InputError: n is negative or no whole number, or the state is torn or closed.
            LimitError: the state has to end before, or `max_memory` is not enough.
        """
        n = check_whole("reserve: n", n, 0, MOST_TOKENS)
        self.check()
        self.check_room(n)
        new = n > 0 and not self.covers(n)
        if new and self._afford is not None:
            n = self._afford(self, n)
        self.seat = None
        for layer in self.layers:
            layer.reserve(n)
        if new:
            self.room = self.position, self.position + n

    def rewind(self, position: int) -> None:
        """Back to an earlier position, as if the tokens since had not been taken in.

        What follows has the same bits if the tokens taken back are at most 128, and came one by one
        or few at a time after the last prompt; otherwise it agrees to rounding. `logits` is None
        until the next token, unless nothing was taken back.

        Raises:
            InputError: the state is torn or closed, or the position is no whole number.
            LimitError: that far back, or ahead, it cannot go. The newest 128 tokens taken in can
                always be taken back; a fork goes on from anywhere.
        """
        self.check()
        position = check_whole("rewind: position", position)
        if not self.oldest <= position <= self.position:
            raise LimitError(
                f"cannot rewind to position {position}: this state is at {self.position} and can "
                f"go back to {self.oldest}; keep a fork to go back further"
            )
        if position == self.position:
            return
        tokens = self.tokens
        self.torn, self.seat = True, None
        for layer in self.layers:
            layer.rewind(position)
        self.position, self.logits = position, None
        self.find_last()
        if position < self.room[0]:
            self.room = NO_ROOM if self.last is None else (position, self.last)
        self._tokens = None if tokens is None else tokens[:position]
        self.torn = False

    def save(self, path: str | Path) -> None:
        """Writes everything to a file for `Model.load_state`; see docs/generation.md.

        A crash at any instant leaves the file that was there before, or the new one.

        Raises:
            InputError: the state is torn or closed, or `path` is that of a folder or device.
            HyenaError: the file cannot be written.
        """
        self.check()
        tree = {
            "position": self.position,
            "logits": self.logits,
            "tokens": self.tokens,
            "layers": [layer.parts() for layer in self.layers],
        }
        state_file.write(path, tree, fingerprint=self.fingerprint, isa=kernels.build)

    def restore(self, parts: Parts, threads: int) -> None:
        """Makes a new state what `parts` were taken of. InputError if they do not fit it."""
        for layer, saved in zip(self.layers, parts.each("layers", len(self.layers)), strict=True):
            layer.restore(saved, threads)
        self.position = parts.whole("position")
        self.logits = parts.maybe_floats("logits", None)
        self._tokens = parts.maybe_ids("tokens", self.position)
        self.find_last()
        for i, layer in enumerate(self.layers):
            if layer.position != self.position:
                raise parts.refuse(f"is at {self.position} but its layer {i} at {layer.position}")

    def close(self) -> None:
        """Lets go of all memory; nothing can be done with the state any more."""
        self.layers, self.seat, self.closed = [], None, True
        self.logits = self._tokens = None

    def __reduce__(self) -> Any:
        raise TypeError(
            "a State cannot be pickled or copied so: fork() copies it, and save() and "
            "Model.load_state take it to another process"
        )
