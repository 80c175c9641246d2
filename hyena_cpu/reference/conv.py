"""Convolutions and tile layouts in plain float64 numpy, under the names of the kernels.

Direct sums, slow on purpose, to be read beside the paper. A causal convolution of w with taps h
is c[t] = sum over k of h[k] w[t - k] (Poli et al. 2023, "Hyena Hierarchy", equation 1), gated as
y = post * (c + skip * w) with w = pre * z.

Shapes: T or S times, C channels, K taps, M transform size, G = ceil(C / 16) tiles of 16 lanes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
LANES = 16
LARGEST_TRANSFORM = 2**31


def rows_to_tiles(x: npt.ArrayLike) -> Array:
    """x [T, C] -> [G, T, 16]; lanes without a channel are zero."""
    rows = np.asarray(x, np.float64)
    T, C = rows.shape
    G = -(-C // LANES)
    z = np.zeros((G, T, LANES))
    for c in range(C):
        z[c // LANES, :, c % LANES] = rows[:, c]
    return z


def tiles_to_rows(z: npt.ArrayLike, channels: int) -> Array:
    """z [G, T, 16] -> [T, channels]."""
    tiles = np.asarray(z, np.float64)
    return np.stack([tiles[c // LANES, :, c % LANES] for c in range(channels)], axis=1)


def channels_to_tiles(x: npt.ArrayLike) -> Array:
    """x [C, T] -> [G, T, 16]."""
    return rows_to_tiles(np.asarray(x, np.float64).T)


def tiles_to_channels(z: npt.ArrayLike, channels: int) -> Array:
    """z [G, T, 16] -> [channels, T]."""
    return tiles_to_rows(z, channels).T


def multiply_tiles(a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
    """a * b, both [G, T, 16]."""
    return np.asarray(a, np.float64) * np.asarray(b, np.float64)


def short_conv(
    x: npt.ArrayLike,
    taps: npt.ArrayLike,
    bias: npt.ArrayLike | None,
    tail: npt.ArrayLike,
    parts: int,
) -> Array:
    """Depthwise causal FIR: x [T, C], taps [K, C], bias [C], tail [K-1, C] -> [parts, G, T, 16].

    taps[K-1] multiplies the current token, taps[0] the one K-1 ago; tail holds the K-1 inputs
    before x, oldest first.
    """
    rows, h = np.asarray(x, np.float64), np.asarray(taps, np.float64)
    T, C = rows.shape
    before = np.concatenate([np.asarray(tail, np.float64).reshape(-1, C), rows])
    y = np.zeros((T, C)) if bias is None else np.tile(np.asarray(bias, np.float64), (T, 1))
    for k in range(len(h)):
        y += h[k] * before[k : k + T]
    D = C // parts
    return np.stack([rows_to_tiles(y[:, p * D : (p + 1) * D]) for p in range(parts)])


def transform_size(minimum: int) -> int:
    """Smallest c 2^k >= minimum, at most 2^31: even for c in 1, 3, 5; k >= 6 for c in 9, 15, 27."""
    if minimum < 1:
        raise ValueError(f"transform_size: minimum is {minimum} but needs to be at least 1")
    sizes = [odd << k for odd in (1, 3, 5) for k in range(1, 32)]
    sizes += [odd << k for odd in (9, 15, 27) for k in range(6, 32)]
    fitting = [size for size in sizes if minimum <= size <= LARGEST_TRANSFORM]
    if not fitting:
        raise ValueError(f"transform_size: {minimum} is above the largest, {LARGEST_TRANSFORM}")
    return min(fitting)


def spectrum(taps: npt.ArrayLike, size: int) -> Array:
    """taps [G, K, 16] -> [G, size, 16]: the padded taps themselves stand for their spectrum."""
    h = np.asarray(taps, np.float64)
    padded = np.zeros((h.shape[0], size, h.shape[2]))
    padded[:, : h.shape[1]] = h
    return padded


def long_conv(
    z: npt.ArrayLike,
    spectrum: npt.ArrayLike,
    start: int = 0,
    skip: npt.ArrayLike | None = None,
    pre: npt.ArrayLike | None = None,
    post: npt.ArrayLike | None = None,
) -> Array:
    """Gated product modulo t^M + 1: z, pre [G, S, 16], spectrum [G, M, 16] of the reference,
    skip [G, 16], post [G, S - start, 16] -> [G, S - start, 16].

    What the convolution holds beyond M comes back M earlier with its sign turned.
    """
    w, h = _gate(z, pre), np.asarray(spectrum, np.float64)
    S, M = w.shape[1], h.shape[1]
    c = np.zeros_like(w)
    for t in range(S):
        lags = t - np.arange(S)
        signs = np.where(lags < 0, -1.0, 1.0)[:, None]
        c[:, t] = np.sum(signs * h[:, lags % M] * w, axis=1)
    return _finish(c, w, start, skip, post)


def row_spectrum(taps: npt.ArrayLike, size: int) -> Array:
    """taps [C, K] -> [C, size], as spectrum."""
    return spectrum(np.asarray(taps)[..., None], size)[..., 0]


def row_conv(
    z: npt.ArrayLike,
    spectrum: npt.ArrayLike,
    skip: npt.ArrayLike | None = None,
    pre: npt.ArrayLike | None = None,
    post: npt.ArrayLike | None = None,
) -> Array:
    """long_conv of z, pre, post [C, T], spectrum [C, M] and skip [C]: tiles of one lane."""
    one_lane = [None if a is None else np.asarray(a)[..., None] for a in (skip, pre, post)]
    tiles, filters = np.asarray(z)[..., None], np.asarray(spectrum)[..., None]
    return long_conv(tiles, filters, 0, *one_lane)[..., 0]


def direct_conv(
    z: npt.ArrayLike,
    taps: npt.ArrayLike,
    start: int = 0,
    skip: npt.ArrayLike | None = None,
    pre: npt.ArrayLike | None = None,
    post: npt.ArrayLike | None = None,
) -> Array:
    """Gated causal convolution: z, pre [G, S, 16], taps [G, K, 16], skip [G, 16],
    post [G, S - start, 16] -> [G, S - start, 16]."""
    w, h = _gate(z, pre), np.asarray(taps, np.float64)
    S = w.shape[1]
    c = np.zeros_like(w)
    for k in range(min(h.shape[1], S)):
        c[:, k:] += h[:, k, None] * w[:, : S - k]
    return _finish(c, w, start, skip, post)


def _gate(z: npt.ArrayLike, pre: npt.ArrayLike | None) -> Array:
    w = np.asarray(z, np.float64)
    return w if pre is None else np.asarray(pre, np.float64) * w


def _finish(
    c: Array, w: Array, start: int, skip: npt.ArrayLike | None, post: npt.ArrayLike | None
) -> Array:
    if skip is not None:
        c = c + np.asarray(skip, np.float64)[:, None] * w
    y = c[:, start:]
    return y if post is None else np.asarray(post, np.float64) * y
