"""FASTA and plain-text sequence files: records one at a time, and what DNA letters become.

FASTA is parsed by dnaio; gzip (several members and bgzip included) is recognised by its first
bytes, never by the file name.
"""

from __future__ import annotations

import gzip
import io
import logging
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

import numpy as np

from .errors import InputError

log = logging.getLogger(__name__)

GZIP_MAGIC = b"\x1f\x8b"
IUPAC = "ACGTURYKMSWBDHVN"  # NC-IUB 1984; U is RNA's T
COMPLEMENT = "TGCAAYRMKSWVHDBN"  # of IUPAC, letter by letter
AMBIGUOUS = IUPAC[5:]

_SPACE = b" \t\r\n\v\f"


@dataclass(frozen=True)
class Record:
    """One entry of a sequence file. `index` counts from 0; `id` is the first word of the header."""

    index: int
    id: str
    sequence: str


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


def read_fasta(source: Path | BinaryIO, *, strict: bool = False) -> Iterator[Record]:
    """Records of a FASTA file in order, empty ones and repeated ids included.

    Inner white space is not part of a sequence. Letters are not checked here: see `clean`.

    Args:
        source: a path, or a binary stream (standard input), closed at the end; plain or gzip.
        strict: an empty record or a repeated id is an error; otherwise a repeated id is a warning.

    Raises:
        InputError: the file cannot be read, is not FASTA, or holds no record.
    """
    import dnaio

    name = str(source) if isinstance(source, Path) else "standard input"
    seen: set[str] = set()
    index = -1
    with (
        _opened(source, name) as stream,
        _readable(name),
        # Given a name and an opener, the reader closes what it opened.
        dnaio.FastaReader(name, opener=lambda *_: stream) as reader,
    ):
        for index, entry in enumerate(reader):
            words = entry.name.split(None, 1)
            record = Record(index, words[0] if words else "", "".join(entry.sequence.split()))
            _check_record(record, seen, name, strict)
            yield record
    if index < 0:
        raise InputError(f"{name}: holds no FASTA record (a record starts with '>')")


def read_bytes(source: Path | BinaryIO) -> bytes:
    """All bytes of a plain or gzip file; InputError if it cannot be read."""
    name = str(source) if isinstance(source, Path) else "standard input"
    with _opened(source, name) as stream, _readable(name):
        return stream.read()


def clean(sequence: str, policy: DnaPolicy) -> Dna:
    """Applies a policy to one sequence.

    Raises:
        InputError: a letter that is no nucleotide code (gap, stop, digit, amino acid), or one that
            the policy refuses, with its position (the first letter is 1).
    """
    data = sequence.encode("latin-1", "replace")
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    _refuse(data, counts, _both_cases(IUPAC), "is no nucleotide code", inverted=True)
    if policy.ambiguous == "error":
        _refuse(data, counts, _both_cases(AMBIGUOUS), "is an ambiguity code")
    if policy.rna == "error":
        _refuse(data, counts, b"Uu", "is an RNA letter")
    folded = 0
    if policy.case == "upper":
        folded = int(counts[ord("a") : ord("z") + 1].sum())
        data = data.upper()
    if policy.rna == "convert":
        data = data.translate(bytes.maketrans(b"Uu", b"Tt"))
    if policy.ambiguous == "n":
        n = len(AMBIGUOUS)
        data = data.translate(bytes.maketrans(_both_cases(AMBIGUOUS), b"N" * n + b"n" * n))
    return Dna(data.decode("ascii"), folded, int(counts[list(_both_cases(AMBIGUOUS))].sum()))


def reverse_complement(sequence: str) -> str:
    """The other strand, read in its own direction; IUPAC codes and letter case are kept."""
    return sequence.translate(_COMPLEMENT)[::-1]


_COMPLEMENT = str.maketrans(IUPAC + IUPAC.lower(), COMPLEMENT + COMPLEMENT.lower())


def _both_cases(letters: str) -> bytes:
    return (letters + letters.lower()).encode()


def _refuse(
    data: bytes, counts: np.ndarray, letters: bytes, why: str, *, inverted: bool = False
) -> None:
    """InputError for the first byte of `data` that is (inverted: is not) one of `letters`."""
    refused = np.zeros(256, bool)
    refused[list(letters)] = True
    refused ^= inverted
    if not counts[refused].any():
        return
    at = int(refused[np.frombuffer(data, np.uint8)].argmax())
    raise InputError(f"{chr(data[at])!r} at position {at + 1} {why}")


def _check_record(record: Record, seen: set[str], name: str, strict: bool) -> None:
    problem = None
    if record.id in seen:
        problem = "repeats the id of an earlier record"
    elif strict and not record.sequence:
        problem = "is empty"
    seen.add(record.id)
    if problem is None:
        return
    sentence = f"{name}: record {record.index + 1} ({record.id!r}) {problem}"
    if strict:
        raise InputError(sentence)
    log.warning("%s; both are kept", sentence)


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[BinaryIO]:
    """The decompressed stream; closes only what it opened."""
    try:
        raw = source.open("rb") if isinstance(source, Path) else source
    except OSError as error:
        raise InputError(f"{name}: cannot be opened: {error.strerror}") from None
    try:
        buffered = io.BufferedReader(cast("io.RawIOBase", raw)) if not hasattr(raw, "peek") else raw
        packed = buffered.peek(2)[:2] == GZIP_MAGIC
        yield cast("BinaryIO", gzip.GzipFile(fileobj=buffered) if packed else buffered)
    finally:
        if isinstance(source, Path):
            raw.close()


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turns what a damaged file raises into InputError."""
    import dnaio

    try:
        yield
    except dnaio.FileFormatError as error:
        raise InputError(f"{name}: is not FASTA: {error}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}: a header or sequence is not UTF-8 text: {error.reason}"
        ) from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError(f"{name}: cannot be read to its end: {error}") from None
