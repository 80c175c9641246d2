"""What the letters of a DNA sequence become, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

IUPAC = "ACGTURYKMSWBDHVN"  # NC-IUB 1984; U is RNA's T
COMPLEMENT = "TGCAAYRMKSWVHDBN"  # of IUPAC, letter by letter
AMBIGUOUS = IUPAC[5:]
AMINO = "ACDEFGHIKLMNPQRSTVWYBXZJUO*"  # IUPAC-IUB 1983, with the stop
PIECE = 1 << 20  # letters looked at together
PROTEIN_SHARE = 0.25  # of letters beyond A C G T U N, in a sequence that is taken for a protein


@dataclass(frozen=True)
class DnaPolicy:
    """What happens to letters other than upper-case A, C, G, T.

    case        upper: fold to upper case; keep: leave as they are
    ambiguous   n: the ten codes R Y K M S W B D H V become N; keep; error: refuse them and N
    rna         convert: U becomes T; keep; error: refuse U
    """

    case: Literal["upper", "keep"] = "upper"
    ambiguous: Literal["n", "keep", "error"] = "n"
    rna: Literal["convert", "error", "keep"] = "convert"


@dataclass(frozen=True)
class Dna:
    """A checked sequence, with how many letters were folded and how many are ambiguous (N too)."""

    sequence: str
    n_case_folded: int
    n_ambiguous: int


def clean(sequence: str, policy: DnaPolicy) -> Dna:
    """Applies a policy to one sequence.

    Raises:
        InputError: a letter that is no nucleotide code (gap, stop, digit, amino acid), or one that
            the policy refuses, with its position (the first letter is 1). A sequence that looks
            like protein is called that.
    """
    data = sequence.encode("latin-1", "replace")
    counts = np.zeros(256, np.int64)
    for piece in _pieces(data):
        counts += np.bincount(piece, minlength=256)
    _refuse(data, counts, ~_IS_CODE, "is no nucleotide code")
    if policy.ambiguous == "error":
        _refuse(data, counts, _IS_AMBIGUOUS, "is an ambiguity code")
    if policy.rna == "error":
        _refuse(data, counts, _IS_RNA, "is an RNA letter")
    folded = 0
    if policy.case == "upper":
        folded = int(counts[ord("a") : ord("z") + 1].sum())
        data = data.upper()
    if policy.rna == "convert":
        data = data.translate(_RNA_TO_DNA)
    if policy.ambiguous == "n":
        data = data.translate(_AMBIGUOUS_TO_N)
    return Dna(data.decode("ascii"), folded, int(counts[_IS_AMBIGUOUS].sum()))


def reverse_complement(sequence: str) -> str:
    """The other strand, read in its own direction; IUPAC codes and letter case are kept."""
    return sequence.translate(_COMPLEMENT)[::-1]


_COMPLEMENT = str.maketrans(IUPAC + IUPAC.lower(), COMPLEMENT + COMPLEMENT.lower())


def _both_cases(letters: str) -> bytes:
    return (letters + letters.lower()).encode()


def _table(letters: bytes) -> NDArray[np.bool_]:
    """For every byte, whether it is one of these."""
    table = np.zeros(256, bool)
    table[list(letters)] = True
    return table


_IS_CODE = _table(_both_cases(IUPAC))
_IS_AMBIGUOUS = _table(_both_cases(AMBIGUOUS))
_IS_RNA = _table(b"Uu")
_IS_BASE = _table(_both_cases("ACGTUN"))
_IS_AMINO = _table(_both_cases(AMINO))
_RNA_TO_DNA = bytes.maketrans(b"Uu", b"Tt")
_AMBIGUOUS_TO_N = bytes.maketrans(_both_cases(AMBIGUOUS), b"N" * 11 + b"n" * 11)


def _pieces(data: bytes) -> Iterator[NDArray[np.uint8]]:
    """The letters in pieces: numpy takes eight bytes a letter to count or look them up."""
    letters = np.frombuffer(data, np.uint8)
    for begin in range(0, len(letters), PIECE):
        yield letters[begin : begin + PIECE]


def _refuse(data: bytes, counts: NDArray[np.int64], refused: NDArray[np.bool_], why: str) -> None:
    """InputError for the first byte of `data` that is refused."""
    if not counts[refused].any():
        return
    before = 0
    for piece in _pieces(data):
        hits = refused[piece]
        if hits.any():
            before += int(hits.argmax())
            break
        before += len(piece)
    kind = ": the sequence looks like protein" if _protein(counts) else ""
    raise InputError(f"{chr(data[before])!r} at position {before + 1} {why}{kind}")


def _protein(counts: NDArray[np.int64]) -> bool:
    """Whether all letters are amino acids, some of them nothing else, and many no bases."""
    total = int(counts.sum())
    return (
        int(counts[_IS_AMINO].sum()) == total
        and bool(counts[_IS_AMINO & ~_IS_CODE].any())
        and total - int(counts[_IS_BASE].sum()) > PROTEIN_SHARE * total
    )
