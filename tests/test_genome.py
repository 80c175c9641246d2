"""References that windows are cut out of."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from hyena_cpu import genome as subject
from hyena_cpu.errors import InputError, LimitError
from hyena_cpu.genome import Genome
from hyena_cpu.sequences import Record, read_fasta

CASES = Path(__file__).parent / "cases"


def genome(*sequences: str, **options: object) -> Genome:
    records = [Record(i, f"chr{i + 1}", s) for i, s in enumerate(sequences)]
    return Genome(records, **options)  # type: ignore[arg-type]


def test_windows_in_any_order() -> None:
    with genome("ACGTN", "", "ggttA") as g:
        assert g.fetch("chr3", 1, 4) == "gtt"
        assert g.fetch("chr1", 0, 5) == "ACGTN"
        assert g.fetch("chr3", 4, 5) == "A"
        assert g.fetch("chr2", 0, 0) == ""
        assert [g.length(name) for name in g.names] == [5, 0, 5]
        assert g.n_lower == 4
        with pytest.raises(InputError, match=r"chr1 has 5 bases: none at 3\.\.6"):
            g.fetch("chr1", 3, 6)


def test_a_large_reference_goes_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MOST_IN_MEMORY", 6)
    with genome("ACGT", "TTGCA", "GGG") as g:
        assert [g.fetch(name, 1, 3) for name in g.names] == ["CG", "TG", "GG"]


def test_layout_and_compression_of_the_file_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.fa.gz"
    path.write_bytes(
        gzip.compress(b">a one\r\nAC\r\n\r\nGTACG\r\n") + gzip.compress(b">b\nTTT\nT\n")
    )
    with Genome(read_fasta(path)) as g:
        assert (g.names, g.fetch("a", 0, 7), g.fetch("b", 2, 4)) == (["a", "b"], "ACGTACG", "TT")


def test_only_what_is_wanted_is_kept() -> None:
    with genome("AC", "gg", wanted={"chr1"}) as g:
        assert (g.names, g.length("chr1"), g.n_lower) == (["chr1", "chr2"], 2, 0)


def test_names_that_say_nothing() -> None:
    with genome("A", "C", "G", "T", "A") as g:
        with pytest.raises(InputError, match="no record '2': it has chr1, chr2, chr3 and 2 more"):
            g.length("2")
        with pytest.raises(InputError, match=r"has 5 records .* needs a column chrom"):
            g.only()
    with genome("A") as g:
        assert g.only() == "chr1"
    with Genome([Record(0, "a", "AC"), Record(1, "a", "GG"), Record(2, "b", "T")]) as g:
        assert g.fetch("b", 0, 1) == "T"
        with pytest.raises(InputError, match="several records named 'a'"):
            g.fetch("a", 0, 1)


def test_no_room_for_the_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        closed = False

        def tell(self) -> int:
            return 0

        def write(self, _: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            self.closed = True

    full = Full()
    monkeypatch.setattr(subject.tempfile, "SpooledTemporaryFile", lambda _: full)
    with pytest.raises(LimitError, match="No space left on device; the variable TMPDIR"):
        genome("ACGT")
    assert full.closed


def test_reading_errors_are_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "x.fa"
    path.write_text("ACGT\n")
    with pytest.raises(InputError, match="is not FASTA"):
        Genome(read_fasta(path))
    with Genome(read_fasta(CASES / "C102/dup_ids.fa")) as g:
        assert g.names == ["s1", "s1", "s2"]
