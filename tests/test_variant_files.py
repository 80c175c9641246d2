"""Tables and VCF files of variants."""

from __future__ import annotations

import builtins
import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from conftest import shared_path

from hyena_cpu.errors import InputError
from hyena_cpu.variant_files import Variant, is_vcf, read_variants

VCF = """##fileformat=VCFv4.2
#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tone
chr1\t5\t.\tA\tC,<DEL>,*\t.\tPASS\tX=3\tGT\t0/1
chr1\t6\trs1\tn\t.\t.\t.\t.\tGT\t./.
chr2\t7\trs2\tA\tG]chr1:7]\t.\t.\t.\tGT\t0|1
chr2\t9\t.\tATG\tA\t.\t.\t.\tGT\t1
"""
ALLELES = [
    Variant(0, None, "chr1", 5, "A", "C"),
    Variant(1, None, "chr1", 5, "A", "<DEL>"),
    Variant(2, None, "chr1", 5, "A", "*"),
    Variant(3, "rs1", "chr1", 6, "n", "."),
    Variant(4, "rs2", "chr2", 7, "A", "G]chr1:7]"),
    Variant(5, None, "chr2", 9, "ATG", "A"),
]


def bgzip(data: bytes, block: int = 100) -> bytes:
    """Blocked gzip, each block with its size, and the empty block that ends a file."""
    out = b""
    for i in [*range(0, len(data), block), len(data)]:
        piece = data[i : i + block]
        deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = deflate.compress(piece) + deflate.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0"
        out += head + struct.pack("<H", len(packed) + 25) + packed
        out += struct.pack("<II", zlib.crc32(piece), len(piece))
    return out


@pytest.fixture
def file(tmp_path: Path) -> Any:
    def write(content: str | bytes, name: str = "variants") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


TABLE = "chrom\tpos\tref\talt\tid\nchr1\t5\tA\tC\trs1\nchr2\t07\tacg\tT\t.\n"
ROWS = [Variant(0, "rs1", "chr1", 5, "A", "C"), Variant(1, None, "chr2", 7, "acg", "T")]


@pytest.mark.parametrize(
    "content",
    [
        TABLE,
        TABLE.replace("\t", ","),
        TABLE.replace("\n", "\r\n"),
        "\ufeff" + TABLE,
        "\n## made by hand\n#" + TABLE,
        TABLE.replace("chrom\tpos\tref\talt", "CHROM\tPos\tREF\tAlt"),
        TABLE.replace("\n", "\n\n") + "\t\t\t\t\n",
        TABLE.replace("\tid\n", "\tid\tnote\n")
        .replace("rs1\n", 'rs1\t"a b"\n')
        .replace(".\n", ".\t\n"),
        TABLE.removesuffix("\n"),
    ],
    ids=["plain", "comma", "crlf", "bom", "comments", "case", "blank", "more", "open"],
)
@pytest.mark.parametrize("packed", [False, True])
def test_tables(file: Any, content: str, packed: bool) -> None:
    data = content.encode()
    path = file(gzip.compress(data[:20]) + gzip.compress(data[20:]) if packed else data)
    assert list(read_variants(path)) == ROWS
    assert not is_vcf(path)


def test_columns_of_other_names(file: Any) -> None:
    path = file("pos_hg19,pos_hg38,ref,alt,pos\n1,2,A,C,3\n")
    wanted = Variant(0, None, None, 2, "A", "C")
    assert list(read_variants(path, {"pos": "pos_hg38", "ref": "ref"})) == [wanted]
    assert next(iter(read_variants(path))).pos == 3


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("chrom,pos,ref\n", {}, r"no column 'alt' \(it has: chrom, pos, ref\); pos, ref, alt are"),
        ("chr1\t5\tA\tC\n", {}, r"no column 'pos' \(it has: chr1, 5, A, C\)"),
        ("", {}, r"no column 'pos' \(it has: \)"),
        ("pos,ref,alt,POS\n", {}, "several columns 'pos'"),
        ("pos,ref,alt\n", {"pos": "start"}, "no column 'start'"),
        ("pos,ref,alt\n", {"id": "name"}, "no column 'name'"),
        ("pos,ref,alt\n", {"end": "pos"}, "columns has no 'end': choose among chrom, pos"),
        (b"pos,ref,alt\n1,\xff,C\n", {}, "is not UTF-8 text"),
        ("pos,ref,alt\n1,A," + 200_000 * "C", {}, "is no table: field larger"),
        ('pos,ref,alt,id\n1,A,C,"x\n2,A,C,y\n', {}, "is no table: unexpected end of data"),
        ('pos,ref,alt,id\n1,A,C,"x\n2,A,C,"y"\n', {}, "is no table: ',' expected after"),
        (gzip.compress(b"pos,ref,alt\n")[:-9], {}, "cannot be read"),
    ],
)
def test_files_that_are_no_tables(file: Any, content: Any, columns: Any, message: str) -> None:
    path = file(content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_variants(path, columns))
    assert str(path) in str(caught.value) or "choose among" in message


def test_rows_that_say_nothing_are_rows(file: Any) -> None:
    path = file("chrom\tpos\tref\talt\nchr1\tx\tA\tC\nchr1\t5\nchr1\t-5\tA\tC\nchr1\t6\tA\tC\n")
    found = list(read_variants(path))
    assert [v.index for v in found] == [0, 1, 2, 3]
    assert [v.pos for v in found] == [None, None, None, 6]
    assert found[0].problem == "the position 'x' is no whole number"
    assert found[1].problem == "the row has 2 cells, too few for the header"
    assert found[2].problem == "the position '-5' is no whole number"
    assert found[3].problem is None


def test_a_quote_between_tabs_swallows_nothing(file: Any) -> None:
    header = 'pos\tref\talt\tid\t"more\n'
    ids = ['"5-prime', '"', '3"', '""', '"whole"', '"a""b"', "last"]
    path = file(header + "".join(f"{i}\tA\tC\t{id}\tx\n" for i, id in enumerate(ids)))
    found = list(read_variants(path))
    assert [v.pos for v in found] == list(range(len(ids)))
    assert [v.id for v in found] == ['"5-prime', '"', '3"', None, "whole", 'a""b', "last"]


def test_tables_of_r_quote_every_text(file: Any) -> None:
    path = file('"pos"\t"ref"\t"alt"\n7\t"A"\t"C"\n')
    assert list(read_variants(path)) == [Variant(0, None, None, 7, "A", "C")]


def test_a_quote_protects_commas_and_line_ends(file: Any) -> None:
    path = file('"pos",ref,alt,id\n1,A,C,"x, ""y""\nz"\n2,A,C,5" end\n')
    assert [v.id for v in read_variants(path)] == ['x, "y"\nz', '5" end']


@pytest.mark.parametrize("path", ["absent", "."])
def test_files_that_cannot_be_read(tmp_path: Path, path: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_variants(tmp_path / path)


def test_vcf_plain_and_compressed(file: Any) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    data = VCF.encode()
    for content in (data, gzip.compress(data), bgzip(data), data.replace(b"\n", b"\r\n")):
        path = file(content)
        assert is_vcf(path)
        assert list(read_variants(path)) == ALLELES


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (VCF + "chr1\tx\t.\tA\tC\t.\t.\t.\tGT\t.\n", "after 6 alleles"),
        (VCF + "junk\n", "after 6 alleles"),
        ("##fileformat=VCFv4.2\nchr1\t5\t.\tA\tC\n", "at its beginning"),
    ],
)
def test_damaged_vcf(file: Any, capfd: Any, content: str, message: str) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    with pytest.raises(InputError, match=f"cannot be read as VCF {message}"):
        list(read_variants(file(content)))
    assert capfd.readouterr() == ("", "")


def test_vcf_cut_short(file: Any, capfd: Any) -> None:
    pytest.importorskip("pysam", reason="pysam is not installed")
    whole = bgzip((VCF + 50 * "chr2\t9\t.\tATG\tA\t.\t.\t.\tGT\t1\n").encode())
    for end in (-40, -28):  # within a block; only the block that ends a file is missing
        with pytest.raises(InputError, match="cannot be read"):
            list(read_variants(file(whole[:end])))
    assert capfd.readouterr() == ("", "")


def test_vcf_without_its_reader(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name == "pysam":
            raise ImportError
        return imported(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"pysam reads: pip install 'hyena-cpu\[dna\]'"):
        list(read_variants(file(VCF)))


def test_columns_of_vcf_are_fixed(file: Any) -> None:
    with pytest.raises(InputError, match="is VCF, whose columns are fixed"):
        read_variants(file(VCF), {"pos": "x"})


def test_brca1_table() -> None:
    path = shared_path("data", "dna_brca1_region", "brca1_sge_3893.csv")
    found = list(read_variants(path, {"pos": "pos_hg38"}))
    assert len(found) == 3893
    assert found[0] == Variant(0, None, None, 43124118, "T", "G")
    assert len({v.pos for v in found}) == 1326
