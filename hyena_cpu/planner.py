"""How much memory a run takes, said before any of it is taken.

The estimate counts the arrays that live at the same time at the busiest layer; it does not count
the weights, which are in memory already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import pooling
from .errors import InputError, LimitError

BATCH_ROWS = 16384  # tokens of short sequences that are worked on together
HEAD_ROWS = 256  # rows of logits made at a time where not all of them are wanted
LOGPROB_BYTES = 4 + 3 * 8  # a logit, and what its float64 softmax holds of it
BLOCKS_PER_THREAD = 4 << 20  # bytes: a block of tokens or a tile that a thread is working on

if TYPE_CHECKING:
    from .network import Network


@dataclass(frozen=True)
class Plan:
    """Buffers of a run by name: rows of (name, bytes)."""

    rows: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """Bytes of all rows together."""
        return sum(size for _, size in self.rows)

    def check(self, limit: int) -> None:
        """LimitError if the total is above `limit` bytes."""
        if self.total > limit:
            name, size = max(self.rows, key=lambda row: row[1])
            raise LimitError(
                f"this run needs about {readable(self.total)} (largest: {name}, {readable(size)}) "
                f"but max-memory is {readable(limit)}: allow at least {-(-self.total >> 10)} KiB "
                "or use a shorter input"
            )


def plan(
    model: Network,
    length: int,
    batch: int = 1,
    *,
    new: int | None = None,
    logits_rows: int = 0,
    state: bool = True,
    ahead: int | None = None,
) -> Plan:
    """Bytes by buffer for `batch` sequences that reach `length` tokens each.

    `new` of the tokens (None: all) are taken in by the one call that is planned, and `logits_rows`
    rows of logits are returned. state: the sequences can be continued; `logits`, `hidden`, `score`
    and `embed` keep none. ahead: by so many tokens at most, their history dropped.
    """
    if length < 1 or batch < 1:
        raise InputError(f"plan: length {length} and batch {batch} must both be at least 1")
    config = model.config
    new = length if new is None else new
    tokens = new * batch
    busiest = max(
        (block.mixer.buffers(tokens, alone=batch == 1, kept=state) for block in model.blocks),
        key=lambda rows: sum(size for _, size in rows),
    )
    states = sum(b.mixer.state_bytes(length, ahead) for b in model.blocks) * batch if state else 0
    return Plan(
        (
            ("ids and positions", 12 * tokens),
            ("residual stream", 4 * config.d_model * tokens),
            *busiest,
            *_filters(model, new, length, state),
            ("state", states),
            ("logits", 4 * config.logits_width * logits_rows),
            ("log-probabilities", LOGPROB_BYTES * config.logits_width * min(tokens, HEAD_ROWS)),
            ("rows handed out", 2 * 4 * config.d_model * min(tokens, pooling.BLOCK_ROWS)),
            ("blocks in work", BLOCKS_PER_THREAD * model.threads),
        )
    )


def batch_rows(model: Network) -> int:
    """Tokens of short sequences to work on together: fewer where `max_memory` holds no more."""
    rows = BATCH_ROWS
    while model.max_memory is not None and rows > HEAD_ROWS:
        length = min(rows, model.max_length or rows)
        if plan(model, length, -(-rows // length), state=False).total <= model.max_memory:
            break
        rows //= 2
    return rows


def _filters(model: Network, new: int, length: int, state: bool) -> list[tuple[str, int]]:
    """What the long filters hold: networks of implicit ones, transforms kept, one in the making."""
    # Sequences go on without a convolution where they do so by a recurrence.
    taps = [
        one for block in model.blocks for one in block.mixer.taps if one.stepped or new == length
    ]
    banks = {id(one.bank.source): one.bank for one in taps}.values()
    networks = [bank.network_bytes(length) for bank in banks]
    sizes = [one.bank.bytes_for(new, length, model.threads) for one in taps]
    steps = sum(one.filter_bytes(length) for one in taps if one.stepped)
    return [
        ("filter networks", sum(n for n, _ in networks) + max((n for _, n in networks), default=0)),
        ("filter transforms", min(sum(kept for kept, _ in sizes), model.convolutions.cache.budget)),
        ("filters for steps", steps if state else 0),
        ("filter in the making", max((passing for _, passing in sizes), default=0)),
    ]


def readable(size: int) -> str:
    """Bytes as a person writes them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
