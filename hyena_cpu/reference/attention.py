"""Float64 statements of attention over a cache and of rotary positions.

Shapes: n queries, T rows, H heads, hd head width. A cache holds keys [H, slots/16, hd, 16], 16
consecutive slots in the last axis, and values [H, slots, hd].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def rotary(
    x: npt.ArrayLike, positions: npt.ArrayLike, heads: int, base: float, dims: int | None = None
) -> Array:
    """x [T, H * hd] with elements i and i + dims/2 of a head turned by position * base^(-2i/dims);
    dims None: all of the head.

    arXiv 2104.09864 with the halves of a head paired; a new array, where the kernel works in place.
    """
    rows = np.asarray(x, np.float64)
    parts = rows.reshape(len(rows), heads, -1)
    dims = parts.shape[-1] if dims is None else dims
    rate = base ** (-2.0 * np.arange(dims // 2) / dims)
    turn = np.exp(1j * np.asarray(positions, np.float64)[:, None] * rate)[:, None, :]
    first, second = np.split(parts[..., :dims], 2, axis=-1)
    pairs = (first + 1j * second) * turn
    return np.concatenate([pairs.real, pairs.imag, parts[..., dims:]], axis=-1).reshape(rows.shape)


def kv_append(
    keys: npt.NDArray[Any],
    values: npt.NDArray[Any],
    k: npt.NDArray[Any],
    v: npt.NDArray[Any],
    at: int,
) -> None:
    """Writes k, v [n, H * hd] to slots at .. at + n of the cache."""
    H, _, hd = values.shape
    for i in range(k.shape[0]):
        keys[:, (at + i) // 16, :, (at + i) % 16] = k[i].reshape(H, hd)
        values[:, at + i, :] = v[i].reshape(H, hd)


def attend(
    q: npt.ArrayLike,
    keys: npt.NDArray[Any],
    values: npt.NDArray[Any],
    first: int,
    start: int = 0,
    window: int = 0,
) -> Array:
    """softmax(q k^T / sqrt(hd)) v [n, H * hd]: query i sees slots from start to first + i.

    With a window, only the last `window` of those. arXiv 1706.03762, section 3.2.1.
    """
    return attend_at(q, first + np.arange(len(np.asarray(q))), keys, values, start, window)


def attend_at(
    q: npt.ArrayLike,
    at: npt.ArrayLike,
    keys: npt.NDArray[Any],
    values: npt.NDArray[Any],
    start: int = 0,
    window: int = 0,
) -> Array:
    """`attend` where query i sits at slot at[i] and sees slots from start to that one."""
    H, slots, hd = values.shape
    rows = np.asarray(q, np.float64).reshape(-1, H, hd)
    y = np.empty_like(rows)
    k = keys.astype(np.float64).transpose(0, 1, 3, 2).reshape(H, slots, hd)
    for row, own, to in zip(rows, np.asarray(at).tolist(), y, strict=True):
        end = own + 1
        seen = slice(max(start, end - window) if window else start, end)
        for h in range(H):
            scores = k[h, seen] @ row[h] / np.sqrt(hd)
            weights = np.exp(scores - scores.max())
            to[h] = weights @ values[h, seen].astype(np.float64) / weights.sum()
    return y.reshape(len(rows), H * hd)
