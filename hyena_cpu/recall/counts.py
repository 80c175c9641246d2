"""How often a training text has each bigram, and the file that says so.

The file is an npz: `format_version` 1, `vocab_size` V, `tokens` (all that were counted), and
`first`, `second` int32 [n] and `count` int64 [n], one entry for every bigram that occurred, in the
order of first * V + second.

Shapes: n bigrams, T tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from ..errors import InputError
from .hits import Ids, Whole, codes

THRESHOLD = 1250  # bigrams seen so often are known, not recalled (arXiv 2312.04927)
FORMAT_VERSION = 1
# What numpy raises of other files and of damaged ones, depending on where they are damaged.
DAMAGED = (ValueError, TypeError, AttributeError, EOFError, RuntimeError, BadZipFile, zlib.error)
ARRAYS = ("format_version", "vocab_size", "tokens", "first", "second", "count")


@dataclass(frozen=True)
class Counts:
    """Bigrams of a training text: `bigrams` [n] are first * vocab_size + second, increasing."""

    vocab_size: int
    tokens: int
    bigrams: Whole
    counts: Whole

    def of(self, ids: Ids) -> Whole:
        """int64 [T]: how often the bigram that ends at each token was seen; 0 for the first."""
        found = np.zeros(len(ids), np.int64)
        wanted = codes(ids, self.vocab_size)
        at = np.searchsorted(self.bigrams, wanted)
        there = at < len(self.bigrams)
        there[there] = self.bigrams[at[there]] == wanted[there]
        found[1:][there] = self.counts[at[there]]
        return found

    def save(self, file: BinaryIO) -> None:
        """Writes the counts as an npz; the same counts are the same bytes."""
        np.savez_compressed(
            file,
            format_version=FORMAT_VERSION,
            vocab_size=self.vocab_size,
            tokens=self.tokens,
            first=(self.bigrams // self.vocab_size).astype(np.int32),
            second=(self.bigrams % self.vocab_size).astype(np.int32),
            count=self.counts,
        )

    @classmethod
    def load(cls, path: Path) -> Counts:
        """The counts of a file. InputError if it is none, with what is wrong."""
        arrays = _arrays(path)
        version = int(arrays["format_version"])
        if version != FORMAT_VERSION:
            raise InputError(
                f"{path}: format_version is {version}; this release reads {FORMAT_VERSION}"
            )
        vocab_size, counts = int(arrays["vocab_size"]), arrays["count"].astype(np.int64)
        first, second = (arrays[name].astype(np.int64) for name in ("first", "second"))
        if not first.shape == second.shape == counts.shape or first.ndim != 1:
            raise InputError(f"{path}: first, second and count must be lists of one length")
        if len(first) and not (min(first.min(), second.min()) >= 0 and second.max() < vocab_size):
            raise InputError(f"{path}: a token is outside 0..{vocab_size - 1}")
        bigrams = first * vocab_size + second
        if (bigrams[1:] <= bigrams[:-1]).any() or (counts < 1).any():
            raise InputError(f"{path}: bigrams must be in order, each once, and counts positive")
        return cls(vocab_size, int(arrays["tokens"]), bigrams, counts)


def count(texts: Iterable[Ids], vocab_size: int) -> Counts:
    """Counts the bigrams of texts; none reaches from one text into the next."""
    bigrams, counts, tokens = np.zeros(0, np.int64), np.zeros(0, np.int64), 0
    for ids in texts:
        found, times = np.unique(codes(ids, vocab_size), return_counts=True)
        tokens += len(ids)
        bigrams, place = np.unique(np.concatenate([bigrams, found]), return_inverse=True)
        total = np.zeros(len(bigrams), np.int64)
        np.add.at(total, place, np.concatenate([counts, times]))
        counts = total
    return Counts(vocab_size, tokens, bigrams, counts)


def _arrays(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            missing = [name for name in ARRAYS if name not in stored]
            if missing:
                raise InputError(f"{path}: no counts of bigrams: array {missing[0]!r} is missing")
            arrays = {name: stored[name] for name in ARRAYS}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except DAMAGED:
        raise InputError(
            f"{path}: no counts of bigrams: not an npz file, or a damaged one; give one that "
            "recall --write-counts has written"
        ) from None
    for name, value in arrays.items():
        if value.dtype.kind not in "iu":
            raise InputError(f"{path}: array {name!r} must hold whole numbers, has {value.dtype}")
        if name in ("format_version", "vocab_size", "tokens") and value.shape != ():
            raise InputError(f"{path}: array {name!r} must be a single number")
    return arrays
