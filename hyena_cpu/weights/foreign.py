"""Reading configurations that others wrote: typed access, defaults, notes on what was ignored."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import ModelError

log = logging.getLogger(__name__)

# Keys that ask for other numbers than float32 while computing (quantised or 8-bit inference).
_NUMBER_FORMAT = re.compile(r"fp8|fp4|float8|int8|int4|quantiz", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """Where a model comes from (for messages) and what the caller asked for."""

    config: str
    weights: str
    modulation_shift: float | None = None
    allow_nonfinite: bool = False

    def __post_init__(self) -> None:
        if self.modulation_shift is not None and not abs(self.modulation_shift) < 1e30:
            raise ModelError(
                f"modulation_shift must be a finite number, got {self.modulation_shift}"
            )


@dataclass
class Keys:
    """One JSON object. Every key that is read is remembered; `unread` says what remains."""

    data: dict[str, Any]
    where: str
    notes: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not isinstance(self.data, dict):
            raise ModelError(f"{self.where}: must be an object, got {type(self.data).__name__}")

    def has(self, name: str) -> bool:
        """Whether the key is present and not null."""
        return self.data.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; 3.0 is taken as 3 with a note. Required if there is no default."""
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            self.notes.append(f"{self.where}: {name} is {value}, taken as {int(value)}")
            value = int(value)
        if type(value) is not int:
            raise ModelError(f"{self.where}: {name} must be a whole number, got {value!r:.60}")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.integer(name, default)
        if value < 1:
            raise ModelError(f"{self.where}: {name} is {value}, must be at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not abs(value) < 1e30:
            raise ModelError(f"{self.where}: {name} must be a finite number, got {value!r:.60}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """true or false, not a string that looks like one."""
        value = self._value(name, default)
        if type(value) is not bool:
            raise ModelError(f"{self.where}: {name} must be true or false, got {value!r:.60}")
        return value

    def section(self, name: str) -> Keys:
        """A nested object, empty if absent."""
        return Keys(self._value(name, {}), f"{self.where}: {name}", self.notes)

    def require(self, name: str, wanted: Any, why: str) -> None:
        """Refuses a value other than the one this engine implements (which is the default)."""
        value = self._value(name, wanted)
        if value != wanted:
            raise ModelError(f"{self.where}: {name} is {value!r:.60}, only {wanted!r} works: {why}")

    def skip(self, names: str) -> None:
        """Passes over keys (separated by spaces) that only concern training or bookkeeping."""
        self.read.update(names.split())

    def finish(self) -> None:
        """Notes the keys nobody asked for."""
        unread = [name for name in self.data if name not in self.read]
        formats = [name for name in unread if _NUMBER_FORMAT.search(name) and self.data[name]]
        if formats:
            note = f"{self.where}: {', '.join(formats)}: computed in float32 all the same"
            log.warning("%s", note)  # the answer can differ from that of the original
            self.notes.append(note)
        unread = [name for name in unread if name not in formats]
        if unread:
            self.notes.append(f"{self.where}: keys without effect here: {', '.join(unread)}")

    def _value(self, name: str, default: Any) -> Any:
        self.read.add(name)
        value = self.data.get(name)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.where}: key {name!r} is missing")
        return default
