"""Whether the next call on sequences under way fits `max_memory`: asked once, not at every step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from . import planner
from .context import FEW_ROWS
from .errors import LimitError
from .state import State
from .state_head import Head
from .step_plan import FOR_EVER
from .whole import WholeSequences

T = TypeVar("T")
CHECKED_STEPS = 64  # for which memory is checked at once
CHECKED_STATES = 64  # of which that is remembered


class Fitting(WholeSequences):
    """The checks of `Engine` before steps, room and loaded states take memory."""

    def _check_step(self, states: list[State]) -> None:
        """LimitError if a token more of each does not fit; what is known is not asked again."""
        lengths = {1 + state.position for state in states}
        if self._covered(states, [1] * len(states)):
            self._check_covered(states)
        elif not all(self._fits(length, len(states)) for length in lengths):
            self._check_steps(lengths, len(states))

    def _covered(self, states: list[State], lengths: list[int]) -> bool:
        """Whether so many tokens more of each, taken in one by one, stay in the room made."""
        for state, n in zip(states, lengths, strict=True):
            beyond = self.max_length is not None and state.position + n > self.max_length
            by_steps = n == 1 or (n <= FEW_ROWS and state.position > 0)
            if beyond or not by_steps or not state.covers(n):
                return False
        return True

    def _fits(self, length: int, batch: int) -> bool:
        """Whether steps of so many states, all of them to this length, are known to fit."""
        return any(first <= length <= last and batch <= most for first, last, most in self._fitting)

    def _check_steps(self, lengths: set[int], batch: int) -> None:
        """LimitError if steps of `batch` states, all to any one of these lengths, do not fit; finds
        out at once about some further ones.

        A longer sequence can need less: near the end of the context fewer steps are planned for.
        """

        def check(lengths: set[int]) -> None:
            def needed(length: int) -> int:
                return planner.plan(self, length, batch, new=1, logits_rows=1).needed

            beyond = max(lengths) > (self.max_length or FOR_EVER)
            worst = max(lengths) if beyond else self._worst(lengths, needed)
            self.check_length(worst, batch, new=1, logits_rows=1, state=True)

        before = self._fitting if len(self._fitting) < CHECKED_STATES else []
        last = self.max_length or FOR_EVER
        further = {length: min(length + CHECKED_STEPS, last) for length in lengths}
        check(lengths)
        try:
            check(set(further.values()))
        except LimitError:
            further = dict.fromkeys(lengths, 0)
        self._fitting = before + [(a, max(a, b), batch) for a, b in further.items()]

    def _worst(self, found: Collection[T], needed: Callable[[T], int]) -> T:
        """The one that needs most memory; any of them where there is no limit."""
        only = len(found) == 1 or self.max_memory is None
        return next(iter(found)) if only else max(found, key=needed)

    def _check_covered(self, states: list[State]) -> None:
        """LimitError if steps of states that have room for them do not fit side by side: for one
        that was found out when its room was made.
        """
        if len(states) == 1 or self.max_memory is None:
            return
        rooms = {(*state.room, dropped_for([state])) for state in states}
        if (rooms, len(states)) == self._fitting_rooms:
            return

        def room(begin: int, end: int, dropped: int | None) -> tuple[int, dict[str, Any]]:
            """As in `planner.plan`."""
            end = min(end, self.max_length or end)
            what = {"new": 1, "room": end - begin - 1, "logits_rows": 1, "state": True}
            return end, what | {"ahead": dropped, "dropped": dropped is not None}

        def needed(planned: tuple[int, dict[str, Any]]) -> int:
            return planner.plan(self, planned[0], len(states), **planned[1]).needed

        length, what = self._worst([room(*one) for one in rooms], needed)
        self.check_length(length, len(states), **what)
        self._fitting_rooms = rooms, len(states)

    def _check_room(self, state: State, n: int) -> int:
        """n tokens more, or as many as there can be; LimitError if room for them does not fit."""
        length = min(state.position + n, self.max_length or state.position + n)
        if (n := length - state.position) > 0:
            self.check_length(length, new=1, room=n - 1, logits_rows=1, state=True)
        return n

    def _check_loaded(self, head: Head) -> None:
        """LimitError if a saved state does not fit: with the steps that it holds memory for, and
        what is read of its file meanwhile.
        """
        number, base, dropped = head.prepared
        length = min(base + number, self.max_length or FOR_EVER)
        room = length - base - 1
        if room < 0 or length < head.position:  # none: as one step
            length, room = max(1, head.position), 0
        self.check_length(
            length,
            new=1,
            room=room,
            state=True,
            ahead=number if dropped else None,
            dropped=dropped,
            read=head.copied,
        )


def dropped_for(states: list[State]) -> int | None:
    """Tokens for which the histories of all states were dropped; None where one has its own."""
    ends = [state.last for state in states]
    if None in ends:
        return None
    return max(end - state.room[0] for end, state in zip(ends, states, strict=True) if end)
