"""The long convolution as a public operator of its own, usable in any model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from . import kernels
from .checks import as_array
from .closing import Closing
from .errors import InputError
from .threads import default_threads

FloatArray = npt.NDArray[np.float32]
LANES = 16

# Forms of the filter kept per operator: a model sees few lengths, and one spectrum is as large as
# two inputs.
_KEPT_FORMS = 4
# Rows of the scratch tiles (64 bytes each): what is being worked on should stay in the cache.
_SCRATCH_ROWS = 8192
# From so many channels on they are transformed side by side, in tiles; fewer, one by one. With
# vectors of 16 lanes so are many from this size on, where rows of 16 leave the nearer caches (0.8
# of the time at 32,768 tokens; on AVX2 it is more).
_SIDE_BY_SIDE = 8
_ONE_BY_ONE = 3 << 12


class LongConv(Closing):
    """Causal depthwise convolution with one long filter per channel, by FFT.

    y[c, t] = post[c, t] * (sum over k of taps[c, k] * w[c, t - k] + skip[c] * w[c, t]) with
    w = pre * x (Poli et al. 2023, "Hyena Hierarchy", section 3). x may be longer or
    shorter than the filter, which ends with its last tap. Relative L2 error against float64 is at
    most 0.6 eps sqrt(log2 2T), eps = 2^-23, for inputs and filters of ordinary shape; neither
    `threads` nor batch mates change a bit.

    Transforms of the filter are computed at first use for a length and a few are kept. One
    operator may be called from several threads, and pickled. As a context manager it drops them at
    the end.

    Args:
        taps: float32 [channels, length], both at least 1. Copied.
        skip: float32 [channels], added as skip * w; None for none.
        threads: threads for one call; None chooses as `hyena_cpu.load` does.

    Raises:
        InputError: wrong shape or dtype (nothing is converted silently).
    """

    def __init__(
        self, taps: npt.ArrayLike, skip: npt.ArrayLike | None = None, threads: int | None = None
    ) -> None:
        filters = _float32("taps", taps)
        if filters.ndim != 2 or 0 in filters.shape:
            raise InputError(
                f"longconv: taps has shape {_shape(filters)} but needs [channels, length], "
                "both at least 1"
            )
        self.channels, self.length = filters.shape
        self.threads = default_threads(threads)
        self._taps: FloatArray = np.array(filters, order="C")
        self._skip: FloatArray | None = None
        if skip is not None:
            gains = _float32("skip", skip)
            if gains.shape != (self.channels,):
                raise InputError(
                    f"longconv: skip has shape {_shape(gains)} but needs [{self.channels}]"
                )
            self._skip = np.array(gains, order="C")
        self._forms: OrderedDict[int, FloatArray] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(
        self,
        x: npt.ArrayLike,
        pre_gate: npt.ArrayLike | None = None,
        post_gate: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Convolves along the last axis.

        Args:
            x: float32 [..., channels, T], any strides.
            pre_gate: float32 of x's shape; multiplies x first.
            post_gate: float32 of x's shape; multiplies the result last.

        Returns:
            float32 of x's shape.

        Raises:
            InputError: wrong shape or dtype, or T too long for the largest transform.
        """
        signal = _float32("x", x)
        if signal.ndim < 2:
            raise InputError(
                f"longconv: x has shape {_shape(signal)} but needs [..., {self.channels}, T]"
            )
        if signal.shape[-2] != self.channels:
            raise InputError(
                f"longconv: x has {signal.shape[-2]} channels but the filter has {self.channels}"
            )
        rows = {"z": signal}
        if pre_gate is not None:
            rows["pre"] = _gate("pre_gate", pre_gate, signal)
        if post_gate is not None:
            rows["post"] = _gate("post_gate", post_gate, signal)
        y = np.empty(signal.shape, np.float32)
        if y.size > 0:
            size = self._size(signal.shape[-1])
            form = self._form(size)
            convolve = self._through_transforms if size else self._by_direct_sums
            batches = np.ndindex(signal.shape[:-2]) if signal.ndim > 2 else ((),)
            for batch in batches:
                inputs = {name: _with_contiguous_rows(rows[name][batch]) for name in rows}
                convolve(form, inputs, y[batch])
        return y

    def close(self) -> None:
        """Drops cached transforms. The operator stays usable."""
        with self._lock:
            self._forms.clear()

    def __reduce__(self) -> Any:
        return LongConv, (self._taps, self._skip, self.threads)

    def _size(self, T: int) -> int:
        """The transform for inputs of T tokens; 0 for direct sums."""
        try:
            size = kernels.conv_plan(T, 0, self.length)
            if size == 0 or not self._one_by_one(size):
                return size
            while size % 512:  # what row_spectrum takes
                size = kernels.transform_size(size + 1)
            return size
        except ValueError as error:
            raise InputError(f"longconv: x has {T} tokens: {error}") from error

    def _one_by_one(self, size: int) -> bool:
        """Whether channels are transformed so, and not side by side."""
        return self.channels < _SIDE_BY_SIDE or (kernels.lanes == LANES and size >= _ONE_BY_ONE)

    def _form(self, size: int) -> FloatArray:
        """What `_made` makes for a size; a few are kept."""
        with self._lock:
            form = self._forms.pop(size, None)
            self._forms[size] = form = self._made(size) if form is None else form
            if len(self._forms) > _KEPT_FORMS:
                self._forms.popitem(last=False)
        return form

    def _made(self, size: int) -> FloatArray:
        """The filters as row_conv needs them, or for size 0 the taps as tiles [G, K, 16]."""
        taps = self._taps[:, : size // 2] if size else self._taps
        if size and self._one_by_one(size):
            return kernels.row_spectrum(taps, size, threads=self.threads)
        tiles = kernels.channels_to_tiles(taps, threads=self.threads)
        return kernels.spectrum(tiles, size, threads=self.threads) if size else tiles

    def _through_transforms(
        self, spectrum: FloatArray, inputs: dict[str, FloatArray], y: FloatArray
    ) -> None:
        """y [C, T] from z, pre and post [C, T]."""
        kernels.row_conv(spectrum=spectrum, skip=self._skip, **inputs, out=y, threads=self.threads)

    def _by_direct_sums(
        self, taps: FloatArray, inputs: dict[str, FloatArray], y: FloatArray
    ) -> None:
        """y [C, T] from z, pre and post [C, T], a few tiles at a time through one scratch."""
        total, T = taps.shape[0], y.shape[1]
        together = min(total, max(1, _SCRATCH_ROWS // T, self.threads))
        spaces = [
            np.empty((together, T | 1, LANES), np.float32)[:, :T] for _ in range(len(inputs) + 1)
        ]
        skips = None if self._skip is None else kernels.rows_to_tiles(self._skip[None])[:, 0]
        for first in range(0, total, together):
            groups = slice(first, min(first + together, total))
            channels = slice(first * LANES, min(groups.stop * LANES, self.channels))
            scratch = [space[: groups.stop - first] for space in spaces]
            tiles = {
                name: kernels.channels_to_tiles(rows[channels], out=space, threads=self.threads)
                for (name, rows), space in zip(inputs.items(), scratch, strict=False)
            }
            z, out = tiles.pop("z"), scratch[-1]
            skip = None if skips is None else np.ascontiguousarray(skips[groups])
            kernels.direct_conv(
                z,
                taps[groups],
                skip=skip,
                pre=tiles.get("pre"),
                post=tiles.get("post"),
                out=out,
                threads=self.threads,
            )
            target = y[channels]
            kernels.tiles_to_channels(out, len(target), out=target, threads=self.threads)


def _gate(name: str, gate: npt.ArrayLike, x: FloatArray) -> FloatArray:
    values = _float32(name, gate)
    if values.shape != x.shape:
        raise InputError(f"longconv: {name} has shape {_shape(values)} but x has shape {_shape(x)}")
    return values


def _float32(name: str, values: npt.ArrayLike) -> FloatArray:
    array = as_array(f"longconv: {name}", values)
    if array.dtype != np.float32:
        raise InputError(
            f"longconv: {name} has dtype {array.dtype} but needs float32; "
            "convert it with astype(numpy.float32)"
        )
    return array


def _with_contiguous_rows(x: FloatArray) -> FloatArray:
    """x [C, T] itself if neighbouring times are adjacent, and all where floats may be."""
    adjacent = x.shape[1] <= 1 or x.strides[1] == x.itemsize
    there = adjacent and x.flags.aligned and x.strides[0] % x.itemsize == 0
    return x if there else np.array(x, order="C")


def _shape(x: npt.NDArray[Any]) -> str:
    return str(list(x.shape))
