"""Files of variants: tables with named columns, tab- or comma-separated, and VCF through pysam.

Both are recognised by their first bytes, plain or gzip, never by the file name.
"""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .errors import InputError
from .sequences import GZIP_MAGIC

COLUMNS = ("chrom", "pos", "ref", "alt", "id")
REQUIRED = ("pos", "ref", "alt")
BGZIP_FIELD = b"BC"  # of every block's header, at byte 12
VCF_MAGIC = (b"##fileformat=VCF", b"BCF\2")
LONGEST_POSITION = 12  # digits; more is no position of any genome


@dataclass(frozen=True)
class Variant:
    """One alternative allele.

    index    of the row, from 0; a VCF record with several alleles makes several rows
    id       None where the file has none
    chrom    id of a reference record; None where a table has no such column
    pos      of the first base of `ref`, counted as the file counts; None if it is no number
    ref, alt as in the file
    problem  what is wrong with the row itself, else None
    """

    index: int
    id: str | None
    chrom: str | None
    pos: int | None
    ref: str
    alt: str
    problem: str | None = None


def read_variants(
    path: Path, columns: Mapping[str, str] | None = None, *, name: str = ""
) -> Iterator[Variant]:
    """Variants of a file in order, every row of it.

    Args:
        path: a table or a VCF (BCF) file.
        columns: names of a table's columns where they differ: chrom, pos, ref, alt or id -> name.
        name: what errors call the file, which may be a copy (default: its path).

    Raises:
        InputError: the file cannot be read, is neither, or lacks a column; `columns` and a VCF;
            a VCF, and pysam is not installed.
    """
    name = name or str(path)
    if is_vcf(path, name=name):
        if columns:
            raise InputError(f"columns cannot be chosen: {name} is VCF, whose columns are fixed")
        return _read_vcf(path, name)
    return _read_table(path, name, columns or {})


def is_vcf(path: Path, *, name: str = "") -> bool:
    """Whether a file begins as VCF or BCF does; InputError, of `name`, if it cannot be read."""
    with _opened(path, name or str(path)) as stream:
        return stream.read(max(map(len, VCF_MAGIC))).startswith(VCF_MAGIC)


def _read_table(path: Path, name: str, columns: Mapping[str, str]) -> Iterator[Variant]:
    with _opened(path, name) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        header = next((line for line in text if line.strip() and not line.startswith("##")), "")
        separator = "\t" if "\t" in header else ","
        fields = next(_rows([header.removeprefix("#")], separator), [])
        places = _places(name, [field.strip() for field in fields], columns)
        index = 0
        for cells in _rows(text, separator):
            if any(cell.strip() for cell in cells):
                yield _variant(index, cells, places)
                index += 1


def _rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Cells of each row. A quote protects commas and line ends; with tabs it is a character."""
    if separator == ",":
        yield from csv.reader(lines, strict=True)  # else the end of the file would close a quote
        return
    for cells in csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE):
        yield [_unquoted(cell) for cell in cells]


def _unquoted(cell: str) -> str:
    """Without a pair of quotes around the whole cell: R writes those with tabs as well."""
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _places(where: str, fields: list[str], columns: Mapping[str, str]) -> dict[str, int]:
    """Where each column is. Names that were not chosen are found in either letter case."""
    unknown = sorted(set(columns) - set(COLUMNS))
    if unknown:
        raise InputError(f"columns has no {unknown[0]!r}: choose among {', '.join(COLUMNS)}")
    lower = [field.lower() for field in fields]
    places = {}
    for column in COLUMNS:
        name = columns.get(column, column)
        among = fields if column in columns else lower
        if among.count(name) > 1:
            raise InputError(f"{where}: the header has several columns {name!r}")
        if name in among:
            places[column] = among.index(name)
        elif column in REQUIRED or column in columns:
            raise InputError(
                f"{where}: the header has no column {name!r} (it has: {_listed(fields)}); "
                f"{', '.join(REQUIRED)} are required, columns of other names can be chosen"
            )
    return places


def _listed(fields: list[str]) -> str:
    text = ", ".join(fields)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _variant(index: int, cells: list[str], places: dict[str, int]) -> Variant:
    found = {name: cells[i].strip() for name, i in places.items() if i < len(cells)}
    pos, problem = None, None
    digits = found.get("pos", "")
    if len(found) < len(places):
        problem = f"the row has {len(cells)} cells, too few for the header"
    elif not (digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_POSITION):
        problem = f"the position {digits!r} is no whole number"
    else:
        pos = int(digits)
    return Variant(
        index,
        None if found.get("id", ".") in ("", ".") else found["id"],
        found.get("chrom"),
        pos,
        found.get("ref", ""),
        found.get("alt", ""),
        problem,
    )


def _read_vcf(path: Path, name: str) -> Iterator[Variant]:
    try:
        import pysam
    except ImportError:
        raise InputError(
            f"{name} is VCF, which pysam reads: pip install 'hyena-cpu[dna]', or give a table"
        ) from None
    talk = pysam.set_verbosity(0)  # a header without contigs is no reason to talk
    index, seekable = 0, str(path)
    try:
        with (
            _seekable(path, name) as seekable,
            pysam.VariantFile(seekable, drop_samples=True) as records,
        ):
            for record in records:
                for alt in record.alts or (".",):
                    yield Variant(index, record.id, record.chrom, record.pos, record.ref or "", alt)
                    index += 1
    except (OSError, ValueError) as error:
        after = f"after {index} alleles" if index else "at its beginning"
        reason = str(error).replace(seekable, name)
        raise InputError(f"{name}: cannot be read as VCF {after}: {reason}") from None
    finally:
        pysam.set_verbosity(talk)


@contextmanager
def _seekable(path: Path, name: str) -> Iterator[str]:
    """The name of a file that pysam reads: this one, or a decompressed copy of an ordinary gzip."""
    with path.open("rb") as raw:
        head = raw.read(14)
    if head[:2] != GZIP_MAGIC or head[12:] == BGZIP_FIELD:
        yield str(path)
        return
    with _opened(path, name) as packed, tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(packed, copy)
        copy.flush()
        yield copy.name


@contextmanager
def _opened(path: Path, name: str) -> Iterator[IO[bytes]]:
    """The decompressed bytes; what a damaged file raises becomes InputError, of `name`."""
    try:
        with path.open("rb") as raw:
            packed: Any = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == GZIP_MAGIC else raw
            yield packed
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: is not UTF-8 text: {error.reason}") from None
    except csv.Error as error:
        raise InputError(f"{name}: is no table: {error}") from None
    except (EOFError, zlib.error, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name}: cannot be read: {reason}") from None
