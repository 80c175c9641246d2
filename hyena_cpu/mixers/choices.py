"""Which positions of a sequence are chosen, from what is new and from notes of what came before.

Every function but `largest` gives bool [n] for n new positions and is causal: cut into calls in
any way, a sequence has the same positions chosen.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Chosen = NDArray[np.bool_]

SCORE_STEPS = 100_000  # scores are compared in steps of 1e-5, coarser than their rounding errors


def by_chance(positions: NDArray[np.int64], share: float, seed: int) -> Chosen:
    """Chosen iff u < share, u = (m(m(seed) + position) >> 11) 2^-53 in [0, 1).

    m is the finaliser of SplitMix64 (Steele, Lea and Flood 2014) on 64-bit words, so that a
    position's choice depends on the seed and on itself alone.
    """
    words = _mixed(_mixed(np.array([seed], np.uint64)) + positions.astype(np.uint64))
    uniform: Chosen = (words >> np.uint64(11)) * 2.0**-53 < share
    return uniform


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    mixed: NDArray[np.uint64] = words ^ (words >> np.uint64(31))
    return mixed


def token_seen(ids: Ids, before: Ids) -> Chosen:
    """Chosen iff the same id stands at some earlier position; `before`: all earlier ids."""
    return _seen(ids, before)


def bigram_seen(ids: Ids, before: Ids) -> Chosen:
    """Chosen iff some earlier position has the same id after the same id."""
    pairs = _pairs(np.concatenate([before, ids]))
    new = min(len(ids), len(pairs))  # the first token of a sequence ends no pair
    chosen = np.zeros(len(ids), np.bool_)
    chosen[len(ids) - new :] = _seen(pairs[len(pairs) - new :], pairs[: len(pairs) - new])
    return chosen


def _pairs(ids: Ids) -> NDArray[np.int64]:
    wide = ids.astype(np.int64)
    return (wide[:-1] << 32) + wide[1:]


def _seen(new: NDArray[np.integer], before: NDArray[np.integer]) -> Chosen:
    chosen = np.ones(len(new), np.bool_)
    chosen[np.unique(new, return_index=True)[1]] = False  # where each value comes first
    met = before[np.isin(before, new)]  # in this order numpy looks for a single new one directly
    return chosen | np.isin(new, met)


def steps_of(scores: NDArray[np.float64]) -> Ids:
    """Scores in 0..1 as whole steps of 1e-5, which is how `running_top` compares them."""
    return np.rint(scores * SCORE_STEPS).astype(np.int32)


def running_top(steps: Ids, before: Ids, count: int) -> Chosen:
    """Chosen iff fewer than `count` earlier scores are as large: earlier wins among equals."""
    top = before
    if len(before) > count:
        top = np.partition(before, len(before) - count)[len(before) - count :]
    heap = top.tolist()
    heapq.heapify(heap)
    chosen = np.zeros(len(steps), np.bool_)
    for t, step in enumerate(steps.tolist()):
        if len(heap) < count:
            heapq.heappush(heap, step)
        elif step > heap[0]:
            heapq.heapreplace(heap, step)
        else:
            continue
        chosen[t] = True
    return chosen


def largest(scores: NDArray[np.float64], count: int) -> Chosen:
    """The `count` largest of a whole sequence, or all; earlier wins among equals."""
    chosen = np.zeros(len(scores), np.bool_)
    chosen[np.argsort(-scores, kind="stable")[:count]] = True
    return chosen
