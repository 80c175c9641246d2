"""Long filters on demand: parameters in, taps of some channels and times out.

A filter of a million taps and 256 channels would fill a gigabyte, so nothing is materialised but
what all channels share (the last hidden layer of the filter MLP). Shapes use the letters of
docs/formats.md: C channels, L taps, P width of the MLP, E features, S modes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .config import FilterConfig
from .relu_filter import ReluFilter
from .ssm import Complex, as_complex, diagonal_modes, shift_taps

Array = NDArray[np.float32]

TILE = 16  # times in one tile of hidden units
_PIECE = 1 << 14  # times computed at once, a multiple of TILE; bounds the float64 features
_CHANNELS = 16  # channels at once where all of them must be looked at


class LongFilter(Protocol):
    """Causal filters h[c, t] of one long convolution, zero beyond `taps`.

    Values depend on c and t alone: any block, any preparation and any number of threads give the
    same bits.
    """

    @property
    def channels(self) -> int:
        """C."""

    @property
    def taps(self) -> int:
        """L."""

    def prepare(self, length: int, threads: int) -> None:
        """Computes what all channels share for t < length. Grows only; may run concurrently."""

    def block(self, c0: int, c1: int, t0: int, t1: int, threads: int = 1) -> Array:
        """Taps of channels [c0, c1) at times [t0, t1), float32 [c1 - c0, t1 - t0]."""

    def nbytes(self, length: int) -> int:
        """Bytes that prepare(length) keeps."""

    def working_bytes(self, length: int) -> int:
        """Bytes that prepare(length) and a block hold beside what is kept and returned."""

    def release(self, limit: int) -> None:
        """Drops what prepare keeps if it is more than `limit` bytes; it can be made again."""


def build_filter(config: FilterConfig, tensors: Mapping[str, Array], channels: int) -> LongFilter:
    """The filter of a config from its tensors, which are named as in docs/formats.md.

    Args:
        config: a checked filter configuration.
        tensors: float32 arrays by native name without "filter.".
        channels: C, output channels.
    """
    if config.kind == "explicit":
        return ExplicitFilter(tensors["taps"], config.threshold)
    if config.kind == "modal":
        poles, residues = as_complex(tensors["poles"]), as_complex(tensors["residues"])
        return ModalFilter(poles, residues, config.taps)
    if config.kind == "ssm_diag":
        return ModalFilter(*diagonal_modes(tensors, config.discretization), config.taps)
    if config.kind == "shift":
        return ExplicitFilter(shift_taps(tensors))
    if config.kind == "relu_mlp":
        return ReluFilter(tensors)
    return SineFilter(config, tensors, channels)


@dataclass(frozen=True)
class ExplicitFilter:
    """Stored taps [C, L], shrunk towards zero by a threshold (safari LongConv)."""

    stored: Array
    threshold: float = 0.0

    @property
    def channels(self) -> int:
        """C."""
        return int(self.stored.shape[0])

    @property
    def taps(self) -> int:
        """L."""
        return int(self.stored.shape[1])

    def prepare(self, length: int, threads: int) -> None:
        """Nothing is shared."""

    def block(self, c0: int, c1: int, t0: int, t1: int, threads: int = 1) -> Array:  # noqa: ARG002
        """See LongFilter."""
        out = np.zeros((c1 - c0, t1 - t0), np.float32)
        part = self.stored[c0:c1, t0:t1]
        if self.threshold:
            part = np.sign(part) * np.maximum(np.abs(part) - np.float32(self.threshold), 0)
        out[:, : part.shape[1]] = part
        return out

    def nbytes(self, length: int) -> int:  # noqa: ARG002
        """See LongFilter."""
        return 0

    def working_bytes(self, length: int) -> int:
        """See LongFilter. Copies of taps that are shrunk, of a group of channels."""
        return 4 * 4 * _CHANNELS * length if self.threshold else 0

    def release(self, limit: int) -> None:
        """Nothing is kept."""


class ModalFilter:
    """h[c, t] = Re sum_s residues[c, s] poles[c, s]^t, both complex128 [C, S], in float64."""

    def __init__(self, poles: Complex, residues: Complex, taps: int) -> None:
        self.channels, self.taps = poles.shape[0], taps
        self.poles, self.residues = poles, residues

    def prepare(self, length: int, threads: int) -> None:
        """Nothing is shared."""

    def block(self, c0: int, c1: int, t0: int, t1: int, threads: int = 1) -> Array:
        """See LongFilter."""
        start, end = min(t0, self.taps), min(t1, self.taps)
        out = np.zeros((c1 - c0, t1 - t0), np.float32)
        out[:, : end - start] = kernels.modal_taps(
            self.poles[c0:c1], self.residues[c0:c1], start, end, threads=threads
        )
        return out

    def nbytes(self, length: int) -> int:  # noqa: ARG002
        """See LongFilter."""
        return 0

    def working_bytes(self, length: int) -> int:
        """See LongFilter. A copy of what is returned."""
        return 4 * _CHANNELS * length

    def release(self, limit: int) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class _Shared:
    """What prepare computes; replaced as a whole, never changed."""

    hidden: Array  # tiles [G, P, 16], from time `begin` on
    time_norm: Array | None  # [16 G], divisors of channel_l1
    channel_norm: Array | None  # [C], divisors of time_l2
    begin: int = 0


class SineFilter:
    """Filters made by an MLP with sine activations (HyenaDNA, safari: `implicit`; `sine_window`).

    The sine layers multiply rounding errors by ten and more, so they run in float64; the last
    linear layer and the window are float32.
    """

    def __init__(self, config: FilterConfig, tensors: Mapping[str, Array], channels: int) -> None:
        layers = range(config.sine_layers)
        self.channels, self.taps = channels, config.taps
        self._width, self._bands = config.width, config.bands
        self._features_width = 2 * config.bands + 1
        self._weights = [tensors[f"linear.{k}.weight"].astype(np.float64) for k in layers]
        self._biases = [tensors[f"linear.{k}.bias"].astype(np.float64) for k in layers]
        self._freqs = [tensors[f"freq.{k}"].astype(np.float64) for k in layers]
        self._last = np.ascontiguousarray(tensors[f"linear.{config.sine_layers}.weight"])
        self._stored_features = tensors.get("features")
        self._times: Array | None = None
        self._rates: Array | None = None
        self._shift = 0.0
        if config.modulate and config.kind == "implicit":
            self._times = tensors["times"]
            self._rates = np.abs(tensors["deltas"])
            self._shift = config.shift
        elif config.modulate:
            self._times = np.arange(config.taps, dtype=np.float32)
            self._rates = np.exp(tensors["log_rate"].astype(np.float64)).astype(np.float32)
        self._normalize = config.normalize
        self._shared = self._nothing = _Shared(
            np.empty((0, config.width, TILE), np.float32), None, None
        )
        self._growing = threading.Lock()

    def prepare(self, length: int, threads: int) -> None:
        """See LongFilter. With time_l2 the whole filter is prepared, whatever the length."""
        self._prepared(length, threads)

    def _prepared(self, length: int, threads: int) -> _Shared:
        with self._growing:
            tiles = -(-self._kept(length) // TILE)
            if tiles > self._shared.hidden.shape[0]:
                self._shared = self._grown(self._shared, tiles, threads)
            return self._shared

    def block(self, c0: int, c1: int, t0: int, t1: int, threads: int = 1) -> Array:
        """See LongFilter. Prepares what was not prepared, unless the block does not begin at 0."""
        start, end = min(t0, self.taps), min(t1, self.taps)
        shared = self._shared
        if shared.hidden.shape[0] * TILE < self._kept(end):
            alone = start > 0 and self._normalize != "time_l2"
            shared = self._stretch(start, end, threads) if alone else self._prepared(end, threads)
        taps = self._unscaled(shared, c0, c1, start, end, threads)
        if shared.time_norm is not None:
            taps /= shared.time_norm[start - shared.begin : end - shared.begin]
        if shared.channel_norm is not None:
            taps /= shared.channel_norm[c0:c1, None]
        if end == t1:
            return taps
        out = np.zeros((c1 - c0, t1 - t0), np.float32)
        out[:, : end - start] = taps
        return out

    def nbytes(self, length: int) -> int:
        """See LongFilter."""
        times = -(-self._kept(length) // TILE) * TILE
        norms = {"none": 0, "channel_l1": times, "time_l2": self.channels}[self._normalize]
        return 4 * (times * self._width + norms)

    def working_bytes(self, length: int) -> int:
        """See LongFilter. Features and hidden units of a piece; all taps if measured."""
        piece = (2 * 8 * self._features_width + 4 * self._width) * min(length, _PIECE)
        whole = (4 + 8) * _CHANNELS * self.taps if self._normalize == "time_l2" else 0
        return max(piece, whole)

    def release(self, limit: int) -> None:
        """See LongFilter."""
        with self._growing:
            if self._shared.hidden.nbytes > limit:
                self._shared = self._nothing

    def _kept(self, length: int) -> int:
        return self.taps if self._normalize == "time_l2" else min(length, self.taps)

    def _grown(self, old: _Shared, tiles: int, threads: int) -> _Shared:
        """`old` continued to a number of tiles, piece by piece."""
        have = old.hidden.shape[0]
        hidden = np.empty((tiles, self._width, TILE), np.float32)
        hidden[:have] = old.hidden
        for t0 in range(have * TILE, tiles * TILE, _PIECE):
            t1 = min(t0 + _PIECE, tiles * TILE, self.taps)
            hidden[t0 // TILE : -(-t1 // TILE)] = self._hidden(t0, t1, threads)
        if self._normalize == "channel_l1":
            norm = np.empty(tiles * TILE, np.float32)
            if old.time_norm is not None:
                norm[: have * TILE] = old.time_norm
            for t0 in range(have * TILE, tiles * TILE, _PIECE):
                t1 = min(t0 + _PIECE, tiles * TILE, self.taps)
                norm[t0:t1] = self._channel_sums(_Shared(hidden, None, None), t0, t1, threads)
            return _Shared(hidden, norm, None)
        if self._normalize == "time_l2":
            return _Shared(hidden, None, self._energies(_Shared(hidden, None, None), threads))
        return _Shared(hidden, None, None)

    def _stretch(self, t0: int, t1: int, threads: int) -> _Shared:
        """What is shared at times t0 .. t1 alone, for a few taps that follow many."""
        begin = t0 // TILE * TILE
        shared = _Shared(self._hidden(begin, t1, threads), None, None, begin)
        if self._normalize != "channel_l1":
            return shared
        norm = self._channel_sums(shared, begin, t1, threads)
        return _Shared(shared.hidden, norm, None, begin)

    def _hidden(self, t0: int, t1: int, threads: int) -> Array:
        """Hidden units [ceil((t1 - t0) / 16), P, 16]; t0 is a multiple of 16."""
        hidden: Array = kernels.sine_mlp(
            self._features(t0, t1), self._weights, self._biases, self._freqs, threads
        )
        return hidden

    def _features(self, t0: int, t1: int) -> NDArray[np.float64]:
        """Positional features [t1 - t0, E]: the stored ones, or those of sine_window."""
        if self._stored_features is not None:
            return self._stored_features[t0:t1].astype(np.float64)
        t = np.arange(t0, t1, dtype=np.float64)[:, None] / self.taps
        angle = 2 * math.pi * t * np.linspace(1e-4, self._bands - 1, self._bands)
        return np.concatenate([t, np.cos(angle), np.sin(angle)], axis=1)

    def _unscaled(self, shared: _Shared, c0: int, c1: int, t0: int, t1: int, threads: int) -> Array:
        rates = None if self._rates is None else self._rates[c0:c1]
        times = None if self._times is None else self._times[shared.begin :]
        first, end = t0 - shared.begin, t1 - shared.begin
        taps: Array = kernels.filter_block(
            shared.hidden, self._last[c0:c1], times, rates, self._shift, first, end, threads
        )
        return taps

    def _channel_sums(self, shared: _Shared, t0: int, t1: int, threads: int) -> Array:
        """Sum over all channels of |h| at every time, in channel order."""
        total = np.zeros(t1 - t0)
        for c0 in range(0, self.channels, _CHANNELS):
            c1 = min(c0 + _CHANNELS, self.channels)
            for row in self._unscaled(shared, c0, c1, t0, t1, threads):
                total += np.abs(row)
        return total.astype(np.float32)

    def _energies(self, shared: _Shared, threads: int) -> Array:
        """Root of the sum of squares over all taps, plus 1e-6, of every channel."""
        found = np.empty(self.channels, np.float32)
        for c0 in range(0, self.channels, _CHANNELS):
            c1 = min(c0 + _CHANNELS, self.channels)
            rows = self._unscaled(shared, c0, c1, 0, self.taps, threads)
            squares = np.square(rows, dtype=np.float64).sum(axis=1)
            found[c0:c1] = np.sqrt(squares) + 1e-6
        return found
