"""How much memory a run takes, said before any of it is taken.

The estimate counts the arrays that live at the same time at the busiest layer; it does not count
the weights, which are in memory already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import LimitError

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
                f"but max-memory is {readable(limit)}: allow at least "
                f"{-(-self.total >> 20)} MiB or use a shorter input"
            )


def plan(
    model: Engine, length: int, batch: int = 1, *, new: int | None = None, logits_rows: int = 1024
) -> Plan:
    """Bytes by buffer for `batch` sequences that reach `length` tokens each.

    `new` of the tokens (None: all) are taken in by the one call that is planned, and at most
    `logits_rows` rows of logits are held at a time.
    """
    config = model.config
    tokens = (length if new is None else new) * batch
    busiest = max(
        (block.buffers(tokens) for block in model.blocks),
        key=lambda rows: sum(size for _, size in rows),
    )
    row = 4 * config.d_model * tokens
    return Plan(
        (
            ("residual stream", row),
            ("normalised rows", row),
            *busiest,
            ("state", sum(block.mixer.state_bytes(length) for block in model.blocks) * batch),
            ("logits", 4 * config.logits_width * min(tokens, logits_rows)),
        )
    )


def readable(size: int) -> str:
    """Bytes as a person writes them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"
