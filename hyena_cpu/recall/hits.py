"""Where a bigram comes again.

Shapes: T tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.integer]
Whole = NDArray[np.int64]

LARGEST_BIN = 63


def codes(ids: Ids, vocab_size: int) -> Whole:
    """One number for each bigram, int64 [T - 1]: of the tokens t and t + 1."""
    wide = ids.astype(np.int64)
    return wide[:-1] * vocab_size + wide[1:]


def distances(ids: Ids, vocab_size: int) -> Whole:
    """int64 [T]: how far back the bigram that ends at a token last ended, 0 if it never did.

    The earlier bigram may share one token with the later one, as in `a a a`. The first two tokens
    are always 0.
    """
    found = np.zeros(len(ids), np.int64)
    bigrams = codes(ids, vocab_size)
    order = np.argsort(bigrams, kind="stable")
    again = bigrams[order[1:]] == bigrams[order[:-1]]
    found[1 + order[1:][again]] = (order[1:] - order[:-1])[again]
    return found


def bins(found: Whole) -> Whole:
    """The bin of each distance: 0 for 0, k for 2^(k-1) .. 2^k - 1."""
    return np.frexp(found.astype(np.float64))[1].astype(np.int64)


def span(k: int) -> tuple[int, int]:
    """The smallest and the largest distance of bin k > 0."""
    return 1 << (k - 1), (1 << k) - 1
