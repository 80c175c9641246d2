"""Filters ready to be convolved with: taps as tiles, transforms by size, within a byte budget.

Shapes: C channels, G = ceil(C / 16) tiles, K taps in use, M transform size, S rows seen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .filters import LongFilter

Floats = NDArray[np.float32]
LANES = 16
# Smaller taps are dropped: they cannot be seen beside any other, and products with them are
# subnormal numbers, on which processors are many times slower.
NEGLIGIBLE = 1e-30
# A filter's network is kept between calls up to this part of the budget: a model has many filters.
NETWORK_SHARE = 16
SCRATCH_KEPT = 64 << 20  # bytes that kernels keep between calls beside what they work in
BLOCK_BYTES = 64 << 20  # of taps and spectrum, when a transform is too large to be kept


class Gates(TypedDict, total=False):
    """What a convolution does beside summing, as tiles: see `kernels.long_conv`."""

    skip: Floats | None  # [G, 16]
    pre: Floats | None  # [G, S, 16]
    post: Floats | None  # [G, S - start, 16]
    add: Floats | None  # [G, S - start or more, 16]; of several sequences it is the same


class SpectraCache:
    """Transforms of a model's filters, least recently used ones dropped above `budget` bytes."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._entries: OrderedDict[tuple[int, int, int], Floats] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int, int]) -> Floats | None:
        """The spectrum under this key, now the most recently used; None if it is not here."""
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: tuple[int, int, int], spectrum: Floats) -> None:
        """Keeps a spectrum, dropping old ones to make room."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = spectrum
            self._bytes += spectrum.nbytes
            while self._bytes > self.budget and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self._bytes -= dropped.nbytes

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0


class FilterBank:
    """The C filters of one long convolution: channels first .. first + C of a LongFilter."""

    def __init__(self, source: LongFilter, first: int, channels: int, cache: SpectraCache) -> None:
        self.source = source
        self.first = first
        self.channels = channels
        self.groups = -(-channels // LANES)
        self._cache = cache
        self._taps: Floats = np.zeros((self.groups, 0, LANES), np.float32)
        self._lock = threading.Lock()

    def taps(self, length: int, threads: int) -> Floats:
        """The first min(length, taps) taps as tiles [G, K, 16]; kept and grown by doubling."""
        length = min(length, self.source.taps)
        with self._lock:
            have = self._taps.shape[1]
            if have < length:
                grown = min(max(length, 2 * have, 64), self.source.taps)
                self._taps = self.tiles(0, self.groups, grown, threads)
            return self._taps[:, :length]

    def convolve(
        self,
        z: Floats,
        start: int,
        threads: int,
        *,
        out: Floats | None = None,
        **gates: Unpack[Gates],
    ) -> Floats:
        """Causal convolution of z [G, S, 16] for rows start .. S, as `kernels.long_conv`.

        `out` [G, S - start, 16] may be z itself; the result is returned, and may be elsewhere
        where the method cannot work in place. The method (direct sums, or a transform of some
        size) depends on S, start and the number of taps alone, so that a sequence's bits never
        depend on threads or on its neighbours.
        """
        seen = z.shape[1]
        size = kernels.conv_plan(seen - start, start, self.source.taps)
        if size == 0:
            taps = self.taps(seen, threads)
            return kernels.direct_conv(z, taps, start=start, threads=threads, **gates)
        # Without history every sequence of this transform size can share a spectrum.
        reach = min(self.source.taps, size // 2 if start == 0 else seen)
        return self.transform_convolve(z, start, size, reach, threads, out=out, **gates)

    def convolve_each(
        self, z: Floats, offsets: NDArray[np.int64], threads: int, **gates: Unpack[Gates]
    ) -> Floats:
        """`convolve` from the start on of sequences end to end: z [G, T, 16], sequence b in rows
        offsets[b] .. offsets[b + 1]. The bits of one at a time; z is scratch.
        """
        if len(offsets) == 2:
            return self.convolve(z, 0, threads, out=z, **gates)
        out = np.empty_like(z)
        spans = np.stack([offsets[:-1], offsets[1:]], axis=1)
        sizes = np.array([kernels.conv_plan(n, 0, self.source.taps) for n in np.diff(offsets)])
        for size in np.unique(sizes).tolist():
            own = spans[sizes == size]
            if size == 0:
                taps = self.taps(int(np.diff(own).max()), threads)
                kernels.direct_conv(z, taps, out=out, spans=own, threads=threads, **gates)
            else:
                reach = min(self.source.taps, size // 2)
                self.transform_convolve(z, 0, size, reach, threads, out=out, spans=own, **gates)
        return out

    def network_bytes(self, length: int) -> tuple[int, int]:
        """(kept, passing) bytes of the filter's network for `length` taps."""
        size = self.source.nbytes(length)
        return (size, 0) if size <= self._cache.budget // NETWORK_SHARE else (0, size)

    def bytes_for(self, new: int, seen: int, threads: int) -> tuple[int, int]:
        """(kept, passing) bytes that `convolve` of `new` rows after `seen` - `new` others needs:
        what stays for the next call, and what is dropped once it is made.
        """
        size = kernels.conv_plan(new, seen - new, self.source.taps)
        reach = min(self.source.taps, seen if size == 0 or new < seen else size // 2)
        row = 4 * LANES * self.groups
        if size == 0:
            return row * reach, row * reach
        working = kernels.conv_scratch(size, seen, threads=threads) + 4 * size  # and its plan
        if row * size <= self._cache.budget // 2:
            return row * size, max(2 * row * reach, working + min(working, SCRATCH_KEPT))
        groups = self._block(size)
        # Taps by channel and by tile, then those tiles beside their transform, then that in use.
        taps, spectrum = 4 * LANES * groups * reach, 4 * LANES * groups * size
        return 0, max(2 * taps, taps + spectrum + working) + min(working, SCRATCH_KEPT)

    def _block(self, size: int) -> int:
        """Groups whose filters are made at once where transforms of this size are not kept."""
        return min(self.groups, max(1, BLOCK_BYTES // (2 * 4 * LANES * size)))

    def transform_convolve(
        self,
        z: Floats,
        start: int,
        size: int,
        reach: int,
        threads: int,
        *,
        out: Floats | None = None,
        spans: NDArray[np.int64] | None = None,
        **gates: Unpack[Gates],
    ) -> Floats:
        """`convolve` with a transform of this size and this many taps, tile block by tile block.

        With spans int64 [B, 2], rows [first, last) are a sequence each.
        """
        if out is None:
            out = np.empty((self.groups, z.shape[1] - start, LANES), np.float32)
        for g0, g1, spectrum in self._spectra(size, reach, threads):
            cut = slice(g0, g1)
            kernels.long_conv(
                z[cut],
                spectrum,
                start,
                _part(gates.get("skip"), cut),
                _part(gates.get("pre"), cut),
                _part(gates.get("post"), cut),
                out[cut],
                add=_part(gates.get("add"), cut),
                spans=spans,
                threads=threads,
            )
            del spectrum  # before the next one is made
        return out

    def _spectra(self, size: int, reach: int, threads: int) -> Iterator[tuple[int, int, Floats]]:
        """Yields (first tile, last tile, spectrum): one cached whole, or blocks made on the way."""
        key = (id(self), size, reach)
        spectrum = self._cache.get(key)
        tile_bytes = 4 * LANES * size
        if spectrum is None and self.groups * tile_bytes <= self._cache.budget // 2:
            spectrum = self._spectrum(0, self.groups, size, reach, threads)
            self._cache.put(key, spectrum)
        if spectrum is not None:
            yield 0, self.groups, spectrum
            self.source.release(self._cache.budget // NETWORK_SHARE)
            return
        block = self._block(size)
        for g0 in range(0, self.groups, block):
            g1 = min(g0 + block, self.groups)
            yield g0, g1, self._spectrum(g0, g1, size, reach, threads)
        self.source.release(self._cache.budget // NETWORK_SHARE)

    def _spectrum(self, g0: int, g1: int, size: int, reach: int, threads: int) -> Floats:
        return kernels.spectrum(self.tiles(g0, g1, reach, threads), size, threads=threads)

    def tiles(self, g0: int, g1: int, length: int, threads: int) -> Floats:
        """The first `length` taps of tiles g0 .. g1, [g1 - g0, length, 16], made anew."""
        self.source.prepare(length, threads)
        c1 = min(g1 * LANES, self.channels)
        block = self.source.block(self.first + g0 * LANES, self.first + c1, 0, length, threads)
        for row in block:  # one at a time: a block can be as large as all that is kept
            np.copyto(row, 0.0, where=np.abs(row) < NEGLIGIBLE)
        return kernels.channels_to_tiles(block, threads=threads)


def _part(a: Floats | None, cut: slice) -> Floats | None:
    return None if a is None else a[cut]
