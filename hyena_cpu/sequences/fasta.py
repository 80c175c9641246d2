"""FASTA and plain-text sequence files, one record at a time.

FASTA is parsed by dnaio; gzip (several members and bgzip included) is recognised by its first
bytes, never by the file name. Of a file, only the record at hand is in memory, at four bytes a base
(eight for a moment, while its letters are looked at), and eight bytes for every id so far.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ..errors import InputError

log = logging.getLogger(__name__)

GZIP_MAGIC = b"\x1f\x8b"
SHOWN_REPEATS = 10  # repeated ids that get a warning each
RECENT = 1 << 16  # ids in a set before they are packed
BOM = b"\xef\xbb\xbf"  # some editors put it before UTF-8
ESCAPE = "\x1a"  # before the two hexadecimal digits of a byte that dnaio is not shown


@dataclass(frozen=True)
class Record:
    """One entry of a sequence file. `index` counts from 0; `id` is the first word of the header."""

    index: int
    id: str
    sequence: str


class Meter:
    """How much of a file has been read, counted in its own bytes, packed or not."""

    def __init__(self) -> None:
        self._size = self._read = 0

    @property
    def share(self) -> float | None:
        """0..1; None where the end is not known, as of a pipe."""
        return min(self._read / self._size, 1.0) if self._size else None

    def begin(self, stream: BinaryIO) -> None:
        """Takes the size of a file that is open."""
        with suppress(OSError, ValueError):  # a stream without a file
            self._size = os.fstat(stream.fileno()).st_size

    def update(self, stream: BinaryIO) -> None:
        """Takes the place reached."""
        if self._size:
            self._read = stream.tell()


def read_fasta(
    source: Path | BinaryIO, *, strict: bool = False, meter: Meter | None = None
) -> Iterator[Record]:
    """Records of a FASTA file in order, empty ones and repeated ids included.

    Inner white space is not part of a sequence, nor are comments: lines that begin with `;` or
    `#`. Letters are not checked here: see `letters.clean`. Ids and sequences are UTF-8; one that
    is not is read as Latin-1. Other text of a header may be any bytes.

    Args:
        source: a path, or a binary stream (standard input), closed at the end; plain or gzip.
        strict: an empty record or a repeated id is an error; otherwise a repeated id is a warning.
        meter: is told how much of the file has been read.

    Raises:
        InputError: the file cannot be read, is not FASTA, or holds no record.
    """
    import dnaio

    name = str(source) if isinstance(source, Path) else "standard input"
    meter = meter or Meter()
    seen = _Seen()
    index = -1
    with (
        _opened(source, name) as (packed, stream),
        _readable(name),
        # Given a name and an opener, the reader closes what it opened.
        dnaio.FastaReader(name, opener=lambda *_: _Ascii(stream), keep_linebreaks=True) as reader,
    ):
        meter.begin(packed)
        _skip_to_record(stream, name)
        for index, entry in enumerate(reader):
            words = entry.name.split(None, 1)
            id = _unescaped(words[0]) if words else ""
            record = Record(index, id, _unescaped(_joined(entry.sequence)))
            del entry
            meter.update(packed)
            _check_record(record, seen, name, strict)
            yield record
            del record
    if index < 0:
        raise InputError(f"{name}: holds no FASTA record (a record starts with '>')")


def read_bytes(source: Path | BinaryIO) -> bytes:
    """All bytes of a plain or gzip file; InputError if it cannot be read."""
    name = str(source) if isinstance(source, Path) else "standard input"
    with _opened(source, name) as (_, stream), _readable(name):
        return stream.read()


class _Seen:
    """The ids so far, as hashes of 64 bits: 100 million ids are mistaken once in 3,000 files."""

    def __init__(self) -> None:
        self._packed = np.zeros(0, np.int64)  # sorted
        self._recent: set[int] = set()
        self.repeats = 0

    def repeated(self, id: str) -> bool:
        """Whether the id was there before; from now on it is."""
        key = hash(id)
        at = int(np.searchsorted(self._packed, key)) if len(self._packed) else 0
        if key in self._recent or (at < len(self._packed) and self._packed[at] == key):
            self.repeats += 1
            return True
        self._recent.add(key)
        if len(self._recent) >= max(RECENT, len(self._packed) // 16):
            self._packed = np.sort(np.concatenate([self._packed, list(self._recent)]))
            self._recent = set()
        return False


def _joined(lines: str) -> str:
    """The letters of a record's lines: no comments, no white space."""
    if ";" in lines:
        lines = "\n".join(line for line in lines.split("\n") if not line.startswith(";"))
    letters = lines.replace("\n", "")
    return "".join(letters.split()) if any(space in letters for space in " \t\v\f\r") else letters


def _skip_to_record(stream: BinaryIO, name: str) -> None:
    """Passes over what may stand before the first record: a mark, white space, comments."""
    buffered = cast("io.BufferedReader", stream)
    if buffered.peek(1)[:1] == BOM[:1] and (begin := buffered.read(len(BOM))) != BOM:
        raise InputError(f"{name}: is not FASTA: it begins with {begin!r}")
    while first := buffered.peek(1)[:1]:
        if first in b";#":
            buffered.readline()
        elif first.isspace():
            buffered.read(1)
        else:
            return


class _Ascii(io.BufferedIOBase):
    """A stream in ASCII, which is all that dnaio reads: other bytes are escaped, one by one.

    Nothing is looked up or kept, so the escapes are right wherever a piece ends.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = cast("io.BufferedReader", stream)

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        """The next bytes; more than `size` where some had to be escaped."""
        piece = self._stream.read1(size)
        if piece.isascii() and ESCAPE.encode() not in piece:
            return piece
        return re.sub(rb"[\x1a\x80-\xff]", lambda byte: b"\x1a%02x" % ord(byte[0]), piece)

    def close(self) -> None:
        """Closes the stream too."""
        self._stream.close()
        super().close()


def _unescaped(text: str) -> str:
    """What `_Ascii` escaped, as it was: UTF-8, else Latin-1."""
    if ESCAPE not in text:
        return text
    # An escape may be cut short, where dnaio shows the beginning of a line.
    data = re.sub(rb"\x1a([0-9a-f]{2})", lambda hex: bytes([int(hex[1], 16)]), text.encode())
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _check_record(record: Record, seen: _Seen, name: str, strict: bool) -> None:
    problem = None
    if seen.repeated(record.id):
        problem = "repeats the id of an earlier record"
    elif strict and not record.sequence:
        problem = "is empty"
    if problem is None:
        return
    sentence = f"{name}: record {record.index + 1} ({record.id!r}) {problem}"
    if strict:
        raise InputError(sentence)
    if seen.repeats <= SHOWN_REPEATS:
        more = "; further repeats are not listed" if seen.repeats == SHOWN_REPEATS else ""
        log.warning("%s; both are kept%s", sentence, more)


@contextmanager
def _opened(source: Path | BinaryIO, name: str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """(the file as it is, the decompressed stream); closes only what it opened."""
    try:
        raw = source.open("rb") if isinstance(source, Path) else source
    except OSError as error:
        raise InputError(f"{name}: cannot be opened: {error.strerror}") from None
    try:
        buffered = io.BufferedReader(cast("io.RawIOBase", raw)) if not hasattr(raw, "peek") else raw
        packed = buffered.peek(2)[:2] == GZIP_MAGIC
        stream = gzip.GzipFile(fileobj=buffered) if packed else buffered
        yield buffered, cast("BinaryIO", stream)
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
        raise InputError(f"{name}: is not FASTA: {_unescaped(str(error))}") from None
    except (EOFError, zlib.error, OSError) as error:
        raise InputError(f"{name}: cannot be read to its end: {error}") from None
