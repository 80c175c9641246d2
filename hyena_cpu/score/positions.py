"""What the model says at every position: tables with one row per base or token.

Shapes: n positions of a piece of the sequence; tables come piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..tokenizers.dna import TOKENS
from .rows import Job
from .sums import OnProgress, not_finite
from .windows import (
    FOUR,
    Ids,
    Letters,
    Setup,
    Tokens,
    among_four,
    four_ids,
    four_of,
    predictions,
    windows,
)

if TYPE_CHECKING:
    from ..model import Model

Piece = dict[str, Any]  # columns

BASE_COLUMNS: dict[str, type] = {
    "index": int,
    "id": str,
    "strand": str,
    "position": int,
    "base": str,
    "logprob": float,
    "p_A": float,
    "p_C": float,
    "p_G": float,
    "p_T": float,
    "entropy": float,
}
TOKEN_COLUMNS: dict[str, type] = {
    "index": int,
    "id": str,
    "position": int,
    "token": str,
    "logprob": float,
}


def base_rows(
    model: Model, job: Job, setup: Setup, on_progress: OnProgress | None = None
) -> Iterator[Piece]:
    """Columns of BASE_COLUMNS for a record, strand after strand, each in the order it is read.

    `position` counts from 0 on the record as given, on the reverse strand too (where it falls);
    `base` is the letter that was read, there the complement. Special tokens stand at -1 and T.
    Probabilities are those that predicted the base, over all rows, or over the four bases if the
    alphabet is acgt; `entropy` is in bits and always over the four.

    Raises:
        NumericError: a log-probability is not finite.
    """
    done = 0
    for strand, tokens in job.strands.items():
        assert isinstance(tokens, Letters)
        for at, ids, rows in _all_positions(model, tokens, setup):
            named = {"index": job.row.index, "id": job.row.id, "strand": strand}
            piece: Piece = {name: [value] * len(ids) for name, value in named.items()}
            yield piece | _places(tokens, at, len(ids), strand) | _bases(model, ids, rows, setup)
            done += len(ids)
            if on_progress is not None:
                on_progress(done, job.n_tokens)


def token_rows(
    model: Model, name: str, ids: Ids, setup: Setup, on_progress: OnProgress | None = None
) -> Iterator[Piece]:
    """Columns of TOKEN_COLUMNS for a text of token ids [T]; errors as of `base_rows`.

    Bytes of a token that are no character by themselves are written as \\xNN.
    """
    for at, part, rows in _all_positions(model, ids, setup):
        texts = [
            model.tokenizer.decode_bytes([i]).decode("utf-8", "backslashreplace") for i in part
        ]
        yield {
            "index": np.zeros(len(part), np.int64),
            "id": [name] * len(part),
            "position": np.arange(at, at + len(part)),
            "token": texts,
            "logprob": _logprobs(model, part, rows, setup),
        }
        if on_progress is not None:
            on_progress(at + len(part), len(ids))


def _all_positions(
    model: Model, tokens: Tokens, setup: Setup
) -> Iterator[tuple[int, Ids, NDArray[np.float64] | None]]:
    """(position of the first, ids [n], log-probabilities [n, V]); None for a token not scored."""
    places = windows(model, len(tokens), setup)
    first = places[0].begin if places else len(tokens)
    if first:
        yield 0, tokens[:first], None
    for window in places:
        at = window.begin
        for ids, rows in predictions(model, tokens, window, setup):
            yield at, ids, rows
            at += len(ids)


def _places(tokens: Letters, at: int, n: int, strand: str) -> Piece:
    """Columns position and base of tokens at .. at + n - 1."""
    letters, begin = tokens.sequence, at - tokens.front
    read = list(letters[max(begin, 0) : max(begin + n, 0)])
    if begin < 0:
        read = [TOKENS[tokens[:1][0]], *read]
    if begin + n > len(letters):
        read.append(TOKENS[tokens[len(tokens) - 1 :][0]])
    position = np.arange(begin, begin + n)
    return {"position": len(letters) - 1 - position if strand == "rc" else position, "base": read}


def _bases(model: Model, ids: Ids, rows: NDArray[np.float64] | None, setup: Setup) -> Piece:
    """Columns logprob, p_* and entropy."""
    if rows is None:
        shares = np.full((len(ids), 4), np.nan)
        entropy = np.full(len(ids), np.nan)
    else:
        four = four_ids(model)
        among = four_of(rows, four)
        shares = np.exp(among if setup.alphabet == "acgt" else rows[:, four])
        entropy = -(np.exp(among) * among).sum(axis=1) / np.log(2)
    columns = {f"p_{base}": shares[:, i] for i, base in enumerate(FOUR)}
    return {"logprob": _logprobs(model, ids, rows, setup), **columns, "entropy": entropy}


def _logprobs(
    model: Model, ids: Ids, rows: NDArray[np.float64] | None, setup: Setup
) -> NDArray[np.float64]:
    if rows is None:
        return np.full(len(ids), np.nan)
    if setup.alphabet == "acgt":
        values, inside = among_four(rows, ids, four_ids(model))
    else:
        values, inside = rows[np.arange(len(ids)), ids], np.ones(len(ids), bool)
    if not np.isfinite(values[inside]).all():
        raise not_finite(model)
    return values
