"""One layer of every mixer at several lengths, and where long convolutions begin to pay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log2

import numpy as np

from .. import kernels
from ..config import MAX_TAPS
from ..context import context
from ..errors import LimitError
from ..model import Model
from ..planner import plan
from . import kinds
from .model_rows import refuse_above_free
from .timing import Times, in_turn, repeat

SHORTEST, LONGEST = 16, 4096  # lengths at which two ways are tried; direct sums are square in it
LANES = 16


@dataclass(frozen=True)
class Setting:
    """What all rows share: D, threads, repetitions, memory allowed, seed of the inputs."""

    width: int
    threads: int
    repetitions: int
    max_memory: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class MixerRow:
    """One layer, norm included, on one sequence of `length`; `state_bytes` of it going on."""

    kind: str
    length: int
    times: Times
    operations: float
    state_bytes: int

    @property
    def gain(self) -> float:
        """N / log2 N: how N^2 against N log2 N grows."""
        return self.length / log2(self.length) if self.length > 1 else 1.0


@dataclass(frozen=True)
class Crossover:
    """Two ways to the same end: median seconds at each length; `at`: the smallest length tried from
    which on `second` is the faster one, None if it is not at the longest.
    """

    first: str
    second: str
    lengths: tuple[int, ...]
    first_s: tuple[float, ...]
    second_s: tuple[float, ...]

    @property
    def at(self) -> int | None:
        """See the class."""
        found = None
        for n, a, b in reversed(list(zip(self.lengths, self.first_s, self.second_s, strict=True))):
            if b >= a:
                break
            found = n
        return found


def check(setting: Setting, length: int) -> None:
    """LimitError for a length that no filter, or not this machine's memory, can hold."""
    if length > MAX_TAPS:
        raise LimitError(f"a length of {length} is above {MAX_TAPS}, the most taps of a filter")
    rows = 4 * setting.width * length
    refuse_above_free(8 * rows, f"one layer of width {setting.width} on {length} tokens")


def measure(setting: Setting, kind: str, length: int) -> MixerRow:
    """One row. LimitError above `max_memory`."""
    model = kinds.build(
        kind, setting.width, length, threads=setting.threads, max_memory=setting.max_memory
    )
    if setting.max_memory is not None:
        plan(model, length, state=False).check(setting.max_memory)
    times = repeat(layer(model, length, setting.seed), setting.repetitions)
    mixer = model.blocks[0].mixer
    count = kinds.operations(kind, model, length)
    return MixerRow(kind, length, times, count, mixer.state_bytes(length))


def layer(model: Model, length: int, seed: int) -> Callable[[], None]:
    """x += mixer(norm(x)) on x [length, D], always from the same x; a copy of x is in the time."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, model.vocab_size, length).astype(np.int32)
    x = rng.standard_normal((length, model.config.d_model), np.float32)
    work, ctx, block = np.empty_like(x), context([ids], [0], model.threads), model.blocks[0]

    def run() -> None:
        np.copyto(work, x)
        block.extend(None, work, ctx)

    return run


Pair = Callable[["Setting", int], Sequence[Callable[[], object]]]


def crossovers(setting: Setting, longest: int) -> list[tuple[str, Callable[[], Crossover]]]:
    """What is compared, and the measuring: direct sums with transforms, and attention with Hyena,
    at powers of two up to the longest length of the rows.
    """
    lengths = [1 << k for k in range(30) if SHORTEST <= 1 << k <= min(longest, LONGEST)]
    pairs: list[tuple[str, str, Pair]] = [
        ("direct sums", "FFT", _convolutions),
        ("attention", "hyena", _layers),
    ]
    return [
        (f"{first} and {second}", partial(_crossover, setting, first, second, lengths, pair))
        for first, second, pair in pairs
        if lengths
    ]


def _crossover(
    setting: Setting, first: str, second: str, lengths: Sequence[int], pair: Pair
) -> Crossover:
    """Medians of both at every length, in turn."""
    times = [in_turn(pair(setting, n), setting.repetitions) for n in lengths]
    first_s, second_s = (tuple(t[i].median for t in times) for i in (0, 1))
    return Crossover(first, second, tuple(lengths), first_s, second_s)


def _convolutions(setting: Setting, n: int) -> Sequence[Callable[[], object]]:
    """One long convolution of D channels with n taps, by both methods; transform made before."""
    groups = -(-setting.width // LANES)
    rng = np.random.default_rng(setting.seed)
    z, taps = (rng.standard_normal((groups, n, LANES), np.float32) for _ in range(2))
    spectrum, out = kernels.spectrum(taps, kernels.transform_size(2 * n)), np.empty_like(z)
    threads = setting.threads
    return (
        lambda: kernels.direct_conv(z, taps, out=out, threads=threads),
        lambda: kernels.long_conv(z, spectrum, out=out, threads=threads),
    )


def _layers(setting: Setting, n: int) -> Sequence[Callable[[], object]]:
    return [
        layer(kinds.build(kind, setting.width, n, threads=setting.threads), n, setting.seed)
        for kind in ("attention", "hyena")
    ]
