"""A sequence as the model sees it: tokens made when they are needed, in windows.

Shapes: T tokens of the text, P tokens put before each window, n tokens scored, V rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import InputError, LimitError
from ..prompts import prefix_ids
from ..tokenizers.dna import CLS, SEP, Special

if TYPE_CHECKING:
    from ..model import Model
    from ..tokenizers import Tokenizer

Ids = NDArray[np.int32]
Alphabet = Literal["all", "acgt"]

FOUR = "ACGT"


@dataclass(frozen=True)
class Setup:
    """How sequences are scored.

    window    tokens the model sees at once, those put before the text included; None: the model's
              context limit, or the whole sequence if it has none
    stride    tokens scored per window; None: as many as a window can. Smaller is slower and gives
              every token more context
    bos       put the begin token before every window
    style     put this style token before every window
    special   HyenaDNA's special tokens around the whole sequence, scored like bases
    alphabet  all: probabilities over all stored rows; acgt: over the four bases, and nothing else
              is scored
    """

    window: int | None = None
    stride: int | None = None
    bos: bool = False
    style: str | None = None
    special: Special | None = None
    alphabet: Alphabet = "all"


class Tokens(Protocol):
    """What is scored: an array of ids, or `Letters`."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: slice, /) -> Ids: ...


class Letters:
    """Ids of a sequence with one token per letter, made slice by slice: a letter takes one byte.

    `front` special tokens stand before the letters.
    """

    def __init__(self, tokenizer: Tokenizer, sequence: str, special: Special | None) -> None:
        self._tokenizer, self.sequence = tokenizer, sequence
        self.front = int(special == "cls-sep")
        self._back = int(special is not None)

    def __len__(self) -> int:
        return self.front + len(self.sequence) + self._back

    def __getitem__(self, key: slice, /) -> Ids:
        begin, end, _ = key.indices(len(self))
        letters = self.sequence[max(begin - self.front, 0) : max(end - self.front, 0)]
        before = [CLS] if self.front and begin == 0 < end else []
        after = [SEP] if self._back and begin < end == len(self) else []
        parts = (
            np.array(before, np.int32),
            self._tokenizer.encode(letters),
            np.array(after, np.int32),
        )
        return np.concatenate(parts)


@dataclass(frozen=True)
class Window:
    """Tokens begin .. end - 1 are scored by a model that sees `start` .. end - 1."""

    start: int
    begin: int
    end: int


def one_per_letter(model: Model) -> bool:
    """Whether every letter of a sequence is one token."""
    return model.config.tokenizer is not None and model.tokenizer.kind in ("dna", "bytes")


def four_ids(model: Model) -> Ids:
    """Ids of A, C, G, T; InputError if the model has no token per base."""
    if not one_per_letter(model):
        raise InputError(f"alphabet acgt needs one token per base, and {model.name} has none")
    return model.tokenizer.encode(FOUR)


def check(model: Model, setup: Setup) -> None:
    """Refuses a setup that cannot work for any sequence; errors as those of `score`."""
    prefix = len(prefix_ids(model, setup.bos, setup.style))
    limit = model.max_length
    if setup.alphabet not in ("all", "acgt"):
        raise InputError(f"alphabet is {setup.alphabet!r}, must be all or acgt")
    if setup.alphabet == "acgt":
        four_ids(model)
    window = limit if setup.window is None else check_whole("window", setup.window, 2)
    if setup.stride is not None:
        check_whole("stride", setup.stride, 1)
    if window is None:
        if setup.stride is not None:
            raise InputError(f"stride needs a window: {model.name} has no context limit")
        return
    largest = window - max(prefix, 1)
    if largest < 1:
        raise InputError(f"window is {window}, must be at least {max(prefix, 1) + 1}")
    if limit is not None and window > limit:
        raise LimitError(f"window is {window} but {model.name} takes at most {limit} tokens")
    if setup.stride is not None and not 1 <= setup.stride <= largest:
        raise InputError(
            f"stride is {setup.stride}, must be in 1..{largest}: a window of {window} tokens "
            "cannot score more"
        )


def prefix(model: Model, setup: Setup) -> Ids:
    """Ids [P] before every window."""
    return np.array(prefix_ids(model, setup.bos, setup.style), np.int32)


def first_scored(model: Model, setup: Setup) -> int:
    """The first token that is scored: 0 if anything stands before it, else 1."""
    return 0 if len(prefix(model, setup)) else 1


def windows(model: Model, length: int, setup: Setup) -> Iterator[Window]:
    """The windows that score `length` tokens, every one exactly once but an unscored first.

    They begin `stride` scored tokens apart, each with an empty state; the last one is shorter.
    """
    before = len(prefix(model, setup))
    window = int(setup.window or model.max_length or max(length + before, 2))
    stride = int(setup.stride or window - max(before, 1))
    for begin in range(first_scored(model, setup), length, stride):
        start = max(begin + stride - (window - before), 0)
        yield Window(start, begin, min(begin + stride, length))


def seen(model: Model, tokens: Tokens, window: Window, setup: Setup) -> Ids:
    """What the model is given for a window: ids [P + end - start]."""
    return np.concatenate([prefix(model, setup), tokens[window.start : window.end]])


def token_logprobs(
    model: Model, tokens: Tokens, window: Window, setup: Setup
) -> NDArray[np.float64]:
    """Log-probabilities float64 [n] of those of a window's tokens that the alphabet has."""
    if setup.alphabet == "all":
        return model.token_logprobs(seen(model, tokens, window, setup))[window.begin - window.end :]
    four = four_ids(model)
    pieces = []
    for ids, rows in predictions(model, tokens, window, setup):
        values, inside = among_four(rows, ids, four)
        pieces.append(values[inside])
    return np.concatenate(pieces)


def predictions(
    model: Model, tokens: Tokens, window: Window, setup: Setup
) -> Iterator[tuple[Ids, NDArray[np.float64]]]:
    """(ids [n], log-probabilities over all rows [n, V] before each): a window's tokens in order."""
    ids = seen(model, tokens, window, setup)
    first = len(ids) - (window.end - window.begin)  # the first scored one of `ids`
    for t, rows in model.logprob_blocks(ids):
        skip = max(first - 1 - t, 0)  # row t is of token t + 1
        rows = rows[skip : len(ids) - 1 - t]
        if len(rows):
            yield ids[t + skip + 1 :][: len(rows)], rows


def among_four(
    rows: NDArray[np.float64], ids: Ids, four: Ids
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Log-probability [n] of each id among the four bases, NaN for others; whether it is one."""
    at = ids[:, None] == four
    inside = at.any(axis=1)
    values = four_of(rows, four)[np.arange(len(ids)), at.argmax(axis=1)]
    return np.where(inside, values, np.nan), inside


def four_of(rows: NDArray[np.float64], four: Ids) -> NDArray[np.float64]:
    """Log-probabilities [n, 4] of the four bases among themselves."""
    kept = rows[:, four]
    kept -= kept.max(axis=1, keepdims=True)
    return kept - np.log(np.exp(kept).sum(axis=1, keepdims=True))
