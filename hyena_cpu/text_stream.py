"""Text that grows piece by piece: whole UTF-8 characters only, and stop strings held back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .errors import InputError


class Utf8Stream:
    """Turns bytes that arrive in pieces into text, never half a character.

    The pieces together equal `bytes.decode("utf-8", "replace")` of the whole.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, data: bytes) -> str:
        """The characters that are complete now; an unfinished one waits."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What an unfinished character becomes: U+FFFD, or nothing if none was open."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Looks for stop strings across piece borders and shows nothing that may belong to one.

    Reading character by character, the string that is complete first wins (of two that end
    together the longer one), so the result does not depend on how the text was cut into pieces.

    Args:
        stops: the strings to look for. InputError if one is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise InputError("a stop string is empty: give at least one character")
        self.hit: str | None = None
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """The text that may be shown now. After a hit: what stood before the stop string."""
        if not self._stops:
            return text
        held = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return held[:at]
        keep = max(_overlap(held, stop) for stop in self._stops)
        cut = len(held) - keep
        self._held = held[cut:]
        return held[:cut]

    def finish(self) -> str:
        """The text that was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, but not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
