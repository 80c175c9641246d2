"""Sequence files of all kinds: C025, C090-C102."""

from __future__ import annotations

import gzip
import io
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu.errors import InputError
from hyena_cpu.sequences import (
    DnaPolicy,
    clean,
    fasta,
    letters,
    read_bytes,
    read_fasta,
    reverse_complement,
)

CASES = Path(__file__).parent / "cases"


def entries(name: str) -> list[tuple[str, str]]:
    return [(record.id, record.sequence) for record in read_fasta(CASES / name)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("C025/variable_lengths.fa", [("a", "ACGTACGT"), ("b", "AC"), ("c", "ACGT" * 4)]),
        ("C092/empty_last.fa", [("seq0", "AAAA"), ("seq1", "")]),
        ("C092/empty_mid.fa", [("seq0", "AAAA"), ("seq1", ""), ("seq2", "CCCC")]),
        ("C095/crlf.fa", [("s1", "ACGTACGT"), ("s2", "GGGG")]),
        ("C096/blank_lines.fa", [("seq1", "ATGCAT"), ("seq2", "GTCA")]),
        ("C097/two_members.fa.gz", [("s1", "ACGT"), ("s2", "GGGG")]),
        ("C097/bgzf_eof_in_middle.fa.gz", [("s1", "ACGT"), ("s2", "GGGG")]),
        ("C097/gz_without_suffix.fa", [("s1", "ACGT")]),
        ("C102/dup_ids.fa", [("s1", "AAAA"), ("s1", "CCCC"), ("s2", "GGGG")]),
    ],
)
def test_every_record_in_order(name: str, expected: list[tuple[str, str]]) -> None:
    assert entries(name) == expected
    assert [r.index for r in read_fasta(CASES / name)] == list(range(len(expected)))


@pytest.mark.parametrize(
    ("name", "length"), [("C101/ragged_lines.fa", 27), ("C101/one_long_line.fa", 40_000)]
)
def test_line_lengths_do_not_matter(name: str, length: int) -> None:
    assert [len(sequence) for _, sequence in entries(name)] == [length]


def test_streams_are_read_like_files() -> None:
    for name in ("C097/two_members.fa.gz", "C102/dup_ids.fa"):
        stream = io.BytesIO((CASES / name).read_bytes())
        assert [(r.id, r.sequence) for r in read_fasta(stream)] == entries(name)


def test_records_come_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "many.fa"
    path.write_text(">a\nAC\n>b\nGT\nnot read yet\n")
    records = read_fasta(path)
    assert next(records).sequence == "AC"
    records.close()  # type: ignore[attr-defined]


def test_case_is_folded_and_counted() -> None:
    first, second = [clean(s, DnaPolicy()) for _, s in entries("C090/lower.fa")]
    assert (first.sequence, first.n_case_folded) == ("ACGTACGTAC", 10)
    assert (second.sequence, second.n_case_folded) == ("ACGTACGTNNNNACGT", 6)
    assert second.n_ambiguous == 4
    kept = clean("acgtN", DnaPolicy(case="keep"))
    assert (kept.sequence, kept.n_case_folded) == ("acgtN", 0)


def test_ambiguity_codes() -> None:
    first, second, _ = [sequence for _, sequence in entries("C099/iupac.fa")]
    assert clean(first, DnaPolicy()).sequence == "ACGT" + 11 * "N"
    assert clean(first, DnaPolicy(ambiguous="keep")).sequence == first
    assert clean(first, DnaPolicy(ambiguous="keep")).n_ambiguous == 11
    assert clean(second, DnaPolicy(case="keep")).sequence == "acgtnnn"
    with pytest.raises(InputError, match="'R' at position 5"):
        clean(first, DnaPolicy(ambiguous="error"))
    with pytest.raises(InputError, match="'N' at position 2"):
        clean("ANA", DnaPolicy(ambiguous="error"))


def test_rna() -> None:
    assert clean("ACGUu", DnaPolicy()).sequence == "ACGTT"
    assert clean("ACGUu", DnaPolicy()).n_ambiguous == 0
    assert clean("ACGU", DnaPolicy(rna="keep")).sequence == "ACGU"
    with pytest.raises(InputError, match="'U' at position 4"):
        clean("ACGU", DnaPolicy(rna="error"))


@pytest.mark.parametrize(
    ("name", "which", "message"),
    [
        ("C096/inner_space.fa", 0, "'1' at position 11"),
        ("C099/iupac.fa", 2, "'-' at position 5"),
        ("C099/protein.faa", 0, "'I' at position 6"),
    ],
)
@pytest.mark.parametrize("ambiguous", ["n", "keep", "error"])
def test_letters_that_are_no_nucleotides(
    name: str, which: int, message: str, ambiguous: Any
) -> None:
    sequence = entries(name)[which][1]
    if ambiguous == "error" and name.endswith(".faa"):
        message = "'M' at position 1"
        sequence = sequence.replace("I", "A").replace("Q", "A")
    with pytest.raises(InputError, match=message):
        clean(sequence, DnaPolicy(ambiguous=ambiguous))


@given(st.text("ACGTURYKMSWBDHVN", max_size=30))
def test_counts_and_length_are_kept(sequence: str) -> None:
    dna = clean(sequence.lower(), DnaPolicy())
    assert len(dna.sequence) == len(sequence) == dna.n_case_folded
    assert dna.n_ambiguous == sum(c not in "ACGTU" for c in sequence) == dna.sequence.count("N")
    assert set(dna.sequence) <= set("ACGTN")


def test_reverse_complement() -> None:
    assert reverse_complement("AACGTN") == "NACGTT"
    assert reverse_complement("acgRYkm") == "kmRYcgt"
    assert reverse_complement("BDHVSW") == "WSBDHV"


@given(st.text("ACGTNRYKMSWBDHV", max_size=30))
def test_the_other_strands_other_strand(sequence: str) -> None:
    assert reverse_complement(reverse_complement(sequence)) == sequence


def test_repeated_ids_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("hyena_cpu")
    logger.propagate = True
    with caplog.at_level(logging.WARNING):
        assert len(entries("C102/dup_ids.fa")) == 3
    assert "record 2 ('s1') repeats the id" in caplog.text


def test_repeats_are_found_among_many_ids(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids are packed away in between; every repeat counts, the first ten are listed."""
    monkeypatch.setattr(fasta, "RECENT", 7)
    logging.getLogger("hyena_cpu").propagate = True
    text = "".join(f">r{i}\nA\n" for i in [*range(400), 3, 399, *range(100, 120)])
    with caplog.at_level(logging.WARNING):
        assert len(list(read_fasta(io.BytesIO(text.encode())))) == 422
    assert len(caplog.messages) == 10
    assert "record 401 ('r3') repeats" in caplog.messages[0]
    assert "record 402 ('r399') repeats" in caplog.messages[1]
    assert caplog.messages[9].endswith("further repeats are not listed")
    for strict in (list(range(100)) * 2, [*range(50), 49]):
        text = "".join(f">r{i}\nA\n" for i in strict)
        with pytest.raises(InputError, match="repeats the id"):
            list(read_fasta(io.BytesIO(text.encode()), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (";made by x\n;\n>a\nAC\nGT\n", [("a", "ACGT")]),
        (">a\nAC\n;not this\nGT\n; nor this\n>b\nTT\n", [("a", "ACGT"), ("b", "TT")]),
        ("#comment\n>a\nAC\n#x\nGT\n", [("a", "ACGT")]),
        (">a ;no comment\nAC\n", [("a", "AC")]),
        (">a\n;\n", [("a", "")]),
        ("#x\n;y\n>a\nAC\n", [("a", "AC")]),
        ("\n \r\n;y\n\n#x\n;z\n >a\nAC\n", [("a", "AC")]),
        ("\ufeff;x\n>a\nAC\n", [("a", "AC")]),
        ("\ufeff>a\nAC\n", [("a", "AC")]),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_comments_are_no_part_of_a_sequence(text: str, expected: Any, pack: Any) -> None:
    stream = io.BytesIO(pack(text.encode()))
    assert [(r.id, r.sequence) for r in read_fasta(stream)] == expected


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (">a 5\u2032 end\nAC\n>b\nGT\n".encode(), [("a", "AC"), ("b", "GT")]),
        (b">a M\xfcller\nAC\n>b\nGT\n", [("a", "AC"), ("b", "GT")]),
        (">модель é\nAC\n>é\nGT\n".encode(), [("модель", "AC"), ("é", "GT")]),
        (b">\xe9\nAC\n>\xe8\nGT\n", [("é", "AC"), ("è", "GT")]),
        (">a\nA\u2032C\n>b\nGT\n".encode(), [("a", "A\u2032C"), ("b", "GT")]),
        (b">a\nA\xc9\nC\n>b\nGT\n", [("a", "AÉC"), ("b", "GT")]),
        (b">\x1ae9\nAC\n>\x1a\xc3\xa9\n\x1aGT\n", [("\x1ae9", "AC"), ("\x1aé", "\x1aGT")]),
        (">a\xa0b c\nAC\n".encode(), [("a\xa0b", "AC")]),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bytes_that_are_not_ascii_end_nothing(data: bytes, expected: Any, pack: Any) -> None:
    stream = io.BytesIO(pack(data))
    assert [(r.id, r.sequence) for r in read_fasta(stream)] == expected
    assert stream.closed


@given(st.lists(st.text("é\u2032\x1aAC9", min_size=1), min_size=1), st.integers(1, 5))
def test_ids_survive_pieces_of_any_size(ids: list[str], size: int) -> None:
    class Dribble(io.BytesIO):
        def read1(self, _: int | None = -1) -> bytes:
            return super().read1(size)

        def peek(self, _: int = 0) -> bytes:
            return self.getvalue()[self.tell() :]

    text = "".join(f">{id} x\nAC\nGT\n" for id in ids)
    records = read_fasta(Dribble(text.encode()))
    assert [(r.id, r.sequence) for r in records] == [(id, "ACGT") for id in ids]


def test_a_letter_that_is_not_ascii_is_named_with_its_position() -> None:
    (record,) = read_fasta(io.BytesIO("\n>a\nACG\nTÉ\n".encode()))
    with pytest.raises(InputError, match="'É' at position 5 is no nucleotide code"):
        clean(record.sequence, DnaPolicy())


def test_a_semicolon_within_a_line_is_no_comment() -> None:
    (record,) = read_fasta(io.BytesIO(b">a\nAC;GT\n"))
    with pytest.raises(InputError, match="';' at position 3"):
        clean(record.sequence, DnaPolicy())


@pytest.mark.parametrize(
    ("sequence", "protein"),
    [
        ("MKTAYIAKQRQISFVKSHFSRQ", True),
        ("mktayiakqr*", True),
        ("ACGTACGTIACGT", False),  # a slip of the finger
        ("MKTAY-IAKQR", False),
        ("ACGT1ACGT", False),
    ],
)
def test_protein_is_called_protein(sequence: str, protein: bool) -> None:
    with pytest.raises(InputError) as caught:
        clean(sequence, DnaPolicy())
    assert str(caught.value).endswith("looks like protein") == protein


def test_a_stray_letter_is_found_far_into_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters, "PIECE", 10)
    for at in (0, 9, 10, 37, 54):
        sequence = "A" * at + "?" + "C" * (54 - at)
        with pytest.raises(InputError, match=rf"'\?' at position {at + 1} is no"):
            clean(sequence, DnaPolicy())
    assert clean("acgtN" * 11, DnaPolicy()).n_case_folded == 44


@pytest.mark.parametrize(
    ("name", "message"),
    [("C102/dup_ids.fa", r"record 2 \('s1'\)"), ("C092/empty_mid.fa", r"record 2 \('seq1'\)")],
)
def test_strict_refuses_both(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_fasta(CASES / name, strict=True))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no FASTA record"),
        (b"\n\n", "no FASTA record"),
        (b"ACGT\n", "is not FASTA"),
        (b"@r1\nACGT\n+\nIIII\n", "is not FASTA"),
        (b"\xff\xfe>\0s\0", "is not FASTA: .*got 'ÿþ>"),
        *((n * b"x" + 200 * b"\xff", "is not FASTA: .*got 'x") for n in (1, 2, 3)),
        (b"\xef\xbb>s\nACGT\n", "is not FASTA: it begins with b'"),
        (gzip.compress(b">s\nACGT\n")[:-9], "cannot be read to its end"),
        (gzip.compress(b">s\nACGT\n")[:-8] + bytes(8), "cannot be read to its end"),
    ],
)
def test_files_that_are_no_fasta(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.fa"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as caught:
        list(read_fasta(path))
    assert str(path) in str(caught.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.fa", tmp_path):
        with pytest.raises(InputError, match="cannot be"):
            list(read_fasta(path))
        with pytest.raises(InputError, match="cannot be"):
            read_bytes(path)


def test_plain_files_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "модель é 1.txt"
    path.write_bytes(b"a\r\n\xff\n")
    assert read_bytes(path) == b"a\r\n\xff\n"
    path.write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
    assert read_bytes(path) == b"onetwo"
