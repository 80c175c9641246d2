"""Sums and means of log-probabilities, natural logs, float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..batches import grouped
from ..errors import NumericError
from ..tokenizers.dna import SPECIAL, add_special
from .windows import Ids, Setup, Tokens, seen, token_logprobs, windows

if TYPE_CHECKING:
    from ..model import Model

OnProgress = Callable[[int, int], None]  # tokens scored, of so many

T = TypeVar("T")

GROUP_TOKENS = 65_536  # of short sequences scored together
LARGEST_EXPONENT = 700.0  # a perplexity beyond e^700 does not fit a float64


@dataclass(frozen=True)
class Score:
    """Scores of one sequence. Every mean is None where `n_scored` is 0.

    `n_bytes` counts the bytes of text that the scored tokens stand for; bits_per_byte is
    -logprob_sum / (ln 2 * n_bytes). `pooled_mean` is the mean over the tokens of both strands, of
    which not always equally many are scored.
    """

    n_scored: int
    logprob_sum: float | None
    n_bytes: int
    pooled_mean: float | None = None

    @property
    def logprob_mean(self) -> float | None:
        """Mean over the scored tokens."""
        if self.pooled_mean is not None:
            return self.pooled_mean
        return None if self.logprob_sum is None else self.logprob_sum / self.n_scored

    @property
    def perplexity(self) -> float | None:
        """exp(-logprob_mean); None also where that is beyond any float64."""
        mean = self.logprob_mean
        return None if mean is None or -mean > LARGEST_EXPONENT else math.exp(-mean)

    @property
    def bits_per_byte(self) -> float | None:
        """Bits the model needs for a byte of text."""
        if self.logprob_sum is None or not self.n_bytes:
            return None
        return -self.logprob_sum / (math.log(2) * self.n_bytes)


NOTHING = Score(0, None, 0)


def tokens_of(model: Model, text: str | bytes | ArrayLike, setup: Setup) -> Ids:
    """Ids of a text or of ids, with the special tokens around them."""
    if isinstance(text, str | bytes):
        ids = model.tokenizer.encode(text)
    else:
        ids = model.check_ids(text, empty=True)
    return ids if setup.special is None else add_special(ids, setup.special)


def score_tokens(
    model: Model, tokens: Tokens, setup: Setup, on_progress: OnProgress | None = None
) -> Score:
    """Score of one sequence, window by window, with a setup that passes `check`."""
    sums: list[float] = []
    n = n_bytes = 0
    for window in windows(model, len(tokens), setup):
        logprobs = token_logprobs(model, tokens, window, setup)
        sums.append(_sum(model, logprobs))
        n += len(logprobs)
        four = setup.alphabet == "acgt"
        n_bytes += len(logprobs) if four else _bytes(model, tokens[window.begin : window.end])
        if on_progress is not None:
            on_progress(window.end, len(tokens))
    return Score(n, math.fsum(sums), n_bytes) if n else NOTHING


def score_each(model: Model, sequences: Sequence[Tokens], setup: Setup) -> list[Score]:
    """`score_tokens` of each sequence: the same numbers, in less time where many are short."""
    if setup.alphabet != "all":
        return [score_tokens(model, tokens, setup) for tokens in sequences]
    scores: list[Score | None] = [None] * len(sequences)
    single = []  # (which, window, what the model is given)
    for i, tokens in enumerate(sequences):
        places = list(islice(windows(model, len(tokens), setup), 2))
        if len(places) == 1:
            single.append((i, places[0], seen(model, tokens, places[0], setup)))
        else:
            scores[i] = score_tokens(model, tokens, setup)
    together = model.token_logprobs_each([ids for _, _, ids in single])
    for (i, window, ids), logprobs in zip(single, together, strict=True):
        n = window.end - window.begin
        total = _sum(model, logprobs[len(logprobs) - n :])
        scores[i] = Score(n, total, _bytes(model, ids[len(ids) - n :]))
    return [score for score in scores if score is not None]


def groups(items: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Consecutive items of at most GROUP_TOKENS tokens together, in order."""
    return grouped(items, size, GROUP_TOKENS)


def not_finite(model: Model) -> NumericError:
    """The error of a log-probability that is NaN or infinite."""
    return NumericError(f"{model.name}: a log-probability of the sequence is not finite")


def _sum(model: Model, logprobs: NDArray[np.float64]) -> float:
    total = float(logprobs.sum())
    if not math.isfinite(total):
        raise not_finite(model)
    return total


def _bytes(model: Model, ids: Ids) -> int:
    """Bytes of text that tokens stand for."""
    if model.config.tokenizer is None:
        return 0
    if model.tokenizer.kind == "dna" and len(ids) and ids.min() >= len(SPECIAL):
        return len(ids)
    return len(model.tokenizer.decode_bytes(ids))
