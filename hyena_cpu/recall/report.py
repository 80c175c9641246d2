"""Log-probabilities on hits and on the rest, and what they say of the gap between two models.

Shapes: T tokens of the text, K bins of distances (bin 0: no hit).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..score.sums import NOTHING, Score, not_finite
from ..score.windows import Ids, Setup, token_logprobs, windows
from .counts import THRESHOLD, Counts
from .hits import LARGEST_BIN, Whole, bins, distances, span

if TYPE_CHECKING:
    from ..model import Model

OnProgress = Callable[[int, int], None]  # tokens done, of so many

TAIL_FROM = 4  # the bin 8..15: nearer bigrams follow the grammar of a phrase, not a power law
HITS = slice(1, None)  # bins


@dataclass(frozen=True)
class Tally:
    """Scored tokens by bin, and the sums of their log-probabilities, one row per model.

    `longest` is the largest number of tokens seen at once.
    """

    counts: Whole  # [K]
    sums: NDArray[np.float64]  # [models, K]
    longest: int

    def score(self, model: int, chosen: slice) -> Score:
        """The score of a model on some of the bins."""
        n = int(self.counts[chosen].sum())
        return Score(n, math.fsum(self.sums[model, chosen]), 0) if n else NOTHING


@dataclass(frozen=True)
class Line:
    """One line of a report: a model on a slice of the tokens.

    Attributes:
        slice: `hits`, `others`, `all`, or `hits A-B` by distance.
        share: of the scored tokens.
        gap_share: of the difference to the second model; None in its own lines.
    """

    model: str
    slice: str
    score: Score
    share: float | None
    gap_share: float | None


@dataclass(frozen=True)
class Report:
    """What `report` found. `slope` is None where fewer than two bins of the tail have hits."""

    lines: list[Line]
    distances: list[tuple[int, int, int]]  # smallest, largest, hits
    slope: float | None


def tally(
    models: Sequence[Model],
    ids: Ids,
    setup: Setup,
    counts: Counts | None = None,
    threshold: int = THRESHOLD,
    on_progress: OnProgress | None = None,
) -> Tally:
    """Scores a text with each model, and sorts its tokens into hits and others.

    A token is a hit if its bigram occurred earlier in what the models see at once, and fewer than
    `threshold` times in the text of `counts` (None: no bigram counts as frequent). The first two
    tokens of a window are never hits.

    Args:
        models: of one vocabulary, with a context that takes the windows.
        ids: int [T].
        setup: windows, as for scores.

    Raises:
        InputError: the counts are of another vocabulary.
        NumericError: a log-probability is not finite.
    """
    vocab_size = models[0].vocab_size
    if counts is not None and counts.vocab_size != vocab_size:
        raise InputError(
            f"counts are of {counts.vocab_size} tokens, but {models[0].name} has {vocab_size}"
        )
    numbers = np.zeros(LARGEST_BIN + 1, np.int64)
    sums = np.zeros((len(models), LARGEST_BIN + 1))
    longest = 0
    for window in windows(models[0], len(ids), setup):
        seen = ids[window.start : window.end]
        found = distances(seen, vocab_size)
        if counts is not None:
            found[counts.of(seen) >= threshold] = 0
        at = bins(found[window.begin - window.start :])
        numbers += np.bincount(at, minlength=LARGEST_BIN + 1)
        for row, model in zip(sums, models, strict=True):
            logprobs = token_logprobs(model, ids, window, setup)
            if not np.isfinite(logprobs).all():
                raise not_finite(model)
            row += np.bincount(at, logprobs, LARGEST_BIN + 1)
        longest = max(longest, len(seen))
        if on_progress is not None:
            on_progress(window.end, len(ids))
    return Tally(numbers, sums, longest)


def report(found: Tally, names: Sequence[str]) -> Report:
    """The lines of a tally; `names` are those of its one model or of its two."""
    (used,) = np.nonzero(found.counts[1:])
    slices = {"hits": HITS, "others": slice(0, 1), "all": slice(None)}
    by_distance = {}
    for k in 1 + used:
        low, high = span(int(k))
        by_distance[f"hits {low}-{high}"] = slice(k, k + 1)
    lines = []
    total = int(found.counts.sum())
    for model, name in enumerate(names):
        for label, chosen in (slices | by_distance).items():
            score = found.score(model, chosen)
            share = score.n_scored / total if total else None
            gap = gap_share(found, chosen) if model == 0 else None
            lines.append(Line(name, label, score, share, gap))
    histogram = [(*span(int(k)), int(found.counts[k])) for k in 1 + used]
    return Report(lines, histogram, slope(found.counts, found.longest))


def gap_share(found: Tally, chosen: slice) -> float | None:
    """The part of the second model's lead in mean log-probability that is made in a slice.

    For a slice of share f: f (lp_2 - lp_1 there) / (lp_2 - lp_1 on all). For the hits it is 1 where
    the first model leads on all tokens but not on the hits, as the source has it. None with one
    model, where the slice is empty, or without a difference.
    """
    if len(found.sums) != 2 or not found.counts[chosen].any():
        return None
    gaps = found.sums[1] - found.sums[0]
    whole, part = math.fsum(gaps), math.fsum(gaps[chosen])
    if whole == 0:
        return None
    return 1.0 if chosen == HITS and part > 0 > whole else part / whole


def slope(counts: Whole, longest: int) -> float | None:
    """Of the power law in the tail: log hits per unit of distance over log distance.

    A weighted line through the bins from TAIL_FROM on whose distances are at most half of
    `longest`, beyond which the beginning of the text cuts them off; a bin weighs what it counts,
    the inverse variance of its logarithm. None with fewer than two bins.
    """
    k = np.array(
        [
            k
            for k in range(TAIL_FROM, len(counts))
            if counts[k] and span(k)[1] <= longest / 2  # whole bins
        ],
        np.float64,
    )
    if len(k) < 2:
        return None
    n = counts[k.astype(np.int64)].astype(np.float64)
    density = np.log2(n) - (k - 1)  # bin k has 2^(k-1) distances
    x, y = k - np.average(k, weights=n), density - np.average(density, weights=n)
    return float((n * x * y).sum() / (n * x * x).sum())
