"""Scores of variants against whole windows computed one by one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from dna_toy import CONFIG, bases, dna_model
from fake_model import FakeModel
from toy import CAUSAL, model, weights

from hyena_cpu.errors import InputError, LimitError, ModelError, NumericError
from hyena_cpu.genome import Genome
from hyena_cpu.model import Model
from hyena_cpu.sequences import Record, reverse_complement
from hyena_cpu.variant_files import Variant
from hyena_cpu.variants import COLUMNS, Row, Setup, check, score_variants, values

REFERENCE = bases(1500)
SIZE = 300
MODEL = dna_model()


@pytest.fixture(scope="module")
def genome() -> Any:
    with Genome([Record(0, "chr1", REFERENCE), Record(1, "short", REFERENCE[:120])]) as g:
        yield g


def variant(pos: int, length: int, alt: str, chrom: str = "chr1") -> tuple[str, int, str, str]:
    return chrom, pos, REFERENCE[pos - 1 : pos - 1 + length], alt


def numbered(table: list[tuple[str, int, str, str]]) -> list[Variant]:
    return [Variant(i, f"v{i}", *one) for i, one in enumerate(table)]


def other(pos: int, n: int = 1) -> str:
    return "".join("CGTA"["ACGT".index(REFERENCE[pos - 1 + i])] for i in range(n))


TABLE = [
    *[("chr1", 700, REFERENCE[699], base) for base in "ACGT"],  # one of them changes nothing
    variant(701, 1, other(701)),
    variant(702, 1, REFERENCE[701] + "ACGTT"),
    variant(702, 6, REFERENCE[701]),
    variant(702, 3, other(702, 3)),
    variant(702, 40, "GG"),
    variant(800, 2, bases(90, seed=8)),
    variant(1, 1, other(1)),
    variant(3, 1, other(3)),
    variant(80, 1, other(80)),
    variant(1500, 1, other(1500)),
    variant(1490, 3, other(1490) + "A"),
    variant(30, 1, other(30), "short"),
    variant(100, 1, other(100) + "TTGACC", "short"),
    variant(100, 5, other(100), "short"),
    variant(120, 1, other(120), "short"),
]


def rows(g: Genome, table: list[Any] = TABLE, m: Any = MODEL, **settings: Any) -> list[Row]:
    setup = Setup(**{"window": SIZE, **settings})
    return list(score_variants(m, g, numbered(table), setup))


def naive(one: tuple[str, int, str, str], start: int, n: int, rc: bool) -> tuple[float, float]:
    """Sums over n bases from `start` of both haplotypes, written out in full."""
    chrom, pos, ref, alt = one
    whole = REFERENCE if chrom == "chr1" else REFERENCE[:120]
    changed = whole[: pos - 1] + alt + whole[pos - 1 + len(ref) :]
    sums = []
    for haplotype in (whole, changed):
        window = haplotype[start : start + n]
        assert len(window) == n
        ids = MODEL.tokenizer.encode(reverse_complement(window) if rc else window)
        sums.append(float(MODEL.token_logprobs(ids).sum()))
    return sums[0], sums[1]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("strand", ["fwd", "rc", "both"])
def test_against_whole_windows(genome: Genome, strand: Any, share: bool) -> None:
    found = rows(genome, strand=strand, share=share)
    assert [row.placed.variant for row in found] == numbered(TABLE)
    for one, row in zip(TABLE, found, strict=True):
        named = values(row)
        assert (named["status"], named["strand"]) == ("ok", strand)
        n = named["n_scored_ref"] + 1
        assert n == named["n_scored_alt"] + 1 == min(SIZE, len(row.placed.ref))
        sides = {"fwd": [False], "rc": [True], "both": [False, True]}[strand]
        both = [naive(one, named["window_start"] - 1, n, rc) for rc in sides]
        reference, allele = np.mean(both, axis=0)
        assert named["ref_logprob_sum"] == pytest.approx(reference, abs=2e-4)
        assert named["alt_logprob_sum"] == pytest.approx(allele, abs=2e-4)
        assert named["delta_sum"] == pytest.approx(allele - reference, abs=2e-4)
        assert named["delta_mean"] == pytest.approx((allele - reference) / (n - 1), abs=1e-6)
        assert named["delta_mean"] == named["delta_sum"] / named["n_scored_ref"]


def test_windows_of_the_table_are_as_they_should_be(genome: Genome) -> None:
    found = [values(row) for row in rows(genome)]
    window = {i: (row["window_start"], row["n_scored_ref"]) for i, row in enumerate(found)}
    assert window[0] == window[3] == (550, 299)
    assert window[6] == (552, 299)
    assert window[10] == (1, 299)
    assert window[13] == (1201, 299)
    assert window[15] == (1, 119)  # the record is shorter than the window
    assert window[16] == (1, 119)
    assert window[17] == (1, 115)  # both end where the shorter allele's record ends


@pytest.mark.parametrize("strand", ["fwd", "rc", "both"])
def test_sharing_changes_no_mean_that_matters(genome: Genome, strand: Any) -> None:
    shared = [values(row) for row in rows(genome, strand=strand)]
    whole = [values(row) for row in rows(genome, strand=strand, share=False)]
    means = [[row["delta_mean"] for row in table] for table in (shared, whole)]
    assert np.abs(np.array(means[0]) - np.array(means[1])).max() < 1e-6
    sums = [[row["alt_logprob_sum"] for row in table] for table in (shared, whole)]
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-6)
    assert np.abs(means[0]).max() > 1e-3


@pytest.mark.parametrize("name", ["order3", "finite_hybrid", "attention_first"])
def test_other_models(genome: Genome, name: str) -> None:
    m = model(CAUSAL[name])
    m._tokenizer = MODEL.tokenizer
    shared, whole = (rows(genome, m=m, share=share) for share in (True, False))
    for a, b in zip(shared, whole, strict=True):
        assert values(a)["delta_mean"] == pytest.approx(values(b)["delta_mean"], abs=1e-6)


def test_an_allele_that_changes_nothing(genome: Genome) -> None:
    for share in (True, False):
        found = rows(genome, share=share, strand="both")
        assert sum(values(row)["delta_sum"] == 0 for row in found) == 1


@pytest.mark.parametrize("strand", ["fwd", "both"])
def test_numbers_depend_on_nothing_else_in_the_table(genome: Genome, strand: Any) -> None:
    together = {row.placed.variant.id: row.delta for row in rows(genome, strand=strand)}
    variants = numbered(TABLE)
    setup = Setup(window=SIZE, strand=strand)
    for one in variants:
        (row,) = score_variants(MODEL, genome, [one], setup)
        assert row.delta == together[one.id]
    backwards = list(score_variants(MODEL, genome, variants[::-1], setup))
    assert [row.placed.variant for row in backwards] == variants[::-1]
    assert {row.placed.variant.id: row.delta for row in backwards} == together
    two = list(score_variants(dna_model(threads=2), genome, variants, setup))
    assert [row.delta for row in two] == list(together.values())


def test_tokens_are_taken_in_as_often_as_planned(
    genome: Genome, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken = []
    rows_of = type(MODEL)._rows

    def counting(self: Any, pieces: Any, *args: Any, **options: Any) -> Any:
        taken.extend(map(len, pieces))
        return rows_of(self, pieces, *args, **options)

    monkeypatch.setattr(type(MODEL), "_rows", counting)
    logging.getLogger("hyena_cpu").propagate = True
    with caplog.at_level(logging.INFO, "hyena_cpu"):
        repeated = [TABLE[i] for i in (0, 1, 2, 3, 0, 1, 2, 3)]
        found = rows(genome, [one for one in repeated if one[2] != one[3]])
    assert len(found) == 6
    # The reference, and of three alleles what follows 150 bases; their last predicts nothing.
    assert taken == [300, 149, 149, 149]
    assert "tokens that the model takes in: 750 (1200 without sharing)" in caplog.text


@pytest.mark.parametrize("strand", ["fwd", "both"])
def test_rows_come_before_the_whole_run_is_computed(
    genome: Genome, monkeypatch: pytest.MonkeyPatch, strand: Any
) -> None:
    """All these variants have one window, and a run of it may be long."""
    monkeypatch.setattr("hyena_cpu.variant_windows.ALLELES_TOGETHER", 2)
    table = [variant(pos, 1, other(pos), "short") for pos in (20, 80, 50)]
    table += [(*table[0][:3], base) for base in "ACGT"]
    calls: list[str] = []

    def counted(name: str) -> Any:
        method = getattr(MODEL, name)

        def call(*args: Any) -> Any:
            calls.append(name)
            return method(*args)

        return call

    for name in ("token_logprobs_each", "token_logprobs_branching"):
        monkeypatch.setattr(MODEL, name, counted(name))
    found, computed = [], []
    for row in score_variants(MODEL, genome, numbered(table), Setup(strand=strand)):
        found.append(row.delta)
        computed.append(len(calls))
    strands = 2 if strand == "both" else 1
    assert computed[:3] == [strands, 2 * strands, 3 * strands]
    assert computed[-1] > 3 * strands
    monkeypatch.undo()
    assert found == [row.delta for row in rows(genome, table, strand=strand)]


def test_failed_rows_stand_among_the_others(genome: Genome) -> None:
    table = [
        TABLE[1],
        ("chr1", 700, "ACGTACGTACGT", "A"),
        ("chr9", 700, "A", "C"),
        ("chr1", 700, REFERENCE[699], "<DUP>"),
        TABLE[4],
    ]
    found = rows(genome, table)
    assert [row.failed for row in found] == [False, True, True, False, False]
    named = values(found[1])
    assert named["status"].startswith("error: the reference has")
    assert [named[name] for name in COLUMNS if "logprob" in name or "delta" in name] == 4 * [None]
    assert (named["window_start"], named["n_scored_ref"]) == (None, 0)
    assert values(found[3])["status"].startswith("skipped: alt <DUP>")
    alone = rows(genome, [TABLE[4]])[0]
    assert found[4].delta == alone.delta


def test_a_window_of_one_base_has_nothing_to_score() -> None:
    with Genome([Record(0, "tiny", "A")]) as g:
        (row,) = rows(g, [("tiny", 1, "A", "C")])
    named = values(row)
    assert (named["status"], named["n_scored_alt"], named["delta_mean"]) == ("ok", 0, None)


def test_positions_count_as_the_table_counts(genome: Genome) -> None:
    from_zero = [(chrom, pos - 1, ref, alt) for chrom, pos, ref, alt in TABLE]
    found = rows(genome, from_zero, offset=0)
    assert [row.delta for row in found] == [row.delta for row in rows(genome)]
    assert values(found[0])["window_start"] == 549


def test_columns_are_the_published_ones(genome: Genome) -> None:
    assert ", ".join(COLUMNS) == (
        "index, id, chrom, pos, ref, alt, window_start, n_scored_ref, n_scored_alt, "
        "ref_logprob_sum, alt_logprob_sum, delta_sum, delta_mean, strand, status"
    )
    named = values(rows(genome, TABLE[:1])[0])
    assert list(named) == list(COLUMNS)
    assert all(isinstance(named[name], kind) for name, kind in COLUMNS.items())


def test_the_window_follows_the_model() -> None:
    assert check(MODEL, Setup()) == CONFIG.max_length
    assert check(FakeModel(), Setup()) == 8192
    assert check(FakeModel(max_length=10_000), Setup()) == 8192
    with pytest.raises(LimitError, match="window is 401 but toy-dna takes at most 400"):
        check(MODEL, Setup(window=401))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"window": 1}, InputError, "window is 1"),
        ({"window": 10.5}, InputError, "window is 10.5"),
        ({"strand": "up"}, InputError, "strand is 'up', must be fwd, rc or both"),
    ],
)
def test_setups_that_cannot_work(settings: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        score_variants(MODEL, None, [], Setup(**settings))  # type: ignore[arg-type]


def test_models_that_do_not_read_bases() -> None:
    class Words(FakeModel):
        pass

    words = Words()
    words.tokenizer.kind = "hf"  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="does not take one token per base"):
        check(words, Setup())
    with pytest.raises(ModelError, match="no tokenizer"):
        check(model(CAUSAL["order2"]), Setup())


def test_numbers_that_are_not_finite_end_the_run(genome: Genome) -> None:
    stored = weights(CONFIG)
    stored.tensors["norm.weight"][:] = np.nan
    m = Model(stored, MODEL.tokenizer, threads=1)
    with pytest.raises(NumericError, match="not finite"):
        rows(genome, m=m)
