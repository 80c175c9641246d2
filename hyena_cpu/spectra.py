"""Filters ready to be convolved with: taps as tiles, transforms by size, within a byte budget.

Shapes: C channels, G = ceil(C / 16) tiles, K taps in use, M transform size, S rows seen.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .errors import LimitError
from .filters import LongFilter
from .spectra_cache import SpectraCache

Floats = NDArray[np.float32]
LANES = 16
# Smaller taps are dropped: they cannot be seen beside any other, and products with them are
# subnormal numbers, on which processors are many times slower.
NEGLIGIBLE = 1e-30
# A filter's network is kept between calls up to this part of the budget: a model has many of them.
NETWORK_SHARE = 128
SCRATCH_KEPT = 64 << 20  # bytes that kernels keep between calls beside what they work in
BLOCK_BYTES = 8 << 20  # of a spectrum that is not kept: so many groups are made at once
TAPS_BYTES = 2 << 20  # of taps by channel, if these are several groups


class Gates(TypedDict, total=False):
    """What a convolution does beside summing, as tiles: see `kernels.long_conv`."""

    skip: Floats | None  # [G, 16]
    pre: Floats | None  # [G, S, 16]
    post: Floats | None  # [G, S - start, 16]
    add: Floats | None  # [G, S - start or more, 16]; of several sequences it is the same


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
                self._taps = self.tiles(0, self.groups, 0, grown, threads)
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
        size = self._size(seen - start, start)
        if size == 0:
            taps = self.taps(seen, threads)
            return kernels.direct_conv(z, taps, start=start, threads=threads, **gates)
        reach = self._reach(size, start, seen)
        return self.transform_convolve(z, start, size, reach, threads, out=out, **gates)

    def convolve_each(
        self,
        z: Floats,
        offsets: NDArray[np.int64],
        threads: int,
        *,
        out: Floats | None = None,
        **gates: Unpack[Gates],
    ) -> Floats:
        """`convolve` from the start on of sequences end to end: z [G, T, 16], sequence b in rows
        offsets[b] .. offsets[b + 1]. The bits of one at a time. Written to `out`, other memory than
        z; without it z is scratch.
        """
        if out is None and len(offsets) == 2:
            return self.convolve(z, 0, threads, out=z, **gates)
        out = np.empty_like(z) if out is None else out
        spans = np.stack([offsets[:-1], offsets[1:]], axis=1)
        sizes = np.array([self._size(n, 0) for n in np.diff(offsets)])
        for size in np.unique(sizes).tolist():
            own = spans[sizes == size]
            if size == 0:
                taps = self.taps(int(np.diff(own).max()), threads)
                kernels.direct_conv(z, taps, out=out, spans=own, threads=threads, **gates)
            else:
                reach = self._reach(size, 0, size)
                self.transform_convolve(z, 0, size, reach, threads, out=out, spans=own, **gates)
        return out

    def network_bytes(self, length: int) -> tuple[int, int]:
        """(kept, passing) bytes of the filter's network for `length` taps."""
        size = self.source.nbytes(length)
        return (size, 0) if size <= self._cache.budget // NETWORK_SHARE else (0, size)

    def bytes_for(self, new: int, seen: int, threads: int) -> tuple[int, int]:
        """(kept, passing) bytes that `convolve` of `new` rows after `seen` - `new` others adds:
        spectra that will be kept, and what is dropped when it is done, large networks included.
        """
        size = self._size(new, seen - new)
        row, tile = 4 * LANES * self.groups, 4 * LANES
        if size == 0:
            taps = row * min(self.source.taps, 2 * seen)  # grown by doubling
            return 0, 2 * taps + self.network_bytes(seen)[1]
        reach = self._reach(size, seen - new, seen)
        working = kernels.conv_scratch(size, seen, threads=threads) + 4 * size  # and its plan
        groups = self._block(size, threads)
        # Taps of a group by channel beside those of a block by tile; these beside their spectrum,
        # and the channels of one group that are transformed; then the spectrum in use.
        # Kernels keep the memory that they worked in beside that of others.
        channels = kernels.conv_scratch(size, reach, threads=1)
        making = tile * groups * reach + max(tile * reach, TAPS_BYTES, channels)
        busiest = max(making + min(working, SCRATCH_KEPT), working + min(channels, SCRATCH_KEPT))
        network = self.network_bytes(reach)[1] + self.source.working_bytes(reach)
        passing = network + tile * groups * size + busiest
        key = (id(self), size, reach)
        stays = not self._cache.holds(key) and self._cache.wants(key, row * size)
        return row * size if stays else 0, passing

    def idle_bytes(self, new: int, seen: int, threads: int) -> int:
        """Bytes that kernels keep when they have convolved."""
        size = self._size(new, seen - new)
        if size == 0:
            return 0
        scratch = kernels.conv_scratch(size, seen, threads=threads)
        return min(SCRATCH_KEPT, scratch + kernels.conv_scratch(size, seen, threads=1))

    def expect(self, calls: Iterable[tuple[int, int]]) -> None:
        """Notes in the cache what `convolve_each` of sequences of (new, seen) rows would leave
        there: spectra as large as they would be, which take no memory and hold no numbers.
        """
        extents = set()
        for new, seen in calls:
            size = self._size(new, seen - new)
            if size:
                extents.add((size, self._reach(size, seen - new, seen)))
        for size, reach in sorted(extents):
            key = (id(self), size, reach)
            spectrum = np.broadcast_to(np.float32(0), (self.groups, size, LANES))
            if self._cache.get(key) is None and self._cache.admits(key, spectrum.nbytes):
                self._cache.put(key, spectrum)

    def _reach(self, size: int, before: int, seen: int) -> int:
        """Taps in the spectrum of this size: without history all sequences can share one."""
        return min(self.source.taps, seen if before else size // 2)

    def _size(self, new: int, before: int) -> int:
        """Points of the transform for `new` rows after `before` others; 0: by direct sums."""
        try:
            return kernels.conv_plan(new, before, self.source.taps)
        except ValueError as error:  # there is no transform that large
            raise LimitError(
                f"{new} tokens at once after {before} others are more than a convolution takes: "
                "take them in in several calls, or use a shorter input"
            ) from error

    def _block(self, size: int, threads: int) -> int:
        """Groups whose spectra are made at once: enough of small ones for all threads, which share
        the channels of a large one.
        """
        tile = 4 * LANES * size
        if tile > BLOCK_BYTES:
            return 1
        shared = -(-threads * kernels.lanes // LANES)
        return min(self.groups, max(BLOCK_BYTES // tile, shared))

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
        return out

    def _spectra(self, size: int, reach: int, threads: int) -> Iterator[tuple[int, int, Floats]]:
        """Yields (first tile, last tile, spectrum): one kept whole, or blocks made on the way."""
        key = (id(self), size, reach)
        spectrum = self._cache.get(key)
        if spectrum is None and self._cache.admits(key, 4 * LANES * size * self.groups):
            spectrum = empty_tiles(self.groups, size)
            for g0, g1 in self._blocks(size, threads):
                self._transform(g0, g1, reach, spectrum[g0:g1], threads)
            self._cache.put(key, spectrum)
            self.release()
        if spectrum is not None:
            yield 0, self.groups, spectrum
            return
        blocks = self._blocks(size, threads)
        spectrum = empty_tiles(blocks[0][1], size)
        for g0, g1 in blocks:
            part = spectrum[: g1 - g0]
            self._transform(g0, g1, reach, part, threads)
            yield g0, g1, part
        self.release()

    def _blocks(self, size: int, threads: int) -> list[tuple[int, int]]:
        block = self._block(size, threads)
        return [(g, min(g + block, self.groups)) for g in range(0, self.groups, block)]

    def _transform(self, g0: int, g1: int, reach: int, out: Floats, threads: int) -> None:
        kernels.spectrum(self.tiles(g0, g1, 0, reach, threads), out.shape[1], out, threads=threads)

    def release(self) -> None:
        """Lets go of the filter's network if it is large; it can be made again."""
        self.source.release(self._cache.budget // NETWORK_SHARE)

    def tiles(self, g0: int, g1: int, first: int, last: int, threads: int) -> Floats:
        """Taps first .. last of tiles g0 .. g1, [g1 - g0, last - first, 16], made anew."""
        length = last - first
        if first == 0:  # else they are a few more, for which nothing has to be kept
            self.source.prepare(length, threads)
        tiles = empty_tiles(g1 - g0, length)
        few = max(1, TAPS_BYTES // (4 * LANES * max(length, 1)))
        for g in range(g0, g1, few):
            end = min(g + few, g1)
            c0, c1 = g * LANES, min(end * LANES, self.channels)
            block = self.source.block(self.first + c0, self.first + c1, first, last, threads)
            for row in block:
                np.copyto(row, 0.0, where=np.abs(row) < NEGLIGIBLE)
            kernels.channels_to_tiles(block, tiles[g - g0 : end - g0], threads=threads)
        return tiles


def tile_bytes(groups: int, length: int) -> int:
    """Bytes of tiles [groups, length, 16], which lie an odd number of rows apart."""
    return 4 * LANES * groups * (length | 1)


def empty_tiles(groups: int, length: int) -> Floats:
    """Uninitialised [groups, length, 16] on cache lines. Groups lie an odd number of rows apart, or
    the same row of every group would compete for one place in the cache.
    """
    stride = (length | 1) * LANES
    memory = np.empty(groups * stride + LANES, np.float32)
    first = -memory.ctypes.data % (4 * LANES) // 4
    tiles = memory[first : first + groups * stride].reshape(groups, length | 1, LANES)
    return tiles[:, :length]


def _part(a: Floats | None, cut: slice) -> Floats | None:
    return None if a is None else a[cut]
