"""How much memory a run takes, said before any of it is taken.

The estimate counts the arrays that live at the same time at the busiest layer; it does not count
the weights, which are in memory already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import InputError, LimitError

BLOCK_ROWS = 4096  # rows of hidden states handed out at a time
HEAD_ROWS = 256  # rows of logits made at a time where not all of them are wanted
LOGPROB_BYTES = 4 + 3 * 8  # a logit, and what its float64 softmax holds of it
BLOCKS_PER_THREAD = 4 << 20  # bytes: a block of tokens or a tile that a thread is working on

if TYPE_CHECKING:
    from .engine import Engine


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
    model: Engine, length: int, batch: int = 1, *, new: int | None = None, logits_rows: int = 0
) -> Plan:
    """Bytes by buffer for `batch` sequences that reach `length` tokens each.

    `new` of the tokens (None: all) are taken in by the one call that is planned, and `logits_rows`
    rows of logits are returned.
    """
    if length < 1 or batch < 1:
        raise InputError(f"plan: length {length} and batch {batch} must both be at least 1")
    config = model.config
    new = length if new is None else new
    tokens = new * batch
    busiest = max(
        (block.mixer.buffers(tokens) for block in model.blocks),
        key=lambda rows: sum(size for _, size in rows),
    )
    row = 4 * config.d_model * tokens
    return Plan(
        (
            ("residual stream", row),
            *busiest,
            *_filters(model, new, length),
            ("state", sum(b.mixer.state_bytes(length) for b in model.blocks) * batch),
            ("logits", 4 * config.logits_width * logits_rows),
            ("log-probabilities", LOGPROB_BYTES * config.logits_width * min(tokens, HEAD_ROWS)),
            ("blocks in work", BLOCKS_PER_THREAD * model.threads),
        )
    )


def _filters(model: Engine, new: int, length: int) -> list[tuple[str, int]]:
    """What the long filters hold: networks of implicit ones, transforms kept, one in the making."""
    taps = [taps for block in model.blocks for taps in block.mixer.taps]
    banks = [one.bank for one in taps]
    sources = {id(bank.source): bank.source for bank in banks}
    sizes = [bank.bytes_for(new, length) for bank in banks]
    return [
        ("filter networks", sum(source.nbytes(length) for source in sources.values())),
        ("filter transforms", min(sum(kept for kept, _ in sizes), model.convolutions.cache.budget)),
        ("filters for steps", sum(one.filter_bytes(length) for one in taps)),
        ("filter in the making", max((passing for _, passing in sizes), default=0)),
    ]


def readable(size: int) -> str:
    """Bytes as a person writes them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
