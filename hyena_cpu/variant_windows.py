"""Where a variant's window lies, the two sequences in it, and which alleles share a prefix.

The window holds as many bases of the reference as of the allele. The first base of the variant is
in its middle (base W // 2, from 0); near an end of the record the window moves inward. What an
insertion or a deletion changes in length is taken from the right flank.

Shapes: W bases of a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .genome import Genome
from .sequences import DnaPolicy, clean, reverse_complement
from .variant_files import Variant

Ids = NDArray[np.int32]

BASES_TOGETHER = 1 << 20  # of alleles held at a time; one at least
ALLELES_TOGETHER = 64  # of a group; every further group takes the reference in once more
SHORTEST_PREFIX = 64  # tokens; below that a split costs more than it saves


class NoSequenceError(InputError):
    """An allele that is no sequence of bases, which is no fault of the file."""


@dataclass(frozen=True)
class Placed:
    """A variant and its window, or why it has none.

    chrom    id of the record
    start    first base of the window in the record, from 0
    ref, alt the window's sequences, W letters each
    status   ok, or the sentence that says what is wrong, after `error: ` or `skipped: `
    """

    variant: Variant
    chrom: str
    start: int
    ref: str
    alt: str
    status: str = "ok"


@dataclass(frozen=True)
class Group:
    """Alleles of one window, on one strand, that first differ from the reference at one token.

    Of very many there are several groups, so that no call of the model takes long.

    reference  int32 [W]
    prefix     tokens that all have in common: what is before that difference
    alleles    each int32 [W], no two the same
    members    per variant of the group (place in its run, place in `alleles`)
    """

    reference: Ids
    prefix: int
    alleles: list[Ids]
    members: list[tuple[int, int]]

    @property
    def shares(self) -> bool:
        """Whether the prefix is worth taking apart; depends on no other variant."""
        return SHORTEST_PREFIX <= self.prefix < len(self.reference)

    def tokens(self, share: bool = True) -> int:
        """Tokens that a model takes in for the group."""
        prefix = self.prefix if share and self.shares else 0
        return prefix + (1 + len(self.alleles)) * (len(self.reference) - prefix)


def place(variant: Variant, genome: Genome, size: int, offset: int, policy: DnaPolicy) -> Placed:
    """The window of `size` bases around a variant (fewer if the record is shorter).

    Args:
        offset: position of the first base of a record, counted as the variant's positions are.
        policy: for the letters of the reference and of both alleles.

    Raises:
        InputError: a variant without a chromosome, and the genome has several records.
    """
    chrom = genome.only() if variant.chrom is None else variant.chrom
    try:
        start, ref, alt = _window(variant, chrom, genome, size, offset, policy)
    except NoSequenceError as error:
        return Placed(variant, chrom, 0, "", "", f"skipped: {error}")
    except InputError as error:
        return Placed(variant, chrom, 0, "", "", f"error: {error}")
    return Placed(variant, chrom, start, ref, alt)


def runs(placed: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Neighbours in the table that have one window, a bounded number at a time, in order.

    A variant without a window is alone.
    """
    for (_, _, ref, status), same in groupby(
        placed, lambda one: (one.chrom, one.start, one.ref, one.status)
    ):
        most = max(1, BASES_TOGETHER // len(ref)) if status == "ok" else 1
        run: list[Placed] = []
        for one in same:
            run.append(one)
            if len(run) == most:
                yield run
                run = []
        if run:
            yield run


def groups(run: Sequence[Placed], strand: str, encode: Callable[[str], Ids]) -> list[Group]:
    """Groups of a run of variants that have a window, on the strand fwd or rc."""
    oriented = reverse_complement if strand == "rc" else str
    reference = encode(oriented(run[0].ref))
    found: list[Group] = []
    last: dict[int, Group] = {}  # by prefix
    places: dict[bytes, tuple[Group, int]] = {}
    for i, one in enumerate(run):
        allele = encode(oriented(one.alt))
        key = allele.tobytes()
        if key not in places:
            differs = reference != allele
            prefix = int(differs.argmax()) if differs.any() else len(reference)
            if prefix not in last or len(last[prefix].alleles) == ALLELES_TOGETHER:
                last[prefix] = Group(reference, prefix, [], [])
                found.append(last[prefix])
            places[key] = (last[prefix], len(last[prefix].alleles))
            last[prefix].alleles.append(allele)
        group, at = places[key]
        group.members.append((i, at))
    return found


def _window(
    variant: Variant, chrom: str, genome: Genome, size: int, offset: int, policy: DnaPolicy
) -> tuple[int, str, str]:
    """(start, reference, allele) of the window, or an InputError that says why there is none."""
    if variant.problem is not None or variant.pos is None:
        raise InputError(variant.problem or "the row has no position")
    ref = _allele("ref", variant.ref, policy)
    alt = _allele("alt", variant.alt, policy)
    at = variant.pos - offset
    length = genome.length(chrom)
    if at < 0 or at + len(ref) > length:
        raise InputError(
            f"position {variant.pos} is outside {chrom}, which has {offset}..{offset + length - 1}"
        )
    found = _reference(genome, chrom, at, at + len(ref), offset, policy)
    if found.upper() != ref.upper():
        raise InputError(
            f"the reference has {_shown(found)} at {chrom}:{variant.pos}, the variant expects "
            f"{_shown(ref)}"
        )
    shorter = max(0, len(ref) - len(alt))
    start, stop = _span(at, len(ref), len(alt), length, size)
    around = _reference(genome, chrom, start, stop + shorter, offset, policy)
    before, after = around[: at - start], around[at - start + len(ref) :]
    return start, around[: stop - start], (before + alt + after)[: stop - start]


def _span(at: int, ref: int, alt: int, length: int, size: int) -> tuple[int, int]:
    """Start and stop of the window for alleles of `ref` and `alt` bases that begin at `at`."""
    longest = max(ref, alt)
    if longest > size - size // 2:
        raise InputError(
            f"an allele of {longest} bases does not fit the right half of a window of {size}: "
            f"it needs a window of at least {2 * longest - 1}"
        )
    usable = length - max(0, ref - alt)  # further right the allele has no bases to compare with
    size = min(size, usable)
    start = max(0, min(at - size // 2, usable - size))
    if at + longest > start + size:
        raise InputError(
            f"too near the end of the record: bases after the variant: {length - at - ref}, change "
            f"of length: {abs(ref - alt)}; no two windows of one length hold both alleles"
        )
    return start, start + size


def _allele(name: str, letters: str, policy: DnaPolicy) -> str:
    if "," in letters:
        raise InputError(
            f"{name} {_shown(letters)} is several alleles, and a row of a table has one: give each "
            "a row, or VCF with its header"
        )
    if letters == "*" or any(mark in letters for mark in ".<>[]"):
        raise NoSequenceError(f"{name} {_shown(letters)} is no sequence of bases")
    if not letters.strip("-"):
        raise InputError(
            f"{name} is empty: insertions and deletions are written with the base before them"
        )
    try:
        return clean(letters, policy).sequence
    except InputError as error:
        raise InputError(f"{name} {_shown(letters)}: {error}") from None


def _reference(
    genome: Genome, chrom: str, start: int, stop: int, offset: int, policy: DnaPolicy
) -> str:
    try:
        return clean(genome.fetch(chrom, start, stop), policy).sequence
    except InputError as error:
        raise InputError(f"the reference from {chrom}:{start + offset} on: {error}") from None


def _shown(letters: str) -> str:
    return letters if len(letters) <= 20 else f"{letters[:17]}... ({len(letters)} bases)"
