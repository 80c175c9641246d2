"""Checks of what a caller gives: single numbers, arrays."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

MOST_TOKENS = 1 << 40  # that anybody may ask for: what they take can still be counted


def check_whole(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """The value as an int; InputError unless it is a whole number in low..high."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InputError(f"{name} is {value!r}, must be a whole number")
    whole = int(value)
    if low is not None and whole < low:
        raise InputError(f"{name} is {whole}, must be at least {low}")
    if high is not None and whole > high:
        raise InputError(f"{name} is {whole}, must be at most {high}")
    return whole


def as_array(name: str, values: Any) -> NDArray[Any]:
    """The values as an array, not copied if they are one; InputError if some of them are masked:
    what stands below a mask is no value.
    """
    if np.ma.is_masked(values):
        raise InputError(f"{name}: some values are masked; fill them in with filled()")
    return np.asarray(values)
