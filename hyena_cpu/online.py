"""A sequence in one long convolution: whole chunks by transform, token by token through tiles.

A step costs the same at any context, and none costs much more than others (csrc/onlineconv.hpp):
what the history adds to further outputs is summed up when steps begin, for as many as were asked
for, or else for some, and then a little in every step.

Shapes: G groups of 16 channels, n new rows, P rows of history.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernels
from .context import FEW_ROWS
from .errors import LimitError
from .history import History
from .online_steps import OnlineSteps
from .online_taps import LOOK_AHEAD, OnlineTaps
from .parts import Parts
from .spectra import LANES
from .step_plan import SHORTEST_HORIZON, SURE_REWIND, power_of_two

Floats = NDArray[np.float32]
# Up to FEW_ROWS, or this part of the history, a chunk goes row by row: a transform would have to go
# through the whole history for it.
SMALL_PART = 8


class OnlineConv:
    """One sequence in one causal convolution: `extend` takes in rows and returns their outputs.

    `taps.first_unit` fixes at which steps large tiles are due, the same for every sequence, so that
    few fall on one step. aligned: they fall together, which takes less work and memory in all, and
    makes some steps slow.
    """

    def __init__(self, taps: OnlineTaps) -> None:
        self._taps = taps
        self._needed = taps.reach + SURE_REWIND
        self._history = History(taps.bank.groups, self._needed)  # those of `_steps` follow it
        self._steps: OnlineSteps | None = None
        self._ahead: tuple[int, Floats] | None = None  # (position, what follows it): see `peek`
        self.aligned = False

    @property
    def position(self) -> int:
        """Rows taken in so far."""
        return self._history.end if self._steps is None else self._steps.position

    @property
    def nbytes(self) -> int:
        """Bytes held, those shared with forks included."""
        return self.steps_nbytes + self._history.nbytes

    @property
    def steps_nbytes(self) -> int:
        """Bytes held, those of the history apart."""
        return 0 if self._steps is None else self._steps.kernel.nbytes

    @property
    def chunks(self) -> list[Floats]:
        """The history, as arrays that copies may share."""
        return self._history.chunks

    def share_history(self, other: OnlineConv) -> None:
        """Holds it together with `other`, which has been given the same rows."""
        self._history.share(other._history)

    def extend(
        self,
        z: Floats,
        threads: int,
        *,
        pre: Floats | None = None,
        skip: Floats | None = None,
        post: Floats | None = None,
        scratch: bool = False,
    ) -> Floats:
        """Appends rows z [G, n, 16], gated as in `kernels.long_conv`; returns [G, n, 16].

        Few rows go step by step, with the bits of n calls of one row; many go through one
        transform. Which of the two depends on n and the position alone. z may be
        kept: it must not be written to afterwards. scratch: z and post may be written to here, and
        the result be in post.
        """
        n = z.shape[1]
        if goes_by_steps(self.position, n) or self.last is not None:
            return self._step(z, threads, pre, skip, post)
        self._stop()
        w = z
        if pre is not None:
            w = kernels.multiply_tiles(z, pre, z if scratch else None, threads=threads)
        before = self._newest(self._needed)
        rows = np.concatenate([before, w], axis=1) if before.shape[1] else w
        start = min(before.shape[1], self._taps.reach)
        seen = rows[:, before.shape[1] - start :]
        # What came before is in `rows` too, so it can go before the transforms take memory.
        self._history.set(None, self._history.end - before.shape[1])
        del before
        self._history.append(rows)
        out = post if scratch else None
        return self._taps.bank.convolve(seen, start, threads, out=out, skip=skip, post=post)

    def peek(
        self,
        z: Floats,
        offsets: NDArray[np.int64],
        threads: int,
        *,
        pre: Floats | None = None,
        skip: Floats | None = None,
        post: Floats | None = None,
    ) -> Floats:
        """What `extend` would return for each of several continuations, taking none in.

        Continuation b is rows offsets[b] .. offsets[b + 1] of z [G, T, 16], which is scratch. What
        the history adds to the outputs is summed up by the first call and shared by all.
        """
        if self.last is None:
            add = self._added(int(np.diff(offsets).max()), threads)
            return self._taps.bank.convolve_each(
                z, offsets, threads, skip=skip, pre=pre, post=post, add=add
            )
        for first, end in pairwise(offsets.tolist()):
            cut = slice(first, end)
            gates = [None if gate is None else gate[:, cut] for gate in (pre, post)]
            z[:, cut] = self.fork()._step(z[:, cut], threads, gates[0], skip, gates[1])
        return z

    def _added(self, n: int, threads: int) -> Floats | None:
        """What the history adds to the next n outputs or more [G, n.., 16]; None for nothing."""
        if self.position == 0 or self._taps.reach == 0:
            return None
        n = ahead_for(n)
        if self._ahead is None or self._ahead[0] != self.position or self._ahead[1].shape[1] != n:
            rows = self._newest(self._taps.reach)
            silent = np.zeros((len(rows), n, LANES), np.float32)
            whole = np.concatenate([rows, silent], axis=1)
            self._ahead = self.position, self._taps.bank.convolve(whole, rows.shape[1], threads)
        return self._ahead[1]

    def history(self) -> Floats:
        """The newest min(position, reach) inputs: [G, P, 16]."""
        return self._newest(self._taps.reach)

    def _newest(self, n: int) -> Floats:
        """Up to n of the newest inputs."""
        self._settle()
        steps = self._steps
        later = None if steps is None else steps.inputs(self._history.end, steps.position)
        return self._history.newest(n, later)

    def _settle(self) -> None:
        """Lets go of history once the steps have forgotten what followed it."""
        if self._forgotten:
            self._history.set(None, self._first)

    @property
    def _forgotten(self) -> bool:
        """Whether the steps have let go of their oldest rows: they hold all that is ever needed."""
        return self._steps is not None and self._steps.first > self._steps.base

    @property
    def _first(self) -> int:
        """Position of the first row held, of those without a gap."""
        if self._steps is not None and self._forgotten:
            return self._steps.first
        return self._history.first

    def reserve(self, n: int, threads: int = 1) -> None:
        """Prepares for n further steps now (16,384 at most), so that none of them has to."""
        if n > 0 and self._room < n:
            self._start(threads, n)

    @property
    def _room(self) -> int:
        """Steps that memory is there for."""
        return 0 if self._steps is None else self._steps.kernel.room

    def drop_history(self, n: int, threads: int = 1) -> None:
        """`reserve`, and then lets go of the rows before the present base, if they are more than
        a finite filter needs for ever: the sequence has to end at `last`.
        """
        if self.last is not None:  # long ago
            return
        steps = self._steps
        if n > 0 and (steps is None or self._room < n or steps.kernel.kind == "rolling"):
            steps = self._start(threads, n, drop=True)
        if steps is not None and steps.kernel.kind != "endless":
            self._history.set(None, steps.base)
            self._ahead = None

    @property
    def last(self) -> int | None:
        """Where the sequence has to end, for want of the rows before the present base."""
        first, steps = self._first, self._steps
        if steps is None or first == 0 or first < steps.base:
            return None
        enough = self.position - first >= self._taps.reach
        return None if enough else steps.end

    @property
    def oldest(self) -> int:
        """The earliest position that `rewind` can go back to."""
        first = self._first
        oldest = 0 if first == 0 else first + self._taps.reach
        return oldest if self._steps is None else min(oldest, self._steps.oldest)

    def rewind(self, position: int) -> None:
        """Back to an earlier position. Bit for bit as if the rows since had not been taken in, as
        far back as the steps under way can be undone; to rounding before that.

        Raises LimitError if the filter needs rows that have been dropped by now, which is never so
        for the newest 128 rows taken in.
        """
        if not 0 <= position <= self.position:
            raise LimitError(f"cannot rewind to {position}: the sequence is at {self.position}")
        self._ahead = None
        if self._steps is not None and position >= self._steps.oldest:
            self._steps.rewind(position)
            return
        if position < self.oldest:
            raise LimitError(
                f"cannot rewind to {position}: the inputs before it have been dropped, because "
                f"the filter reaches {self._taps.reach} rows back"
            )
        self._stop(position)

    def fork(self) -> OnlineConv:
        """An independent copy that shares the history."""
        twin = copy(self)
        twin._history = self._history.fork()
        twin._steps = None if self._steps is None else self._steps.fork()
        return twin

    def parts(self) -> dict[str, Any]:
        """Everything to go on from, as plain data; what is in tiles can be computed again."""
        self._settle()
        steps = None if self._steps is None else self._steps.parts()
        return {"history": self._history.parts(), "steps": steps, "aligned": int(self.aligned)}

    def restore(self, parts: Parts, threads: int) -> None:
        """Makes a new one what `parts` were taken of: it goes on with the same bits."""
        history, steps = parts.part("history"), parts.maybe_part("steps")
        self._history.restore(history)
        self.aligned = parts.has("aligned") and parts.whole("aligned", 0, 1) == 1
        if steps is not None:
            base = steps.whole("base", 0, self._history.end)
            kernel = self._taps.restored(
                steps, base, self._history.chunks, threads, aligned=self.aligned
            )
            self._steps = OnlineSteps(base, kernel, base)
            if not self._steps.first <= self._history.end <= self.position:
                raise steps.refuse(f"does not follow inputs that end at {self._history.end}")
            if (self._taps.decode == "direct") != (kernel.kind == "direct"):
                self._convert(steps)
        first = self._history.first
        if first > 0 and self.position - first < self._taps.reach and self.last is None:
            raise history.refuse(f"begins at {first}, too late for position {self.position}")

    def _convert(self, saved: Parts) -> None:
        """Lets go of a state that goes on in another way than this model's do."""
        if self.last is not None:
            raise saved.refuse("lacks the inputs before it, which decode 'direct' needs")
        self._stop()

    def _step(
        self,
        z: Floats,
        threads: int,
        pre: Floats | None,
        skip: Floats | None,
        post: Floats | None,
    ) -> Floats:
        y = np.empty((z.shape[0], z.shape[1], LANES), np.float32)
        done = 0
        while done < z.shape[1]:
            state = self.make_room(threads)
            n = min(self.sure, z.shape[1] - done)
            cut = (slice(None), slice(done, done + n))
            kernels.online_conv(
                [state],
                [n],
                z[cut],
                skip,
                None if pre is None else pre[cut],
                None if post is None else post[cut],
                y[cut],
                threads=threads,
            )
            done += n
        return y

    def make_room(self, threads: int) -> kernels.OnlineState:
        """The kernel's state, ready for one more step at least."""
        steps = self._steps
        if steps is None or self._room == 0:
            steps = self._start(threads, None)
        if steps.ready <= 0:
            self._settle()
            n = self._taps.look_ahead(steps.kernel, self.position, threads)
            steps.sure = self.position + min(n, self._room)
        return steps.kernel

    @property
    def sure(self) -> int:
        """Steps that need no `make_room` before them."""
        return 0 if self._steps is None else self._steps.ready

    def _start(self, threads: int, wanted: int | None, *, drop: bool = False) -> OnlineSteps:
        """A new base here."""
        if self.last is not None:
            raise LimitError(f"the history of this sequence was dropped: it ends at {self.last}")
        self._stop()
        base, chunks = self._history.end, self._history.chunks
        plan = self._taps.plan(base, wanted)
        if drop and wanted is not None and plan.kind == "rolling":
            plan = plan._replace(horizon=wanted)
        kernel = self._taps.begin(plan, base, chunks, threads, drop=drop, aligned=self.aligned)
        # Sequences of other layers look ahead at other steps.
        ready = min(kernel.room, 1 + self._taps.first_unit % LOOK_AHEAD)
        self._steps = OnlineSteps(base, kernel, base + ready)
        return self._steps

    def _stop(self, position: int | None = None) -> None:
        """Everything back into the history, or what comes before `position`, which `oldest` allows:
        rows that are taken back must not push out what comes before them.
        """
        self._settle()
        history, end = self._history, self.position if position is None else position
        if end < history.end:
            history.drop_newest(history.end - end)
        elif self._steps is not None and end > history.end:
            history.append(self._steps.inputs(history.end, end))
        self._steps = None


def goes_by_steps(position: int, n: int) -> bool:
    """Whether `OnlineConv.extend` takes n rows that follow `position` others in one by one."""
    return n == 1 or (position > 0 and n <= max(FEW_ROWS, position // SMALL_PART))


def ahead_for(n: int) -> int:
    """Outputs that the history's part of n continuing rows is summed up for, by `peek`."""
    return power_of_two(max(n, SHORTEST_HORIZON))


def extend_each(
    convs: Sequence[OnlineConv],
    z: Floats,
    threads: int,
    *,
    pre: Floats | None = None,
    skip: Floats | None = None,
    post: Floats | None = None,
) -> Floats:
    """One row for each of B sequences of one convolution, in one call: z, pre, post [G, B, 16].

    Every row has the bits that `OnlineConv.extend` of it alone has.
    """
    states = [conv.make_room(threads) for conv in convs]
    return kernels.online_conv(states, [1] * len(states), z, skip, pre, post, threads=threads)
