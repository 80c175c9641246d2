"""Token ids as callers write them: lists, arrays of any integer kind and layout."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import as_array
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
        array = as_array("token ids", ids)
    except ValueError as error:
        raise InputError(f"token ids must be one list of integers: {error}") from None
    if array.ndim != 1:
        got = f"shape {list(array.shape)}" if array.ndim else repr(ids)
        raise InputError(f"token ids must be one-dimensional, a list of integers; got {got}")
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


def several(sequences: Any) -> Iterable[Any]:
    """What was given if it is several texts or lists of ids; one alone as a list of it.

    Raises:
        InputError: it is neither.
    """
    if isinstance(sequences, str | bytes):
        return [sequences]
    if isinstance(sequences, np.ndarray):
        return [sequences] if sequences.ndim == 1 and sequences.dtype.kind in "iubf" else sequences
    if isinstance(sequences, list | tuple):
        one = len(sequences) > 0 and all(isinstance(item, Real) for item in sequences)
        return [sequences] if one else sequences
    if not isinstance(sequences, Iterable):
        raise InputError(f"texts or lists of token ids are needed, got {sequences!r}")
    return sequences
