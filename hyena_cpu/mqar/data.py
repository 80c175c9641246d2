"""The rows of multi-query associative recall, bit for bit as the authors' generator makes it.

A row names D pairs of key and value first; every key then comes once more, at an even distance
drawn from a power law, and there the model has to name the value (arXiv 2312.04927, section 4 and
appendix E). All other positions hold token 0, or random tokens.

Shapes: n rows, N tokens in a row, D pairs, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

UNSCORED = -100  # label of a position that asks for nothing
MAX_SEED = 2**32 - 1  # of NumPy's legacy generator
MOST_TOKENS = 1 << 27  # in all rows together, 2 GiB of inputs and labels, and in a vocabulary
LEAST_POWER = 1e-290  # a float64 holds it divided by any number of distances
LARGEST_EXPONENT = 300  # of ten: a float64 holds sums of such numbers

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    """One kind of rows.

    Attributes:
        vocab_size: V; keys are 1 .. V/2 - 1 and values V/2 .. V - 1.
        length: N, even and smaller than V.
        pairs: D, at most N / 4.
        power_a: the exponent of the distances is power_a - 1; 1 is uniform. At least 1e-290, and
            so small that a float64 holds (number of distances) ** power_a.
        random_non_queries: fill with random tokens what would hold token 0.

    Raises:
        InputError: a rule does not hold.
    """

    vocab_size: int = 8192
    length: int = 64
    pairs: int = 4
    power_a: float = 0.01
    random_non_queries: bool = False

    def __post_init__(self) -> None:
        for holds, rule in (
            (self.length >= 2, f"length is {self.length}, must be at least 2"),
            (self.length % 2 == 0, f"length is {self.length}, must be even"),
            (self.pairs >= 1, f"pairs is {self.pairs}, must be at least 1"),
            (
                self.vocab_size > self.length,
                f"vocab_size is {self.vocab_size}, must be larger than length {self.length}",
            ),
            (
                4 * self.pairs <= self.length,
                f"pairs is {self.pairs}, must be at most a quarter of length {self.length}",
            ),
            (
                self.vocab_size <= MOST_TOKENS,
                f"vocab_size is {self.vocab_size}, must be at most {MOST_TOKENS}",
            ),
            (self.power_a > 0, f"power_a is {self.power_a}, must be positive"),
            (
                self.power_a >= LEAST_POWER,
                f"power_a is {self.power_a}, must be at least {LEAST_POWER}",
            ),
            (
                self.power_a <= self._largest_power(),
                f"power_a is {self.power_a}, must be at most {self._largest_power()} "
                f"for {self.pairs} pairs in length {self.length}",
            ),
        ):
            if not holds:
                raise InputError(rule)

    def _largest_power(self) -> int:
        """The largest whole power_a with which every probability is a number."""
        distances = max(2, self.length // 2 - self.pairs)
        return int(LARGEST_EXPONENT / math.log10(distances))

    def distance_probabilities(self) -> NDArray[np.float64]:
        """Of the distances 2 g from the end of the pairs, g = 0 .. (N - 2 D) / 2 - 1."""
        steps = np.arange(1, (self.length - 2 * self.pairs) // 2 + 1)
        p = self.power_a * steps ** (float(self.power_a) - 1)  # powers of int64 would wrap
        probabilities: NDArray[np.float64] = p / p.sum()
        return probabilities


def generate(
    setting: Setting, rows: int, seed: int, fill_seed: int | None = None
) -> tuple[Ids, Ids]:
    """Rows of a setting: inputs and labels, int64 [n, N]; labels are UNSCORED but at the queries.

    Args:
        setting: the kind of rows.
        rows: n.
        seed: of NumPy's legacy generator, below 2^32; the authors' data for this seed.
        fill_seed: of the random non-queries (None: `seed`). The authors draw these from PyTorch's
            generator, here as after torch.manual_seed(fill_seed).

    Raises:
        InputError: a count or seed out of range, or more tokens than MOST_TOKENS.
    """
    if rows < 1:
        raise InputError(f"num_examples is {rows}, must be at least 1")
    if (tokens := rows * setting.length) > MOST_TOKENS:
        raise InputError(f"num_examples x length is {tokens} tokens, must be at most {MOST_TOKENS}")
    for value in (seed, seed if fill_seed is None else fill_seed):
        if not 0 <= value <= MAX_SEED:
            raise InputError(f"seed is {value}, must be from 0 to {MAX_SEED}")
    random, half, pairs = np.random.RandomState(seed), setting.vocab_size // 2, setting.pairs
    # Drawn stage by stage, not row by row: that order is part of the data.
    keys = _draw(random, np.arange(1, half), rows, pairs)
    values = _draw(random, np.arange(half, setting.vocab_size), rows, pairs)
    probabilities = setting.distance_probabilities()
    gaps = _draw(random, np.arange(len(probabilities)), rows, pairs, probabilities)
    inputs = np.zeros((rows, setting.length), np.int64)
    labels = np.full((rows, setting.length), UNSCORED, np.int64)
    inputs[:, 0 : 2 * pairs : 2] = keys
    inputs[:, 1 : 2 * pairs : 2] = values
    queries = 2 * pairs + 2 * gaps
    np.put_along_axis(inputs, queries, keys, axis=1)
    np.put_along_axis(labels, queries, values, axis=1)
    if setting.random_non_queries:
        torch_like = np.random.RandomState(seed if fill_seed is None else fill_seed)
        fill = torch_like.randint(0, 2**32, inputs.shape, dtype=np.uint32) % setting.vocab_size
        inputs = np.where(inputs == 0, fill.astype(np.int64), inputs)
    return inputs, labels


def _draw(
    random: np.random.RandomState,
    choices: Ids,
    rows: int,
    size: int,
    probabilities: NDArray[np.float64] | None = None,
) -> Ids:
    """`size` of the choices for every row, without repeats, [n, size]."""
    drawn = [random.choice(choices, size, replace=False, p=probabilities) for _ in range(rows)]
    return np.array(drawn, np.int64)
