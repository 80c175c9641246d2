"""The score table: one row per record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ..errors import InputError, LimitError, NumericError
from ..sequences import DnaPolicy, Record, clean, reverse_complement
from .sums import NOTHING, OnProgress, Score, groups, score_each, score_tokens, tokens_of
from .windows import Letters, Setup, Tokens, one_per_letter

if TYPE_CHECKING:
    from ..model import Model

Strand = Literal["fwd", "rc", "both"]


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

    @property
    def record(self) -> str:
        """Which record it is."""
        return f"record {self.index + 1} ({self.id!r})"

    @property
    def problem(self) -> str | None:
        """Which record it is and what is wrong with it; None if nothing is."""
        if self.status == "ok":
            return None
        return f"{self.record}: {self.status.removeprefix('error: ')}"


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


@dataclass
class Job:
    """A record on its way to its row: what is to be scored, one entry per strand."""

    row: Row
    strands: dict[Literal["fwd", "rc"], Tokens] = field(default_factory=dict)

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.strands.values()))


def score_fasta(
    model: Model,
    records: Iterable[Record],
    setup: Setup,
    policy: DnaPolicy,
    strand: Strand = "fwd",
    *,
    skip: int = 0,
    on_progress: OnProgress | None = None,
) -> Iterator[Row]:
    """One row per record, in order. A record that cannot be scored gets a row that says why.

    Short records are read ahead and scored together, which changes no digit.

    Args:
        skip: records passed over at the beginning.
        on_progress: gets tokens done and to do, of the records that are scored together.
    """
    wanted = (record for record in records if record.index >= skip)
    jobs = (prepare(model, record, setup, policy, strand) for record in wanted)
    for group in groups(jobs, lambda job: job.n_tokens):
        yield from _scored(model, group, setup, on_progress)


def prepare(model: Model, record: Record, setup: Setup, policy: DnaPolicy, strand: Strand) -> Job:
    """Checks the letters of a record; one that is refused has nothing to score."""
    row = Row(record.index, record.id, len(record.sequence), NOTHING, strand)
    try:
        dna = clean(record.sequence, policy)
    except InputError as error:
        return Job(replace(row, status=f"error: {error}"))
    row = replace(row, n_case_folded=dna.n_case_folded, n_ambiguous=dna.n_ambiguous)
    job = Job(row)
    if strand != "rc":
        job.strands["fwd"] = _tokens(model, dna.sequence, setup)
    if strand != "fwd":
        job.strands["rc"] = _tokens(model, reverse_complement(dna.sequence), setup)
    return job


def score_text(
    model: Model, text: bytes, setup: Setup, name: str, on_progress: OnProgress | None = None
) -> Row:
    """The row of a text file, which is one record; its length is in bytes."""
    tokens = tokens_of(model, text, setup)
    if on_progress is not None:
        on_progress(0, len(tokens))
    return Row(0, name, len(text), score_tokens(model, tokens, setup, on_progress), "fwd")


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


def _tokens(model: Model, sequence: str, setup: Setup) -> Tokens:
    if one_per_letter(model):
        return Letters(model.tokenizer, sequence, setup.special)
    return tokens_of(model, sequence, setup)


def _scored(
    model: Model, jobs: list[Job], setup: Setup, on_progress: OnProgress | None
) -> Iterator[Row]:
    total = sum(job.n_tokens for job in jobs)
    if on_progress is not None:
        on_progress(0, total)
    if len(jobs) == 1:
        yield _alone(model, jobs[0], setup, on_progress)
        return
    try:
        scores = iter(score_each(model, [t for job in jobs for t in job.strands.values()], setup))
        rows = [_row(job, [next(scores) for _ in job.strands]) for job in jobs]
    except (InputError, LimitError, NumericError):  # of which record?
        rows = None
    if rows is None:
        yield from (_alone(model, job, setup, None) for job in jobs)
    else:
        yield from rows
    if on_progress is not None:
        on_progress(total, total)


def _alone(model: Model, job: Job, setup: Setup, on_progress: OnProgress | None) -> Row:
    scores: list[Score] = []
    before = 0

    def report(done: int, _: int) -> None:
        if on_progress is not None:
            on_progress(before + done, job.n_tokens)

    try:
        for tokens in job.strands.values():
            scores.append(score_tokens(model, tokens, setup, report))
            before += len(tokens)
    except (InputError, LimitError) as error:
        return replace(job.row, status=f"error: {error}")
    except NumericError as error:
        raise NumericError(f"{job.row.record}: {error}") from None
    return _row(job, scores)


def _row(job: Job, scores: list[Score]) -> Row:
    """The row of a job; of two strands the mean of their sums, and that over all their tokens."""
    if not scores:
        return job.row
    score, *others = scores
    for other in others:
        if score.logprob_sum is not None and other.logprob_sum is not None:
            total = score.logprob_sum + other.logprob_sum
            pooled = total / (score.n_scored + other.n_scored)
            score = replace(score, logprob_sum=total / 2, pooled_mean=pooled)
    return replace(job.row, score=score)
