"""Windows around variants: where they lie, what is in them, what shares a prefix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import shared_path
from dna_toy import bases
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu.errors import InputError
from hyena_cpu.genome import Genome
from hyena_cpu.sequences import DnaPolicy, Record, read_fasta, reverse_complement
from hyena_cpu.tokenizers.dna import DnaTokenizer
from hyena_cpu.variant_files import Variant, read_variants
from hyena_cpu.variant_windows import Placed, groups, place, runs
from hyena_cpu.variants import Setup, plan

REFERENCE = bases(1000)
encode = DnaTokenizer().encode


@pytest.fixture(scope="module")
def genome() -> Any:
    records = [Record(0, "chr1", REFERENCE), Record(1, "low", "acgtnracgu"), Record(2, "x", "AC-T")]
    with Genome(records) as g:
        yield g


def variant(pos: int, ref: str, alt: str, chrom: str = "chr1", index: int = 0) -> Variant:
    return Variant(index, None, chrom, pos, ref, alt)


def at(pos: int, n: int = 1) -> str:
    """Bases of the reference from a position on, which counts from 1."""
    return REFERENCE[pos - 1 : pos - 1 + n]


def other(base: str) -> str:
    return "CGTA"["ACGT".index(base)]


def put(g: Genome, one: Variant, size: int = 100, offset: int = 1, **policy: Any) -> Placed:
    return place(one, g, size, offset, DnaPolicy(**policy))


def test_the_first_base_of_the_variant_is_in_the_middle(genome: Genome) -> None:
    placed = put(genome, variant(501, at(501), other(at(501))))
    assert (placed.start, placed.status, placed.chrom) == (450, "ok", "chr1")
    assert placed.ref == REFERENCE[450:550]
    assert placed.alt == REFERENCE[450:500] + other(at(501)) + REFERENCE[501:550]
    odd = put(genome, variant(501, at(501), other(at(501))), size=7)
    assert odd.ref == REFERENCE[497:504]


@pytest.mark.parametrize(
    ("pos", "start"),
    [(1, 0), (50, 0), (51, 0), (52, 1), (951, 900), (952, 900), (1000, 900)],
)
def test_near_an_end_the_window_moves_inward(genome: Genome, pos: int, start: int) -> None:
    placed = put(genome, variant(pos, at(pos), other(at(pos))))
    assert (placed.start, len(placed.ref), len(placed.alt)) == (start, 100, 100)
    assert placed.ref[pos - 1 - start] != placed.alt[pos - 1 - start]


@given(
    st.integers(0, 59),
    st.integers(1, 12),
    st.text("ACGT", min_size=1, max_size=12),
    st.integers(2, 80),
)
def test_both_sequences_are_those_of_the_two_haplotypes(
    begin: int, length: int, alt: str, size: int
) -> None:
    reference = REFERENCE[:60]
    ref = reference[begin : begin + length]
    haplotype = reference[:begin] + alt + reference[begin + len(ref) :]
    with Genome([Record(0, "chr1", reference)]) as g:
        placed = put(g, variant(begin + 1, ref, alt), size=size)
    if placed.status != "ok":
        longest = max(len(ref), len(alt))
        flank = 60 - begin - len(ref)
        assert 2 * longest - 1 > size or flank < abs(len(ref) - len(alt))
        return
    n = len(placed.ref)
    assert n == len(placed.alt) == min(size, 60, len(haplotype))
    assert placed.ref == reference[placed.start : placed.start + n]
    assert placed.alt == haplotype[placed.start : placed.start + n]
    # Both alleles lie inside, whole.
    assert placed.start <= begin
    assert begin + max(len(ref), len(alt)) <= placed.start + n


@pytest.mark.parametrize(
    ("one", "size", "message"),
    [
        (
            variant(501, other(at(501)), "A"),
            100,
            f"the reference has {at(501)} at chr1:501, the variant expects {other(at(501))}",
        ),
        (variant(501, 30 * "AC", "A"), 200, f"the reference has {at(501, 17)}... (60 bases) at"),
        (variant(0, "A", "C"), 100, "position 0 is outside chr1, which has 1..1000"),
        (variant(1000, at(1000) + "A", "C"), 100, "position 1000 is outside chr1"),
        (variant(5, "A", "C", "chr2"), 100, "no record 'chr2': it has chr1, low, x"),
        (variant(1, "A", "C", "x"), 100, "the reference from x:1 on: '-' at position 3 is no"),
        (variant(501, "E", "C"), 100, "ref E: 'E' at position 1 is no nucleotide code"),
        (variant(501, at(501), "-A"), 100, "alt -A: '-' at position 1 is no nucleotide code"),
        (
            variant(501, at(501), "-"),
            100,
            "alt is empty: insertions and deletions are written with",
        ),
        (variant(501, "", "A"), 100, "ref is empty: insertions and deletions are written with the"),
        (variant(501, at(501), "C,<DEL>"), 100, "alt C,<DEL> is several alleles, and a row of a"),
        (
            variant(501, at(501, 51), "A"),
            100,
            "an allele of 51 bases does not fit the right half "
            "of a window of 100: it needs a window of at least 101",
        ),
        (variant(501, at(501), 60 * "A"), 101, "it needs a window of at least 119"),
        (
            variant(995, at(995, 5), at(995)),
            100,
            "bases after the variant: 1, change of length: 4;",
        ),
        (variant(1000, at(1000), "ACC"), 100, "bases after the variant: 0, change of length: 2;"),
    ],
)
def test_what_has_no_window(genome: Genome, one: Variant, size: int, message: str) -> None:
    placed = put(genome, one, size)
    assert placed.status.startswith("error: ")
    assert message in placed.status
    assert (placed.ref, placed.alt) == ("", "")


@pytest.mark.parametrize("alt", ["<DEL>", "*", ".", "G]chr1:7]", "[chr2:9[A", "A.", "<*>"])
def test_alleles_that_are_no_sequences_are_skipped(genome: Genome, alt: str) -> None:
    placed = put(genome, variant(501, at(501), alt))
    assert placed.status == f"skipped: alt {alt} is no sequence of bases"


def test_rows_with_a_problem_keep_it(genome: Genome) -> None:
    bad = Variant(3, None, "chr1", None, "A", "C", "the position 'x' is no whole number")
    assert put(genome, bad).status == "error: the position 'x' is no whole number"


def test_letters_follow_the_policy(genome: Genome) -> None:
    placed = put(genome, variant(2, "C", "t", "low"))
    assert (placed.ref, placed.alt) == ("ACGTNNACGT", "ATGTNNACGT")
    kept = put(genome, variant(2, "C", "t", "low"), case="keep", rna="keep", ambiguous="keep")
    assert (kept.ref, kept.alt) == ("acgtnracgu", "atgtnracgu")
    assert put(genome, variant(6, "R", "A", "low")).status == "ok"
    refused = put(genome, variant(2, "C", "T", "low"), ambiguous="error").status
    assert "the reference from low:1 on: 'n' at position 5 is an ambiguity code" in refused


def test_an_offset_shifts_positions(genome: Genome) -> None:
    shifted = put(genome, variant(43_000_500, at(501), other(at(501))), offset=43_000_000)
    assert shifted.start == put(genome, variant(501, at(501), other(at(501)))).start
    assert put(genome, variant(0, at(1), other(at(1))), offset=0).status == "ok"
    outside = put(genome, variant(43_001_000, "A", "C"), offset=43_000_000).status
    assert outside.endswith("is outside chr1, which has 43000000..43000999")


def test_a_table_without_chromosomes_needs_one_record(genome: Genome) -> None:
    one = Variant(0, None, None, 501, at(501), other(at(501)))
    with pytest.raises(InputError, match="needs a column chrom"):
        put(genome, one)
    with Genome([Record(0, "only", REFERENCE)]) as g:
        assert put(g, one).chrom == "only"


def snvs(pos: int) -> list[Variant]:
    return [variant(pos, at(pos), base) for base in "ACGT" if base != at(pos)]


def test_runs_are_neighbours_of_one_window_in_order(genome: Genome) -> None:
    table = [*snvs(501), *snvs(502), variant(5, "A", "<X>"), variant(5, "A", "<X>"), *snvs(501)]
    found = list(runs(put(genome, one) for one in table))
    assert [one.variant for run in found for one in run] == table
    assert [len(run) for run in found] == [3, 3, 1, 1, 3]


def test_runs_are_bounded(genome: Genome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyena_cpu.variant_windows.BASES_TOGETHER", 250)
    near_the_end = [one for pos in (3, 4, 5) for one in snvs(pos)]
    found = list(runs(put(genome, one) for one in near_the_end))
    assert [len(run) for run in found] == [2, 2, 2, 2, 1]


def test_groups_are_bounded(genome: Genome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyena_cpu.variant_windows.ALLELES_TOGETHER", 2)
    run = [put(genome, one) for one in [*snvs(501), *snvs(501)]]
    found = groups(run, "fwd", encode)
    assert [group.members for group in found] == [
        [(0, 0), (1, 1), (3, 0), (4, 1)],
        [(2, 0), (5, 0)],
    ]
    assert [len(group.alleles) for group in found] == [2, 1]


@pytest.mark.parametrize("strand", ["fwd", "rc"])
def test_groups_share_what_comes_before_the_first_difference(genome: Genome, strand: str) -> None:
    insertion = variant(501, at(501), at(501) + other(at(502)) + "A")
    table = [*snvs(501), insertion, *snvs(501)[:1], variant(501, at(501), at(501))]
    run = [put(genome, one, 200) for one in table]
    found = groups(run, strand, encode)
    members = sorted(i for group in found for i, _ in group.members)
    assert members == list(range(6))
    for group in found:
        assert len({allele.tobytes() for allele in group.alleles}) == len(group.alleles)
        for i, k in group.members:
            sequence = run[i].alt if strand == "fwd" else reverse_complement(run[i].alt)
            allele = group.alleles[k]
            assert np.array_equal(allele, encode(sequence))
            assert np.array_equal(allele[: group.prefix], group.reference[: group.prefix])
            assert not np.array_equal(
                allele[: group.prefix + 1], group.reference[: group.prefix + 1]
            ) or group.prefix == len(group.reference)
    (snv,) = [group for group in found if 0 in dict(group.members)]
    assert (snv.prefix, len(snv.alleles)) == (100 if strand == "fwd" else 99, 3)
    assert snv.members == [(0, 0), (1, 1), (2, 2), (4, 0)]
    assert snv.tokens() == snv.prefix + 4 * (200 - snv.prefix)
    assert snv.tokens(share=False) == 800


def test_brca1_is_counted_as_it_should_be() -> None:
    folder = shared_path("data", "dna_brca1_region")
    variants = list(read_variants(folder / "brca1_sge_3893.csv", {"pos": "pos_hg38"}))
    setup = Setup(window=8192, offset=43_029_321)
    starts: set[int] = set()
    tokens = whole = rows = 0
    with Genome(read_fasta(folder / "chr17_GRCh38_brca1_window.fa")) as g:
        for run, (parts,) in plan(g, variants, setup, 8192, encode):
            assert {one.status for one in run} == {"ok"}  # every reference base is as expected
            rows += len(run)
            starts.add(run[0].start)
            tokens += sum(group.tokens() for group in parts)
            whole += sum(group.tokens(share=False) for group in parts)
    assert (rows, len(starts)) == (3893, 1326)
    assert tokens == 1326 * 4096 + (1326 + 3893) * 4096 == 26_808_320
    assert whole == (1326 + 3893) * 8192 == 42_754_048
