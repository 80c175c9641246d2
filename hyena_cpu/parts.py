"""Plain data of a state as it was read from a file: every value is checked when it is asked for.

What is saved is a tree of dicts, lists, whole numbers, None, and arrays of float32, float64 or
int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]
MOST = 1 << 48  # of any count or position


class Parts:
    """One dict of the tree. `where` names it in errors; every error is an InputError.

    In `values` an array stands as {"array": its number in `arrays`}.
    """

    def __init__(self, where: str, values: Any, arrays: Sequence[NDArray[Any]]) -> None:
        if not isinstance(values, dict):
            raise InputError(f"{where} is {_short(values)}, must be an object")
        self.where = where
        self._values = values
        self._arrays = arrays

    def refuse(self, problem: str) -> InputError:
        """The error that says what is wrong with this part."""
        return InputError(f"{self.where} {problem}")

    def whole(self, name: str, low: int = 0, high: int = MOST) -> int:
        """A whole number in low..high."""
        value = self._get(name)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name, _short(value), f"a number in {low}..{high}")
        return value

    def has(self, name: str) -> bool:
        """Whether there is a value of this name, which files of older formats may lack."""
        return name in self._values

    def floats(self, name: str, *shape: int | None) -> Floats:
        """An array of this shape; None stands for any length."""
        found = self.maybe_floats(name, *shape)
        if found is None:
            raise self._wrong(name, "null", "an array of the file")
        return found

    def maybe_floats(self, name: str, *shape: int | None) -> Floats | None:
        """`floats`, or None where that was saved."""
        return self._array(name, np.float32, shape)

    def doubles(self, name: str, *shape: int | None) -> NDArray[np.float64]:
        """A float64 array of this shape; None stands for any length."""
        found: NDArray[np.float64] | None = self._array(name, np.float64, shape)
        if found is None:
            raise self._wrong(name, "null", "an array of the file")
        return found

    def maybe_ids(self, name: str, length: int) -> Ids | None:
        """int32 [length], or None where that was saved."""
        return self._array(name, np.int32, (length,))

    def _array(self, name: str, kind: type, shape: tuple[int | None, ...]) -> Any:
        value = self._get(name)
        if value is None:
            return None
        number = value.get("array") if isinstance(value, dict) else None
        if type(number) is not int or not 0 <= number < len(self._arrays):
            raise self._wrong(name, _short(value), "an array of the file")
        found = self._arrays[number]
        fits = found.dtype == kind and len(found.shape) == len(shape)
        if not fits or any(n not in (None, m) for n, m in zip(shape, found.shape, strict=True)):
            wanted = ", ".join("any" if n is None else str(n) for n in shape)
            have = f"{found.dtype} of shape {list(found.shape)}"
            raise self._wrong(name, have, f"{np.dtype(kind)} [{wanted}]")
        return found

    def part(self, name: str) -> Parts:
        """A dict below this one."""
        return Parts(f"{self.where}.{name}", self._get(name), self._arrays)

    def maybe_part(self, name: str) -> Parts | None:
        """`part`, or None where that was saved."""
        return None if self._get(name) is None else self.part(name)

    def each(self, name: str, count: int | None = None) -> list[Parts]:
        """A list of dicts below this one, of this length if one is given."""
        value = self._get(name)
        if not isinstance(value, list) or count not in (None, len(value)):
            wanted = "a list" if count is None else f"a list of {count}"
            raise self._wrong(name, _short(value), wanted)
        return [
            Parts(f"{self.where}.{name}[{i}]", item, self._arrays) for i, item in enumerate(value)
        ]

    def _wrong(self, name: str, found: str, wanted: str) -> InputError:
        return InputError(f"{self.where}.{name} is {found}, must be {wanted}")

    def _get(self, name: str) -> Any:
        if name not in self._values:
            raise self.refuse(f"lacks {name}")
        return self._values[name]


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else f"{value!r:.40}"
