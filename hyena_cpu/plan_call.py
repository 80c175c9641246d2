"""The call that a memory plan is made for: see `planner`."""

from __future__ import annotations

from dataclasses import dataclass

from .online import goes_by_steps


@dataclass(frozen=True)
class Call:
    """One call: `batch` sequences that stand at `before`, take in `new` tokens each, and make room
    for `room` further ones. ahead: for so many at most, their history dropped; dropped: long ago.
    peek: all of them continue one state, which stays as it is. copies: forks of each state, later.
    depth: it ends after so many blocks. held: bytes that the states hold for steps.
    """

    before: int
    new: int
    room: int
    batch: int
    state: bool
    ahead: int | None
    peek: bool
    dropped: bool = False
    copies: int = 0
    depth: int | None = None
    held: int = 0

    @property
    def states(self) -> int:
        """States in memory."""
        return 0 if not self.state else 1 if self.peek else self.batch

    @property
    def base(self) -> int:
        """Where steps begin."""
        return self.before if self.steps else self.after

    @property
    def prepares(self) -> bool:
        """Whether it leaves states that are prepared for steps."""
        return self.state and (self.room > 0 or self.steps or self.ahead is not None)

    @property
    def wanted(self) -> int | None:
        """Steps to prepare for; None: unknown."""
        return self.ahead if self.ahead is not None else self.room or None

    @property
    def after(self) -> int:
        """Tokens of a sequence when the call is done."""
        return self.before + self.new

    @property
    def tokens(self) -> int:
        """Tokens taken in, of all sequences."""
        return self.new * self.batch

    @property
    def steps(self) -> bool:
        """Whether its tokens are taken in one by one."""
        by_steps = self.dropped or goes_by_steps(self.before, self.new)
        return self.state and not self.peek and by_steps

    @property
    def taken(self) -> int:
        """Steps of each sequence that the call takes and makes room for; at least the first one is
        prepared.
        """
        return max(1, self.after + self.room - self.base)
