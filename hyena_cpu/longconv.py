"""The long convolution by itself, for people with their own model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from . import kernels
from .errors import InputError
from .threads import default_threads

FloatArray = npt.NDArray[np.float32]
LANES = 16

# Spectra kept per operator: a model sees few lengths, and one spectrum is as large as two inputs.
_KEPT_SPECTRA = 4
# Rows of the scratch tiles (64 bytes each): what is being worked on should stay in the cache.
_SCRATCH_ROWS = 8192


class LongConv:
    """Causal depthwise convolution with one long filter per channel, by FFT.

    y[c, t] = post[c, t] * (sum over k of taps[c, k] * w[c, t - k] + skip[c] * w[c, t]) with
    w = pre * x (Poli et al. 2023, "Hyena Hierarchy", section 3). Taps are zero beyond their
    length, so x may be longer or shorter than the filter. Relative L2 error against float64 is at
    most 0.6 eps sqrt(log2 2T), eps = 2^-23, for inputs and filters of ordinary shape; the bits do
    not depend on the number of threads nor on what else is in the batch.

    Transforms of the filter are computed at first use for a length and a few are kept. One
    operator may be called from several threads. As a context manager it drops them at the end.

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
        self._taps: FloatArray = kernels.channels_to_tiles(_with_contiguous_rows(filters))
        self._skip: FloatArray | None = None
        if skip is not None:
            gains = _float32("skip", skip)
            if gains.shape != (self.channels,):
                raise InputError(
                    f"longconv: skip has shape {_shape(gains)} but needs [{self.channels}]"
                )
            self._skip = kernels.rows_to_tiles(np.ascontiguousarray(gains)[None])[:, 0].copy()
        self._spectra: OrderedDict[int, FloatArray] = OrderedDict()
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
            kernel, filters = self._kernel(signal.shape[-1])
            for batch in np.ndindex(signal.shape[:-2]):
                inputs = {name: values[batch] for name, values in rows.items()}
                self._convolve(kernel, filters, inputs, y[batch])
        return y

    def __enter__(self) -> LongConv:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._spectra.clear()

    def _kernel(self, T: int) -> tuple[Any, FloatArray]:
        """The kernel for inputs of T tokens and the form of the filter it takes."""
        try:
            size: int = kernels.conv_plan(T, 0, self.length)
        except ValueError as error:
            raise InputError(f"longconv: x has {T} tokens: {error}") from error
        if size == 0:
            return kernels.direct_conv, self._taps
        with self._lock:
            spectrum = self._spectra.pop(size, None)
            if spectrum is None:
                taps = self._taps[:, : size // 2]
                spectrum = kernels.spectrum(taps, size, threads=self.threads)
            self._spectra[size] = spectrum
            while len(self._spectra) > _KEPT_SPECTRA:
                self._spectra.popitem(last=False)
        return kernels.long_conv, spectrum

    def _convolve(
        self, kernel: Any, filters: FloatArray, inputs: dict[str, FloatArray], y: FloatArray
    ) -> None:
        """y [C, T] from z, pre and post [C, T], a few tiles at a time through one scratch."""
        total, T = filters.shape[0], y.shape[1]
        together = min(total, max(1, _SCRATCH_ROWS // T, self.threads))
        direct = kernel is kernels.direct_conv  # the only one that cannot work in place
        spaces = [
            np.empty((together, T | 1, LANES), np.float32)[:, :T]
            for _ in range(len(inputs) + direct)
        ]
        for first in range(0, total, together):
            groups = slice(first, min(first + together, total))
            channels = slice(first * LANES, min(groups.stop * LANES, self.channels))
            scratch = [space[: groups.stop - first] for space in spaces]
            tiles = {
                name: kernels.channels_to_tiles(
                    _with_contiguous_rows(rows[channels]), out=space, threads=self.threads
                )
                for (name, rows), space in zip(inputs.items(), scratch, strict=False)
            }
            z, out = tiles.pop("z"), scratch[-1 if direct else 0]
            skip = None if self._skip is None else self._skip[groups]
            kernel(z, filters[groups], skip=skip, **tiles, out=out, threads=self.threads)
            target = y[channels]
            kernels.tiles_to_channels(out, len(target), out=target, threads=self.threads)


def _gate(name: str, gate: npt.ArrayLike, x: FloatArray) -> FloatArray:
    values = _float32(name, gate)
    if values.shape != x.shape:
        raise InputError(f"longconv: {name} has shape {_shape(values)} but x has shape {_shape(x)}")
    return values


def _float32(name: str, values: npt.ArrayLike) -> FloatArray:
    array = np.asarray(values)
    if array.dtype != np.float32:
        raise InputError(
            f"longconv: {name} has dtype {array.dtype} but needs float32; "
            "convert it with astype(numpy.float32)"
        )
    return array


def _with_contiguous_rows(x: FloatArray) -> FloatArray:
    """x [C, T] itself if neighbouring times are adjacent and rows are whole floats apart."""
    adjacent = x.shape[1] <= 1 or x.strides[1] == x.itemsize
    return x if adjacent and x.strides[0] % x.itemsize == 0 else np.ascontiguousarray(x)


def _shape(x: npt.NDArray[Any]) -> str:
    return str(list(x.shape))
