"""How much memory a run takes, said before any of it is taken.

A call goes through phases: each layer's mixer, the preparation of steps, the head. What outlives a
phase is counted once, of the phases the largest. The weights, in memory already, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import plan_phases, plan_states
from .checks import check_whole
from .errors import InputError, LimitError
from .plan_call import Call
from .plan_phases import Rows

BATCH_ROWS = 16384  # tokens of short sequences that are worked on together
# Freed memory that the allocator keeps, and small objects; of large arrays, parts of pages.
ALLOCATOR_BYTES, ALLOCATOR_SHARE = 8 << 20, 64
EARLIER_BYTES = 3 << 20  # of it, what an earlier call on the same sequences has left
KEPT = "filter transforms kept"
KEPT_SHARE = 16  # of them, what the allocator has beside them

if TYPE_CHECKING:
    from .network import Network


@dataclass(frozen=True)
class Plan:
    """Buffers of a run by name: rows of (name, bytes)."""

    rows: Rows

    @property
    def total(self) -> int:
        """Bytes of all rows together."""
        return sum(size for _, size in self.rows)

    @property
    def needed(self) -> int:
        """Bytes that the run cannot do without: filter transforms are kept where there is room."""
        return sum(size for name, size in self.rows if name != KEPT)

    def check(self, limit: int) -> None:
        """LimitError if `needed` is above `limit` bytes."""
        if self.needed > limit:
            name, size = max((row for row in self.rows if row[0] != KEPT), key=lambda row: row[1])
            raise LimitError(
                f"this run needs about {readable(self.needed)} (largest: {name}, {readable(size)}) "
                f"but max-memory is {readable(limit)}: allow at least {-(-self.needed >> 10)} KiB "
                "or use a shorter input"
            )


def plan(
    model: Network,
    length: int,
    batch: int = 1,
    *,
    new: int | None = None,
    room: int = 0,
    logits_rows: int = 0,
    hidden_rows: int = 0,
    state: bool = True,
    scored: bool | None = None,
    ahead: int | None = None,
    peek: bool = False,
    dropped: bool = False,
    copies: int = 0,
    read: int | None = None,
    depth: int | None = None,
    held: int = 0,
) -> Plan:
    """Bytes by buffer for `batch` sequences that reach `length` tokens each.

    Args:
        new: tokens of each that the one call that is planned takes in (None: all but `room`).
        room: tokens of each that may follow, for which the call makes room.
        logits_rows, hidden_rows: rows of logits and hidden states that are returned.
        state: the sequences can be continued; `logits`, `hidden`, `score` and `embed` keep none.
        scored: whether log-probabilities of tokens are computed (None: where there is no state and
            nothing is returned).
        ahead: by so many tokens at most, their history dropped.
        dropped: it was dropped by an earlier call, for `ahead` tokens.
        peek: the sequences are continuations of one state, which stays as it is.
        copies: forks of each state that are made when the call is done, and go on as it does.
        read: nothing is taken in: the states after such a call come from a file, of which so many
            bytes are in memory beside them.
        depth: blocks that sequences without a state go through (None: all of them).
        held: bytes that the sequences hold for steps that they are prepared for.
    """
    length, batch = check_whole("plan: length", length, 1), check_whole("plan: batch", batch, 1)
    room, copies = check_whole("plan: room", room, 0), check_whole("plan: copies", copies, 0)
    logits_rows = check_whole("plan: logits_rows", logits_rows, 0)
    hidden_rows = check_whole("plan: hidden_rows", hidden_rows, 0)
    ahead = None if ahead is None else check_whole("plan: ahead", ahead)
    held = check_whole("plan: held", held, 0)
    new = length - room if new is None else check_whole("plan: new", new)
    if new < 1 or new + room > length:
        raise InputError(f"plan: new {new} and room {room} do not fit length {length}")
    if dropped and ahead is None:
        raise InputError("plan: a history was dropped for a number of tokens: say ahead")
    if copies and (peek or not state):
        raise InputError(f"plan: copies is {copies}, but they are of states that take tokens in")
    call = Call(
        length - room - new, new, room, batch, state, ahead, peek, dropped, copies, depth, held
    )
    if scored is None:
        scored = not (state or logits_rows or hidden_rows)
    work = plan_phases.work(model) * model.threads
    if read is None:
        phases = list(_phases(model, call, logits_rows, hidden_rows, scored))
    else:
        states = plan_states.all_after(model, call)
        phases, work = [(("read from a file", read), *plan_phases.loaded(model, call, states))], 0
    rows = (
        # The ids of the caller as int32, those of all together, their positions; scores.
        ("ids and positions", (4 + 4 + 8 + 8) * call.tokens),
        *max(phases, key=lambda rows: sum(size for _, size in rows)),
        ("filter networks", plan_phases.networks(model, call, read=read is not None)),
        ("blocks in work", work),
    )
    rest = ALLOCATOR_BYTES + (EARLIER_BYTES if call.before else 0)
    # Where steps were, the allocator has many small places.
    share = ALLOCATOR_SHARE // 2 if call.held else ALLOCATOR_SHARE
    rest += sum(size for _, size in rows) // share
    needed = Plan((*rows, ("allocator", rest)))
    kept = plan_phases.kept_spectra(model, call)
    kept += kept // KEPT_SHARE
    if model.max_memory is not None:
        kept = min(kept, max(0, model.max_memory - needed.total))
    return Plan((*needed.rows, (KEPT, kept)))


def _phases(
    model: Network, call: Call, logits_rows: int, hidden_rows: int, scored: bool
) -> Iterator[Rows]:
    """What each phase of a call holds."""
    residual = ("residual stream", 4 * model.config.d_model * call.tokens)
    for rows in plan_phases.layers(model, call):
        yield residual, *rows
    states = plan_states.all_after(model, call)
    yield residual, *plan_phases.head(model, call, states, logits_rows, hidden_rows, scored)
    yield from plan_phases.preparations(model, call, states)
    yield plan_phases.stepped_on(model, call, states)


def batch_rows(model: Network) -> int:
    """Tokens of short sequences to work on together: fewer where `max_memory` holds no more."""
    rows = BATCH_ROWS
    while model.max_memory is not None and rows > plan_phases.HEAD_ROWS:
        length = min(rows, model.max_length or rows)
        if plan(model, length, -(-rows // length), state=False).needed <= model.max_memory:
            break
        rows //= 2
    return rows


def readable(size: int) -> str:
    """Bytes as a person writes them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
