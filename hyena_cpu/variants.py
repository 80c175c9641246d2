"""What a model says of a variant: log-likelihood of the allele minus that of the reference.

Both are sums over one window (`variant_windows`), natural logs in float64; the first base of the
window has nothing before it and is not scored. Alleles of a window that first differ from the
reference at the same base share what comes before it: the model takes in that prefix once and goes
on from its state for every allele. How an allele is cut depends on the allele alone, so its
numbers are the same in any table.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .checks import check_whole
from .errors import InputError, LimitError, ModelError, NumericError
from .genome import Genome
from .score import Strand
from .sequences import DnaPolicy
from .variant_files import Variant
from .variant_windows import Group, Placed, groups, place, runs

if TYPE_CHECKING:
    from .model import Model

log = logging.getLogger(__name__)

Ids = NDArray[np.int32]
WINDOW = 8192
ONE_TOKEN_PER_BASE = ("dna", "bytes")


@dataclass(frozen=True)
class Setup:
    """How variants are scored.

    window  bases of a window; None: 8,192, or the model's context limit if that is less
    strand  fwd; rc: the reverse complements of the same windows; both: the mean of the two
    share   take in common prefixes once; without it every allele is run whole
    offset  position of the first base of a reference record, counted as the variants are: 1 for
            VCF, 0 for tables that count from 0, more for a reference cut out of a chromosome
    policy  what happens to letters other than A, C, G, T, of the reference and of alleles
    """

    window: int | None = None
    strand: Strand = "fwd"
    share: bool = True
    offset: int = 1
    policy: DnaPolicy = field(default_factory=DnaPolicy)


@dataclass(frozen=True)
class Delta:
    """Sums of log-probabilities over n tokens each, and allele minus reference."""

    n: int
    reference: float
    allele: float
    difference: float


@dataclass(frozen=True)
class Row:
    """One line of the table of variants; `status` is ok or says why there are no numbers."""

    placed: Placed
    delta: Delta | None
    setup: Setup

    @property
    def failed(self) -> bool:
        """Whether the row is an error."""
        return self.placed.status.startswith("error")

    @property
    def skipped(self) -> bool:
        """Whether its allele is no sequence of bases, which is no error."""
        return self.placed.status.startswith("skipped")


# Column -> type, in order.
COLUMNS: dict[str, type] = {
    "index": int,
    "id": str,
    "chrom": str,
    "pos": int,
    "ref": str,
    "alt": str,
    "window_start": int,
    "n_scored_ref": int,
    "n_scored_alt": int,
    "ref_logprob_sum": float,
    "alt_logprob_sum": float,
    "delta_sum": float,
    "delta_mean": float,
    "strand": str,
    "status": str,
}


def values(row: Row) -> dict[str, int | float | str | None]:
    """The row by column name, COLUMNS in order. `window_start` counts as the positions do."""
    variant, delta = row.placed.variant, row.delta
    ok = row.placed.status == "ok"
    n = 0 if delta is None else delta.n
    shown = delta if n else None
    return {
        "index": variant.index,
        "id": variant.id,
        "chrom": row.placed.chrom,
        "pos": variant.pos,
        "ref": variant.ref,
        "alt": variant.alt,
        "window_start": row.placed.start + row.setup.offset if ok else None,
        "n_scored_ref": n,
        "n_scored_alt": n,
        "ref_logprob_sum": shown.reference if shown else None,
        "alt_logprob_sum": shown.allele if shown else None,
        "delta_sum": shown.difference if shown else None,
        "delta_mean": shown.difference / n if shown else None,
        "strand": row.setup.strand,
        "status": row.placed.status,
    }


def check(model: Model, setup: Setup) -> int:
    """The window that a setup means for a model.

    Raises:
        InputError: the window is no whole number above 1, or the strand is unknown.
        LimitError: the window is longer than the context.
        ModelError: the model does not take one token per base.
    """
    kind = model.tokenizer.kind
    if kind not in ONE_TOKEN_PER_BASE:
        raise ModelError(
            f"{model.name} does not take one token per base (its tokenizer is {kind!r}): "
            "variants need a model for DNA"
        )
    if setup.strand not in ("fwd", "rc", "both"):
        raise InputError(f"strand is {setup.strand!r}, must be fwd, rc or both")
    limit = model.max_length
    if setup.window is None:
        return WINDOW if limit is None else min(WINDOW, limit)
    window = check_whole("window", setup.window, 2)
    if limit is not None and window > limit:
        raise LimitError(f"window is {window} but {model.name} takes at most {limit} tokens")
    return window


def score_variants(
    model: Model, genome: Genome, variants: Iterable[Variant], setup: Setup | None = None
) -> Iterator[Row]:
    """One row per variant, in order; a variant that cannot be scored gets one that says why.

    Args:
        variants: such as those of `variant_files.read_variants`.

    Raises:
        InputError, LimitError, ModelError: see `check`; a variant without a chromosome, and the
            reference has several records; a window that does not fit the memory allowed.
        NumericError: a log-probability is not finite.
    """
    setup = Setup() if setup is None else setup
    return _score(model, genome, variants, setup, check(model, setup))


def plan(
    genome: Genome,
    variants: Iterable[Variant],
    setup: Setup,
    size: int,
    encode: Callable[[str], Ids],
) -> Iterator[tuple[list[Placed], list[list[Group]]]]:
    """Runs of variants and, per strand, their groups: what is to be computed, in order.

    `size` is the window; a run without one has no groups.
    """
    strands = ("fwd", "rc") if setup.strand == "both" else (setup.strand,)
    placed = (place(one, genome, size, setup.offset, setup.policy) for one in variants)
    for run in runs(placed):
        ok = run[0].status == "ok"
        yield run, [groups(run, strand, encode) for strand in strands] if ok else []


def _score(
    model: Model, genome: Genome, variants: Iterable[Variant], setup: Setup, size: int
) -> Iterator[Row]:
    tokens = whole = 0
    for run, strands in plan(genome, variants, setup, size, model.tokenizer.encode):
        tokens += sum(group.tokens(setup.share) for strand in strands for group in strand)
        whole += sum(group.tokens(share=False) for strand in strands for group in strand)
        each = [_deltas(model, strand, setup.share) for strand in strands]
        for one in run:
            yield Row(one, _mean([next(deltas) for deltas in each]) if each else None, setup)
    log.info("tokens that the model takes in: %d (%d without sharing)", tokens, whole)


def _deltas(model: Model, parts: list[Group], share: bool) -> Iterator[Delta]:
    """Of each variant of a run, in order, on one strand.

    A group is computed when the first of its variants is due: a run may be long, and what is
    computed should get into the table.
    """
    due = {i: group for group in parts for i, _ in group.members}
    found: dict[int, Delta] = {}
    for i in sorted(due):
        if i not in found:
            group = due[i]
            scores = _branching(model, group) if share and group.shares else _whole(model, group)
            if not all(math.isfinite(delta.allele + delta.reference) for delta in scores):
                raise NumericError(f"{model.name}: a log-probability of a window is not finite")
            found.update({i: scores[allele] for i, allele in group.members})
        yield found.pop(i)


def _whole(model: Model, group: Group) -> list[Delta]:
    """Of each allele, every sequence taken in from its beginning."""
    each = model.token_logprobs_each([group.reference, *group.alleles])
    return _sums(group, [float(logprobs.sum()) for logprobs in each])


def _branching(model: Model, group: Group) -> list[Delta]:
    """Of each allele, what it has in common with the reference taken in once."""
    after = [ids[group.prefix :] for ids in group.alleles]
    reference, *rest = model.token_logprobs_branching(group.reference, after, group.prefix)
    before = float(reference[: group.prefix - 1].sum())
    return _sums(group, [float(reference.sum()), *(before + float(own.sum()) for own in rest)])


def _sums(group: Group, sums: list[float]) -> list[Delta]:
    """The sums of the reference and of each allele, compared."""
    reference, *alleles = sums
    n = len(group.reference) - 1
    return [Delta(n, reference, allele, allele - reference) for allele in alleles]


def _mean(deltas: list[Delta]) -> Delta:
    """Of the strands; of one strand it is that one, bit for bit."""
    if len(deltas) == 1:
        return deltas[0]
    n = deltas[0].n
    return Delta(
        n,
        sum(delta.reference for delta in deltas) / len(deltas),
        sum(delta.allele for delta in deltas) / len(deltas),
        sum(delta.difference for delta in deltas) / len(deltas),
    )
