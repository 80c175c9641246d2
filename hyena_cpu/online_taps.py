"""The filters of one convolution as token-by-token steps need them, and how far steps plan ahead.

Shapes: G groups of 16 channels, P rows of history.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .filters import LongFilter
from .parts import Parts
from .spectra import BLOCK_BYTES, LANES, FilterBank, SpectraCache, tile_bytes

Floats = NDArray[np.float32]
ROW = 4 * LANES  # bytes of one row of one group
SHORTEST_HORIZON = 64
USUAL_HORIZON = 2048
LONGEST_HORIZON = 1 << 16
SURE_REWIND = 128  # rows that a filter of any length can be rewound by, once so many were taken in


def horizon_for(history: int, wanted: int | None) -> int:
    """Steps to make room for after `history` rows when `wanted` (None: unknown) are to come."""
    usual = max(USUAL_HORIZON, power_of_two(-(-history // 8)))
    if wanted is None:
        return usual
    # Many more steps are not planned at once: memory grows with the horizon.
    return min(power_of_two(max(wanted, SHORTEST_HORIZON)), max(usual, LONGEST_HORIZON))


def power_of_two(n: int) -> int:
    """The smallest power of two >= n."""
    return 1 << max(0, n - 1).bit_length()


class OnlineTaps:
    """The filters of a FilterBank as steps need them: grown on demand, shared by all sequences.

    first_unit: number of the bank's first group among those of the model (see OnlineConv).
    longest: rows that a sequence can have at most (None: any number).
    stepped: False where only the first rows of a sequence are convolved, and it goes on by a
        recurrence.
    """

    def __init__(
        self,
        bank: FilterBank,
        first_unit: int = 0,
        longest: int | None = None,
        stepped: bool = True,
    ) -> None:
        self.bank = bank
        self.stepped = stepped
        self.first_unit = first_unit
        self.longest = longest
        self._lock = threading.Lock()
        self._filter: kernels.OnlineFilter | None = None

    @property
    def reach(self) -> int:
        """Rows before an output that it can depend on."""
        return self.bank.source.taps - 1

    def plan(self, position: int, wanted: int | None) -> tuple[int, int]:
        """(horizon, largest tile) of a state that begins at `position`, for `wanted` steps."""
        horizon = horizon_for(min(position, self.reach), wanted)
        if self.longest is not None:
            horizon = min(horizon, power_of_two(max(self.longest - position, SHORTEST_HORIZON)))
        rounded, top, endless = kernels.tile_plan(horizon, self.bank.source.taps)
        return (self.endless_horizon(top) if endless else rounded), top

    @staticmethod
    def endless_horizon(top: int) -> int:
        """Horizon of an endless state: it keeps half when it drops old inputs; tiles need 2 top."""
        return 2 * (2 * top + SURE_REWIND)

    def filter(self, top: int, threads: int) -> kernels.OnlineFilter:
        """The filter prepared for tiles up to `top` at least."""
        with self._lock:
            if self._filter is None or self._filter.top < top:
                taps = self.bank.taps(2 * top, threads)
                total = self.bank.source.taps
                self._filter = kernels.OnlineFilter(taps, total, top, self._filter, threads=threads)
                self.bank.release()
            return self._filter

    def future(self, chunks: Sequence[Floats], horizon: int, threads: int) -> Floats | None:
        """What the rows of chunks [G, P_i, 16], end to end, add to the next `horizon` outputs."""
        history = sum(chunk.shape[1] for chunk in chunks)
        rows = min(horizon, self.reach)
        if history == 0 or rows == 0:
            return None
        groups = self.bank.groups
        out = np.zeros((groups, rows, LANES), np.float32)
        lags = min(history + rows, self.bank.source.taps)
        block = self._block(lags)
        for g0 in range(0, groups, block):
            g1 = min(g0 + block, groups)
            taps = self.bank.tiles(g0, g1, lags, threads)
            ahead = 0
            for chunk in reversed(chunks):
                kernels.future_fill(chunk[g0:g1], taps, out[g0:g1], ahead, threads=threads)
                ahead += chunk.shape[1]
        self.bank.release()
        return out

    @staticmethod
    def _block(lags: int) -> int:
        """Groups whose taps `future` makes at once."""
        return max(1, BLOCK_BYTES // (lags * ROW))

    def starting_bytes(self, history: int, wanted: int | None, threads: int) -> int:
        """Bytes that pass by when steps begin after `history` rows, beside what stays."""
        horizon, _ = self.plan(history, wanted)
        rows = min(horizon, self.reach)
        if history == 0 or rows == 0:
            return 0
        groups = min(self._block(history + rows), self.bank.groups)
        lags = min(history + rows, self.bank.source.taps)
        points = kernels.transform_size(min(history + rows, 4 * rows))
        # Of each thread: a part of the sum, a padded block of the past, its spectrum, the product.
        filling = threads * ROW * (rows + 3 * points)
        network = self.bank.source.nbytes(lags) + self.bank.source.working_bytes(lags)
        return (
            self.bank.groups * ROW * rows
            + groups * ROW * lags
            + max(ROW * lags, filling)
            + (network)
        )

    def restored(self, steps: Parts, base: int, threads: int) -> kernels.OnlineState:
        """The state that begins at `base` and was saved as `steps`. InputError if none could."""
        groups, reach = self.bank.groups, self.reach
        most = max(LONGEST_HORIZON, horizon_for(min(base, reach), None))
        horizon = steps.whole("horizon", 1, self.endless_horizon(most // 2))
        first = steps.whole("first")
        inputs = steps.floats("inputs", groups, None, LANES)
        future = steps.maybe_floats("future", groups, None, LANES)
        rounded, top, endless = kernels.tile_plan(horizon, reach + 1)
        planned = horizon == (self.endless_horizon(top) if endless else rounded)
        enough = first == 0 or (endless and inputs.shape[1] >= 2 * top)
        ahead = 0 if future is None else future.shape[1]
        if not (planned and enough and inputs.shape[1] <= horizon and ahead <= min(horizon, reach)):
            raise steps.refuse(f"does not fit a filter of {reach + 1} taps")
        state = kernels.OnlineState(self.filter(top, threads), horizon, self.first_unit, future)
        if inputs.shape[1]:
            state.resume(first, inputs)
        return state

    def history_bytes(self, length: int) -> int:
        """Bytes of the rows that an OnlineConv keeps of `length` that came at once."""
        needed = self.reach + SURE_REWIND
        return tile_bytes(self.bank.groups, length if length <= 2 * needed else needed)

    def steps_bytes(self, length: int, wanted: int | None = None) -> int:
        """Bytes of an OnlineConv beside its history, once `wanted` steps follow `length` rows."""
        horizon, top = self.plan(length, wanted)
        future = min(horizon, self.reach) if length else 0
        # Tiles of all levels, and up to 2 top rows of a cross tile, half of it on average: the
        # groups' phases are spread evenly.
        tiles = 2 * top + top + 2 * top // self.bank.groups
        return self.bank.groups * ROW * (future + (horizon | 1) + min(tiles, 4 * top) + 2 * LANES)

    def state_bytes(self, length: int, ahead: int | None = None) -> int:
        """Bytes of an OnlineConv at most, once it steps on from `length` rows; `ahead`: for so many
        steps, having dropped its history.
        """
        horizon, top = self.plan(length, ahead)
        # Chunks are dropped whole, and one much longer than what is needed is cut.
        needed = self.reach + SURE_REWIND
        history = min(length, 2 * needed + horizon)
        if ahead is not None and self.reach > top:
            history = 0
        return self.bank.groups * ROW * history + self.steps_bytes(length, ahead)

    def filter_bytes(self, length: int, wanted: int | None = None) -> int:
        """Bytes of the filters, which sequences share, for `wanted` steps after `length` rows."""
        _, top = self.plan(length, wanted)
        taps, spectra = min(2 * top, self.bank.source.taps), 4 * top
        return self.bank.groups * ROW * (taps + spectra)


class Convolutions:
    """Makes a model's long convolutions: they share a budget, and every group has a number."""

    def __init__(self, budget: int, longest: int | None = None) -> None:
        self.cache = SpectraCache(budget)
        self.longest = longest
        self._units = 0

    def add(
        self, source: LongFilter, first: int, channels: int, stepped: bool = True
    ) -> OnlineTaps:
        """The convolution with channels first .. first + channels of a filter."""
        bank = FilterBank(source, first, channels, self.cache)
        taps = OnlineTaps(bank, self._units, self.longest, stepped)
        self._units += bank.groups
        return taps
