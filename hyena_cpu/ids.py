"""Token ids as callers write them: lists, arrays of any integer kind and layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError


def token_ids(ids: ArrayLike, rows: int, *, empty: bool = False) -> NDArray[np.int32]:
    """ids as contiguous int32 [T], each in 0 .. rows - 1.

    Raises:
        InputError: text, more than one dimension, no integers, or out of range; no ids at all,
            unless they may be `empty`.
    """
    if isinstance(ids, str | bytes):
        raise InputError("token ids are needed, got text: encode it with model.tokenizer")
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise InputError(f"token ids must be one list of integers: {error}") from None
    if array.ndim != 1:
        raise InputError(f"token ids must be one-dimensional, got shape {list(array.shape)}")
    if array.size == 0:
        if empty:
            return np.zeros(0, np.int32)
        raise InputError("the sequence is empty: at least one token is needed")
    if array.dtype.kind not in "iu":
        raise InputError(f"token ids must be integers, got {array.dtype}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= rows:
        bad = low if low < 0 else high
        raise InputError(f"token id {bad} is outside the vocabulary 0..{rows - 1}")
    return np.ascontiguousarray(array, dtype=np.int32)


def several(sequences: Any) -> Sequence[Any]:
    """What was given if it is several texts or arrays of ids; one alone as a list of it."""
    numbers = isinstance(sequences, np.ndarray) and sequences.dtype.kind in "iubf"
    one = isinstance(sequences, str | bytes) or (numbers and sequences.ndim == 1)
    return [sequences] if one else sequences
