"""Filters ready to be convolved with: taps as tiles, transforms by size, within a byte budget.

Shapes: C channels, G = ceil(C / 16) tiles, K taps in use, M transform size, S rows seen.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .filters import LongFilter

Floats = NDArray[np.float32]
LANES = 16
# Smaller taps are dropped: they cannot be seen beside any other, and products with them are
# subnormal numbers, on which processors are many times slower.
NEGLIGIBLE = 1e-30
BLOCK_BYTES = 64 << 20  # of taps and spectrum, when a transform is too large to be kept


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
        skip: Floats | None = None,
        pre: Floats | None = None,
        post: Floats | None = None,
        out: Floats | None = None,
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
            return kernels.direct_conv(
                z, taps, start=start, skip=skip, pre=pre, post=post, threads=threads
            )
        # Without history every sequence of this transform size can share a spectrum.
        reach = min(self.source.taps, size // 2 if start == 0 else seen)
        return self.transform_convolve(
            z, start, size, reach, threads, skip=skip, pre=pre, post=post, out=out
        )

    def convolve_each(
        self,
        z: Floats,
        offsets: NDArray[np.int64],
        threads: int,
        *,
        skip: Floats | None = None,
        pre: Floats | None = None,
        post: Floats | None = None,
    ) -> Floats:
        """`convolve` from the start on of sequences end to end: z [G, T, 16], sequence b in rows
        offsets[b] .. offsets[b + 1]. The bits of one at a time; z is scratch.
        """
        if len(offsets) == 2:
            return self.convolve(z, 0, threads, skip=skip, pre=pre, post=post, out=z)
        out = np.empty_like(z)
        spans = np.stack([offsets[:-1], offsets[1:]], axis=1)
        sizes = np.array([kernels.conv_plan(n, 0, self.source.taps) for n in np.diff(offsets)])
        for size in np.unique(sizes).tolist():
            own = spans[sizes == size]
            if size == 0:
                taps = self.taps(int(np.diff(own).max()), threads)
                kernels.direct_conv(
                    z, taps, skip=skip, pre=pre, post=post, out=out, spans=own, threads=threads
                )
            else:
                reach = min(self.source.taps, size // 2)
                self.transform_convolve(
                    z, 0, size, reach, threads, skip=skip, pre=pre, post=post, out=out, spans=own
                )
        return out

    def bytes_for(self, new: int, seen: int) -> tuple[int, int]:
        """(kept, passing) bytes that `convolve` of `new` rows after `seen` - `new` others needs:
        what stays for the next call, and what is dropped once it is made.
        """
        size = kernels.conv_plan(new, seen - new, self.source.taps)
        reach = min(self.source.taps, seen if size == 0 or new < seen else size // 2)
        row = 4 * LANES * self.groups
        if size == 0:
            return row * reach, row * reach
        if row * size <= self._cache.budget // 2:
            return row * size, 2 * row * reach
        return 0, max(2 * BLOCK_BYTES, 2 * row // self.groups * size)

    def transform_convolve(
        self,
        z: Floats,
        start: int,
        size: int,
        reach: int,
        threads: int,
        *,
        skip: Floats | None = None,
        pre: Floats | None = None,
        post: Floats | None = None,
        out: Floats | None = None,
        spans: NDArray[np.int64] | None = None,
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
                start=start,
                skip=None if skip is None else skip[cut],
                pre=None if pre is None else pre[cut],
                post=None if post is None else post[cut],
                out=out[cut],
                spans=spans,
                threads=threads,
            )
        return out

    def _spectra(self, size: int, reach: int, threads: int) -> Iterator[tuple[int, int, Floats]]:
        """Yields (first tile, last tile, spectrum): one cached whole, or blocks made on the way."""
        key = (id(self), size, reach)
        spectrum = self._cache.get(key)
        tile_bytes = 4 * LANES * size
        if spectrum is None and self.groups * tile_bytes <= self._cache.budget // 2:
            tiles = self.tiles(0, self.groups, reach, threads)
            spectrum = kernels.spectrum(tiles, size, threads=threads)
            self._cache.put(key, spectrum)
        if spectrum is not None:
            yield 0, self.groups, spectrum
            return
        block = max(1, BLOCK_BYTES // (2 * tile_bytes))
        for g0 in range(0, self.groups, block):
            g1 = min(g0 + block, self.groups)
            tiles = self.tiles(g0, g1, reach, threads)
            yield g0, g1, kernels.spectrum(tiles, size, threads=threads)

    def tiles(self, g0: int, g1: int, length: int, threads: int) -> Floats:
        """The first `length` taps of tiles g0 .. g1, [g1 - g0, length, 16], made anew."""
        self.source.prepare(length, threads)
        c1 = min(g1 * LANES, self.channels)
        block = self.source.block(self.first + g0 * LANES, self.first + c1, 0, length, threads)
        np.copyto(block, 0.0, where=np.abs(block) < NEGLIGIBLE)
        return kernels.channels_to_tiles(block, threads=threads)
