"""How likely a model finds a sequence: sums and means of log-probabilities, natural logs, float64.

Token t is scored by what the model says after tokens 0 .. t - 1, softmax over all stored rows.
The first token has nothing before it and is not scored, unless a begin or style token is put
there; those are never scored themselves.

Shapes: T tokens of the text, P tokens put before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError, LimitError, NumericError
from .prompts import prefix_ids
from .sampling import check_whole
from .sequences import Dna, DnaPolicy, Record, clean, reverse_complement
from .tokenizers.dna import add_special

if TYPE_CHECKING:
    from .model import Model

Ids = NDArray[np.int32]
Strand = Literal["fwd", "rc", "both"]
Special = Literal["hf", "cls-sep"]

LARGEST_EXPONENT = 700.0  # a perplexity beyond e^700 does not fit a float64


@dataclass(frozen=True)
class Setup:
    """How sequences are scored.

    window   tokens the model sees at once, those put before the text included; None: the model's
             context limit, or the whole sequence if it has none
    stride   tokens scored per window; None: as many as a window can. Smaller is slower and gives
             every token more context
    bos      put the begin token before every window
    style    put this style token before every window
    special  HyenaDNA's special tokens around the whole sequence, scored like bases
    """

    window: int | None = None
    stride: int | None = None
    bos: bool = False
    style: str | None = None
    special: Special | None = None


@dataclass(frozen=True)
class Score:
    """Scores of one sequence. Every mean is None where `n_scored` is 0.

    `n_bytes` counts the bytes of text that the scored tokens stand for; bits_per_byte is
    -logprob_sum / (ln 2 * n_bytes).
    """

    n_scored: int
    logprob_sum: float | None
    n_bytes: int

    @property
    def logprob_mean(self) -> float | None:
        """Mean over the scored tokens."""
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


@dataclass(frozen=True)
class Row:
    """One line of the score table; `status` is ok or the sentence that says what is wrong."""

    index: int
    id: str
    length: int
    score: Score
    strand: Strand
    n_case_folded: int = 0
    n_ambiguous: int = 0
    status: str = "ok"


COLUMNS: dict[str, type] = {
    "index": int,
    "id": str,
    "length": int,
    "n_scored": int,
    "logprob_sum": float,
    "logprob_mean": float,
    "perplexity": float,
    "strand": str,
    "n_case_folded": int,
    "n_ambiguous": int,
    "status": str,
}
TEXT_COLUMNS = {**COLUMNS, "bits_per_byte": float}


def score(
    model: Model,
    sequences: str | bytes | Sequence[str | bytes | ArrayLike],
    *,
    window: int | None = None,
    stride: int | None = None,
    bos: bool = False,
    style: str | None = None,
) -> list[Score]:
    """Scores of one text or of several (or of token ids), in order; see `Setup`.

    Raises:
        InputError: an option is out of range, or ids are unknown to the model.
        LimitError: a window is longer than the context.
        NumericError: a log-probability is not finite.
    """
    setup = Setup(window, stride, bos, style)
    check(model, setup)
    texts = [sequences] if isinstance(sequences, str | bytes) else sequences
    return [score_one(model, text, setup) for text in texts]


def check(model: Model, setup: Setup) -> None:
    """Refuses a setup that cannot work for any sequence; errors as those of `score`."""
    prefix = len(prefix_ids(model, setup.bos, setup.style))
    limit = model.max_length
    if setup.window is not None:
        check_whole("window", setup.window, 2)
    if setup.stride is not None:
        check_whole("stride", setup.stride, 1)
    window = setup.window or limit
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


def score_one(model: Model, text: str | bytes | ArrayLike, setup: Setup) -> Score:
    """Score of one text or of its token ids [T], with a setup that passes `check`."""
    if isinstance(text, str | bytes):
        ids = model.tokenizer.encode(text)
    else:
        ids = model.check_ids(text) if np.size(text) else np.zeros(0, np.int32)
    if setup.special is not None:
        ids = add_special(ids, setup.special)
    logprobs = token_logprobs(model, ids, setup)
    if not len(logprobs):
        return NOTHING
    total = float(logprobs.sum())
    if not math.isfinite(total):
        raise NumericError(f"{model.name}: a log-probability of the sequence is not finite")
    n_bytes = 0
    if model.config.tokenizer is not None:
        n_bytes = len(model.tokenizer.decode_bytes(ids[len(ids) - len(logprobs) :]))
    return Score(len(logprobs), total, n_bytes)


def token_logprobs(model: Model, ids: Ids, setup: Setup) -> NDArray[np.float64]:
    """Log-probabilities float64 [T] (or [T - 1], without tokens before the text) of ids [T].

    Windows score consecutive blocks of `stride` tokens, so every token is scored exactly once. They
    begin `stride` tokens apart, each with an empty state; the last one is shorter.
    """
    prefix = np.array(prefix_ids(model, setup.bos, setup.style), np.int32)
    first = 0 if len(prefix) else 1
    window = setup.window or model.max_length or max(len(ids) + len(prefix), 2)
    stride = setup.stride or window - max(len(prefix), 1)
    blocks = []
    for begin in range(first, len(ids), stride):
        end = min(begin + stride, len(ids))
        seen = ids[max(begin + stride - (window - len(prefix)), 0) : end]
        logprobs = model.token_logprobs(np.concatenate([prefix, seen]))
        blocks.append(logprobs[len(logprobs) - (end - begin) :])
    return np.concatenate(blocks) if blocks else np.zeros(0)


def score_fasta(
    model: Model,
    records: Iterable[Record],
    setup: Setup,
    policy: DnaPolicy,
    strand: Strand = "fwd",
) -> Iterator[Row]:
    """One row per record, in order. A record that cannot be scored gets a row that says why."""
    for record in records:
        row = Row(record.index, record.id, len(record.sequence), NOTHING, strand)
        try:
            dna = clean(record.sequence, policy)
            row = replace(row, n_case_folded=dna.n_case_folded, n_ambiguous=dna.n_ambiguous)
            yield replace(row, score=_strands(model, dna, setup, strand))
        except (InputError, LimitError) as error:
            yield replace(row, status=f"error: {error}")


def score_text(model: Model, text: bytes, setup: Setup, name: str) -> Row:
    """The row of a text file, which is one record; its length is in bytes."""
    return Row(0, name, len(text), score_one(model, text, setup), "fwd")


def values(row: Row) -> dict[str, int | float | str | None]:
    """The row by column name: TEXT_COLUMNS in order."""
    return {
        "index": row.index,
        "id": row.id,
        "length": row.length,
        "n_scored": row.score.n_scored,
        "logprob_sum": row.score.logprob_sum,
        "logprob_mean": row.score.logprob_mean,
        "perplexity": row.score.perplexity,
        "strand": row.strand,
        "n_case_folded": row.n_case_folded,
        "n_ambiguous": row.n_ambiguous,
        "status": row.status,
        "bits_per_byte": row.score.bits_per_byte,
    }


def _strands(model: Model, dna: Dna, setup: Setup, strand: Strand) -> Score:
    """Score of a strand; `both` is the mean of the two strands' sums."""
    forward = reverse = NOTHING
    if strand != "rc":
        forward = score_one(model, dna.sequence, setup)
    if strand != "fwd":
        reverse = score_one(model, reverse_complement(dna.sequence), setup)
    if strand == "fwd":
        return forward
    if strand == "rc" or forward.logprob_sum is None or reverse.logprob_sum is None:
        return reverse
    return replace(forward, logprob_sum=(forward.logprob_sum + reverse.logprob_sum) / 2)
