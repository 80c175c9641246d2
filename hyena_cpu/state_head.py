"""What a state file says of itself in its header, before its arrays are read.

The tree in it (see `parts`) has one dict for each convolution: "history", whose "chunks" hold the
"rows" before its steps, and "steps", with their "base" and "horizon", or None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError
from .parts import MOST, Parts
from .step_plan import FOR_EVER

ALIGN = 64
KINDS = {"float32": "<f4", "float64": "<f8", "int32": "<i4"}
MAX_RANK = 8


@dataclass(frozen=True)
class Head:
    """What a file says of itself before its arrays are read."""

    fingerprint: str
    position: int
    isa: str  # kernels that it was saved by: with others a run goes on to rounding
    state: Any  # the tree, see `parts`
    shapes: list[tuple[int, ...]]
    kinds: list[str]
    begins: int  # where the arrays begin

    @property
    def prepared(self) -> tuple[int, int, bool]:
        """(number, base, dropped) of the longest steps of a convolution that memory is held for:
        how many, where they begin, whether the rows before them are gone. 0 where it is not fixed.
        """
        gone = not self._history
        found = [(number, base, base > 0 and gone) for number, base in self._steps]
        return max(found, default=(0, 0, False))

    @property
    def room_end(self) -> int:
        """The position up to which every convolution has memory for its steps; 0 if one has not."""
        ends = [base + number for number, base in self._steps]
        return min(ends) if ends and len(ends) == len(self._convolutions) else 0

    @property
    def copied(self) -> int:
        """Bytes of the arrays that a state does not hold as they are."""
        history = self._history
        each = enumerate(sizes(self.shapes, self.kinds))
        return sum(size for array, size in each if array not in history)

    @property
    def _convolutions(self) -> list[dict[str, Any]]:
        return [one for one in _dicts(self.state) if {"history", "steps"} <= set(one)]

    @property
    def _steps(self) -> list[tuple[int, int]]:
        """(number, base) of steps that memory is held for at once, of each convolution."""
        found, gone = [], not self._history
        for steps in _dicts([one["steps"] for one in self._convolutions]):
            base, number = steps.get("base"), steps.get("horizon")
            if type(base) is type(number) is int and number < FOR_EVER:
                fixed = steps.get("period", 0) == 0 or (base > 0 and gone)
                found += [(number, base)] if fixed else []
        return found

    @property
    def _history(self) -> set[int]:
        """Numbers of the arrays that are rows before steps."""
        each = _dicts([one["history"] for one in self._convolutions])
        chunks = [one["rows"] for one in each if isinstance(one.get("rows"), dict)]
        arrays = [rows.get("array") for rows in chunks]
        return {array for array in arrays if type(array) is int}


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Every dict of a tree."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            yield from _dicts(item)


def parse(header: bytes, path: str | Path, begins: int, room: int) -> Head:
    """Checks a header: every array has to be within the `room` bytes that follow it. InputError."""
    try:
        head = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged: its header is no JSON") from error
    top = Parts(f"{path}: header", head, [])
    names = [head.get(name) for name in ("fingerprint", "isa")]
    if not all(isinstance(name, str) for name in names):
        raise top.refuse("must name fingerprint and isa")
    entries = head.get("arrays")
    if not isinstance(entries, list):
        raise top.refuse("has no list of arrays")
    shapes = [_shape(entry) for entry in entries]
    if None in shapes:
        raise top.refuse("describes an array that is none")
    checked = [shape for shape in shapes if shape is not None]
    kinds = [entry["dtype"] for entry in entries]
    starts, end = places(sizes(checked, kinds))
    if end != room or starts != [entry["offset"] for entry in entries]:
        raise top.refuse(f"describes {end} bytes of arrays, but the file has {room}")
    position = top.part("state").whole("position")
    return Head(names[0], position, names[1], head["state"], checked, kinds, begins)


def places(sizes: list[int]) -> tuple[list[int], int]:
    """Where each array of so many bytes begins, and where the last one ends."""
    starts, at = [], 0
    for size in sizes:
        start = -(-at // ALIGN) * ALIGN
        starts.append(start)
        at = start + size
    return starts, at


def sizes(shapes: list[tuple[int, ...]], kinds: list[str]) -> list[int]:
    """Bytes of each array."""
    items = (np.dtype(KINDS[kind]).itemsize for kind in kinds)
    return [item * math.prod(shape) for item, shape in zip(items, shapes, strict=True)]


def _shape(entry: Any) -> tuple[int, ...] | None:
    """The shape of an array's entry; None if it describes none."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "offset"}:
        return None
    shape = entry["shape"]
    if entry["dtype"] not in tuple(KINDS) or type(entry["offset"]) is not int:
        return None
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        return None
    if any(type(n) is not int or not 0 <= n < MOST for n in shape):
        return None
    # numpy multiplies the lengths of an empty array too.
    return tuple(shape) if math.prod(max(n, 1) for n in shape) < MOST else None
