"""How much memory a run takes, said before any of it is taken.

A call goes through phases: each layer's mixer, the preparation of steps, the head. What outlives a
phase is counted once, of the phases the largest. The weights, in memory already, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import pooling
from .errors import InputError, LimitError
from .online import goes_by_steps

BATCH_ROWS = 16384  # tokens of short sequences that are worked on together
HEAD_ROWS = 256  # rows of logits made at a time where not all of them are wanted
LOGPROB_BYTES = 4 + 3 * 8  # a logit, and what its float64 softmax holds of it
BLOCK_TOKENS = 132  # of a block that a thread is working on (csrc/tokenwise.cpp, csrc/linear.cpp)
THREAD_BYTES = 1 << 20  # beside such a block: copied rows, sums, a stack
# Freed memory that the allocator keeps, and small objects; of large arrays, parts of pages.
ALLOCATOR_BYTES, ALLOCATOR_SHARE = 8 << 20, 64
KEPT = "filter transforms kept"

if TYPE_CHECKING:
    from .mixers import Mixer
    from .network import Network
    from .online_taps import OnlineTaps

Rows = tuple[tuple[str, int], ...]


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


@dataclass(frozen=True)
class Call:
    """One call: `batch` sequences that stand at `before`, take in `new` tokens each, and make room
    for `room` further ones. ahead: for so many at most, their history dropped.
    """

    before: int
    new: int
    room: int
    batch: int
    state: bool
    ahead: int | None

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
        return self.state and goes_by_steps(self.before, self.new)


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
    """
    if length < 1 or batch < 1:
        raise InputError(f"plan: length {length} and batch {batch} must both be at least 1")
    new = length - room if new is None else new
    if new < 1 or room < 0 or new + room > length:
        raise InputError(f"plan: new {new} and room {room} do not fit length {length}")
    call = Call(length - room - new, new, room, batch, state, ahead)
    config = model.config
    if scored is None:
        scored = not (state or logits_rows or hidden_rows)
    # The ids of the caller as int32, those of all together, their positions; sums of scores.
    numbers = ("ids and positions", (4 + 4 + 8 + 8) * call.tokens)
    residual = ("residual stream", 4 * config.d_model * call.tokens)
    phases: list[Rows] = [
        (residual, *rows) for rows in _layers(model, call, embedded=config.positions is not None)
    ]
    phases.append((residual, *_head(model, call, logits_rows, hidden_rows, scored)))
    phases += _preparations(model, call, residual)
    busiest = max(phases, key=lambda rows: sum(size for _, size in rows))
    wide = max(
        (
            2 * one.mlp.width * (2 if one.mlp.kind == "swiglu" else 1)
            for one in config.layers
            if one.mlp
        ),
        default=0,
    )
    work = THREAD_BYTES + 4 * BLOCK_TOKENS * (config.d_model + max(wide, 4 * config.d_model))
    rows = (
        numbers,
        *busiest,
        ("filter networks", _networks(model, call.after)),
        ("filters for steps", _step_filters(model, call)),
        ("blocks in work", work * model.threads),
    )
    rest = ALLOCATOR_BYTES + sum(size for _, size in rows) // ALLOCATOR_SHARE
    rows = (*rows, ("allocator", rest))
    kept = _kept(model, call)
    kept += kept // ALLOCATOR_SHARE
    if model.max_memory is not None:
        kept = min(kept, max(0, model.max_memory - sum(size for _, size in rows)))
    return Plan((*rows, (KEPT, kept)))


def batch_rows(model: Network) -> int:
    """Tokens of short sequences to work on together: fewer where `max_memory` holds no more."""
    rows = BATCH_ROWS
    while model.max_memory is not None and rows > HEAD_ROWS:
        length = min(rows, model.max_length or rows)
        if plan(model, length, -(-rows // length), state=False).needed <= model.max_memory:
            break
        rows //= 2
    return rows


def _layers(model: Network, call: Call, *, embedded: bool) -> Iterator[Rows]:
    """What is held while each layer mixes, the residual stream apart."""
    if embedded:
        yield (("embedded positions", 4 * model.config.d_model * call.tokens),)
    done, todo = 0, sum(_state_before(block.mixer, call) for block in model.blocks)
    for block in model.blocks:
        mixer = block.mixer
        own = _state_before(mixer, call)
        todo -= own
        buffers = mixer.buffers(call.tokens, alone=call.batch == 1, kept=call.state)
        if call.steps:
            yield (*buffers, ("state", done + todo + max(own, _state_after(mixer, call))))
        else:
            making, joining = _convolving(model, mixer, call)
            held = _prompt(mixer, call.after, once=not call.before) if call.state else 0
            held *= call.batch
            state = done + todo + held
            yield (
                *buffers,
                ("filter in the making", making),
                ("chunks", joining),
                ("state", state),
            )
        done += _state_after(mixer, call)


def _convolving(model: Network, mixer: Mixer, call: Call) -> tuple[int, int]:
    """(bytes of a filter in the making, bytes that joining a chunk with its history takes)."""
    sizes = [one.bank.bytes_for(call.new, call.after, model.threads)[1] for one in mixer.taps]
    making = max(sizes, default=0)
    if not call.before:
        return making, 0
    rows = max((one.history_bytes(call.before) for one in mixer.taps), default=0)
    chunk = max((one.history_bytes(call.new) for one in mixer.taps), default=0)
    return max(making, 2 * rows), chunk


def _head(model: Network, call: Call, logits_rows: int, hidden_rows: int, scored: bool) -> Rows:
    """What is held while rows become logits or are handed out."""
    width, rows = model.config.d_model, min(call.tokens, HEAD_ROWS)
    blocks = min(call.tokens, pooling.BLOCK_ROWS)
    states = sum(_state_after(block.mixer, call) for block in model.blocks)
    normed = max(min(logits_rows, call.tokens), 2 * rows if scored else 0, 4 * blocks)
    return (
        ("normalised rows", 4 * width * normed),
        ("hidden states", 4 * width * hidden_rows),
        ("logits", 4 * model.config.logits_width * logits_rows),
        ("log-probabilities", LOGPROB_BYTES * model.config.logits_width * rows if scored else 0),
        ("state", states),
    )


def _preparations(model: Network, call: Call, residual: tuple[str, int]) -> Iterator[Rows]:
    """What is held while steps are prepared for, layer by layer."""
    if not call.state or not (call.room or call.steps or call.ahead is not None):
        return
    base, wanted = call.before if call.steps else call.after, _wanted(call)
    states = sum(_state_after(block.mixer, call) for block in model.blocks)
    passing = max(
        (
            one.starting_bytes(base, wanted, model.threads)
            for block in model.blocks
            for one in block.mixer.taps
        ),
        default=0,
    )
    yield ("what the history adds", passing), ("state", states)
    if call.ahead is not None:  # as soon as the layer is done
        for block in model.blocks:
            gates = block.mixer.buffers(call.tokens, alone=True, kept=True)
            history = _prompt(block.mixer, call.after)
            yield (
                residual,
                *gates,
                ("what the history adds", passing),
                ("state", states + history),
            )


def _wanted(call: Call) -> int | None:
    return call.ahead if call.ahead is not None else call.room or None


def _prompt(mixer: Mixer, length: int, *, once: bool = True) -> int:
    """Bytes of a state that has taken in `length` tokens, once: in one call, and not stepped."""
    own = getattr(mixer, "prompt_bytes", None)
    if own is not None and once:
        return int(own(length))
    steps = sum(one.state_bytes(length) - one.history_bytes(length) for one in mixer.taps)
    return mixer.state_bytes(length) - steps


def _state_before(mixer: Mixer, call: Call) -> int:
    if not call.state or not call.before:
        return 0
    return _prompt(mixer, call.before) * call.batch


def _state_after(mixer: Mixer, call: Call) -> int:
    """Bytes of the layer's states when the call is done with them."""
    if not call.state:
        return 0
    if call.ahead is not None:
        return mixer.state_bytes(call.after + call.room, call.ahead) * call.batch
    if not (call.room or call.steps):
        return _prompt(mixer, call.after, once=not call.before) * call.batch
    base = call.before if call.steps else call.after
    steps = sum(one.steps_bytes(base, _wanted(call)) for one in mixer.taps)
    steps = max(steps, sum(one.steps_bytes(call.after + call.room) for one in mixer.taps))
    held = _prompt(mixer, call.after + call.room, once=not call.before)
    return (held + steps) * call.batch


def _networks(model: Network, length: int) -> int:
    """Bytes of the small networks of implicit filters, which are kept."""
    banks = {id(one.bank.source): one.bank for one in _taps(model)}.values()
    return sum(bank.network_bytes(length)[0] for bank in banks)


def _step_filters(model: Network, call: Call) -> int:
    if not call.state or not (call.room or call.steps or call.ahead is not None):
        return 0
    base = call.before if call.steps else call.after
    return sum(one.filter_bytes(base, _wanted(call)) for one in _taps(model))


def _kept(model: Network, call: Call) -> int:
    """Bytes of transforms of filters, those of earlier calls included."""
    cache = model.convolutions.cache
    if call.steps:
        return cache.nbytes
    new = sum(one.bank.bytes_for(call.new, call.after, model.threads)[0] for one in _taps(model))
    return min(cache.nbytes + new, cache.budget)


def _taps(model: Network) -> list[OnlineTaps]:
    return [one for block in model.blocks for one in block.mixer.taps]


def readable(size: int) -> str:
    """Bytes as a person writes them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
