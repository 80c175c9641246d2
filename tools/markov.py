"""Counting models of DNA: what a table of k-mers reaches, to compare a network with."""

from __future__ import annotations

import math

import numpy as np
from dna_data import A, N
from numpy.typing import NDArray
from torch import Tensor


def _contexts(ids: Tensor, order: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number of the `order` letters before, and the letter 0..3; rows with an N are left out."""
    letters = ids.numpy() - A
    count = len(letters) - order
    context = np.zeros(count, np.int64)
    clean = letters[order:] != N - A
    for k in range(order):
        part = letters[k : k + count]
        clean &= part != N - A
        context = 4 * context + part
    return context[clean], letters[order:][clean]


def markov_bits(training: list[Tensor], held_out: Tensor, order: int) -> float:
    """Bits a base of the held-out text under letter counts after `order` letters, plus one each."""
    counts = np.ones((4**order, 4))
    for ids in training:
        context, letter = _contexts(ids, order)
        counts += np.bincount(4 * context + letter, minlength=4 ** (order + 1)).reshape(-1, 4)
    context, letter = _contexts(held_out, order)
    share = counts[context, letter] / counts.sum(axis=1)[context]
    return float(-np.log(share).mean() / math.log(2))
