"""What the model says at every position: tables with one row per base or token.

Shapes: n positions of a piece of the sequence; tables come piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, LimitError, NumericError
from ..sequences import DnaPolicy, Record
from ..tokenizers.dna import TOKENS
from .rows import Job, Strand, prepare
from .sums import OnProgress, not_finite, tokens_of
from .windows import (
    FOUR,
    Ids,
    Letters,
    Setup,
    Tokens,
    among_four,
    first_scored,
    four_ids,
    four_of,
    predictions,
    windows,
)

if TYPE_CHECKING:
    from ..model import Model

Columns = dict[str, Any]  # name -> n values

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


@dataclass(frozen=True)
class Part:
    """Rows of a record, by column; with the last ones `problem` says why there are no others."""

    columns: Columns
    last: bool = False
    problem: str | None = None


def base_parts(
    model: Model,
    records: Iterable[Record],
    setup: Setup,
    policy: DnaPolicy,
    strand: Strand = "fwd",
    *,
    skip: int = 0,
    on_progress: OnProgress | None = None,
) -> Iterator[Part]:
    """Columns of BASE_COLUMNS for every record, strand after strand, each in the order it is read.

    `position` counts from 0 on the record as given, on the reverse strand too (where it falls);
    `base` is the letter that was read, there the complement. Special tokens stand at -1 and T.
    Probabilities are those that predicted the base, over all rows, or over the four bases if the
    alphabet is acgt; `entropy` is in bits and always over the four. A base that is not scored has
    missing values. A record that cannot be scored has no rows.

    Args:
        skip: records passed over at the beginning.
        on_progress: gets tokens done and to do, of each record.

    Raises:
        InputError: the model has no token per base.
        NumericError: a log-probability is not finite.
    """
    four = four_ids(model)
    for record in records:
        if record.index < skip:
            continue
        job = prepare(model, record, setup, policy, strand)
        problem = job.row.problem
        try:
            for columns in _bases_of(model, job, setup, four, on_progress):
                yield Part(columns)
        except (InputError, LimitError) as error:
            problem = f"{job.row.record}: {error}"
        except NumericError as error:
            raise NumericError(f"{job.row.record}: {error}") from None
        yield Part({name: [] for name in BASE_COLUMNS}, last=True, problem=problem)


def token_parts(
    model: Model, text: bytes, setup: Setup, name: str, on_progress: OnProgress | None = None
) -> Iterator[Part]:
    """Columns of TOKEN_COLUMNS for a text; errors as of `base_parts`.

    Bytes of a token that are no character by themselves are written as \\xNN.
    """
    ids = tokens_of(model, text, setup)
    four = four_ids(model) if setup.alphabet == "acgt" else None
    if on_progress is not None:
        on_progress(0, len(ids))
    for at, part, rows in _all_positions(model, ids, setup):
        pieces = [model.tokenizer.decode_bytes([i]) for i in part]
        columns = {
            "index": [0] * len(part),
            "id": [name] * len(part),
            "position": np.arange(at, at + len(part)),
            "token": [piece.decode("utf-8", "backslashreplace") for piece in pieces],
            "logprob": _logprobs(model, part, rows, four),
        }
        yield Part(columns)
        if on_progress is not None:
            on_progress(at + len(part), len(ids))
    yield Part({name: [] for name in TOKEN_COLUMNS}, last=True)


def _bases_of(
    model: Model, job: Job, setup: Setup, four: Ids, on_progress: OnProgress | None
) -> Iterator[Columns]:
    done = 0
    if on_progress is not None:
        on_progress(0, job.n_tokens)
    for strand, tokens in job.strands.items():
        assert isinstance(tokens, Letters)
        for at, ids, rows in _all_positions(model, tokens, setup):
            named = {"index": job.row.index, "id": job.row.id, "strand": strand}
            repeated = {name: [value] * len(ids) for name, value in named.items()}
            places = _places(tokens, at, len(ids), strand)
            renormalised = four if setup.alphabet == "acgt" else None
            logprobs = _logprobs(model, ids, rows, renormalised)
            shares = _shares(rows, len(ids), four, renormalised is not None)
            yield {**repeated, **places, "logprob": logprobs, **shares}
            done += len(ids)
            if on_progress is not None:
                on_progress(done, job.n_tokens)


def _all_positions(
    model: Model, tokens: Tokens, setup: Setup
) -> Iterator[tuple[int, Ids, NDArray[np.float64] | None]]:
    """(position of the first, ids [n], log-probabilities [n, V]); None for a token not scored."""
    first = min(first_scored(model, setup), len(tokens))
    for window in windows(model, len(tokens), setup):
        at = window.begin
        for ids, rows in predictions(model, tokens, window, setup):
            if first:  # only now: the model may refuse the length
                yield 0, tokens[:first], None
                first = 0
            yield at, ids, rows
            at += len(ids)
    if first:
        yield 0, tokens[:first], None


def _places(tokens: Letters, at: int, n: int, strand: str) -> Columns:
    """Columns position and base of tokens at .. at + n - 1."""
    letters, begin = tokens.sequence, at - tokens.front
    read = list(letters[max(begin, 0) : max(begin + n, 0)])
    if begin < 0:
        read = [TOKENS[tokens[:1][0]], *read]
    if begin + n > len(letters):
        read.append(TOKENS[tokens[len(tokens) - 1 :][0]])
    position = np.arange(begin, begin + n)
    return {"position": len(letters) - 1 - position if strand == "rc" else position, "base": read}


def _shares(rows: NDArray[np.float64] | None, n: int, four: Ids, renormalised: bool) -> Columns:
    """Columns p_* and entropy of n positions."""
    if rows is None:
        shares, entropy = np.full((n, 4), np.nan), np.full(n, np.nan)
    else:
        among = four_of(rows, four)
        shares = np.exp(among if renormalised else rows[:, four])
        entropy = -(np.exp(among) * among).sum(axis=1) / np.log(2)
    return {**{f"p_{base}": shares[:, i] for i, base in enumerate(FOUR)}, "entropy": entropy}


def _logprobs(
    model: Model, ids: Ids, rows: NDArray[np.float64] | None, four: Ids | None
) -> NDArray[np.float64]:
    """Log-probabilities [n] of ids, among `four` if that is given; NaN where there is none."""
    if rows is None:
        return np.full(len(ids), np.nan)
    if four is None:
        values, inside = rows[np.arange(len(ids)), ids], np.ones(len(ids), bool)
    else:
        values, inside = among_four(rows, ids, four)
    if not np.isfinite(values[inside]).all():
        raise not_finite(model)
    return values
