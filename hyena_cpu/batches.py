"""Short pieces of work together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .errors import HyenaError

T = TypeVar("T")


def grouped(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Consecutive items whose sizes are `limit` at most together; a larger one is alone.

    An error of the source comes after the items before it.
    """
    group: list[T] = []
    total = 0
    try:
        for item in items:
            n = size(item)
            if group and total + n > limit:
                yield group
                group, total = [], 0
            group.append(item)
            total += n
    except HyenaError:
        if group:
            yield group
        raise
    if group:
        yield group
