"""score --per-position: a row per base, from the distribution that predicted it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel

from hyena_cpu.errors import InputError, LimitError, NumericError
from hyena_cpu.score import (
    BASE_COLUMNS,
    TOKEN_COLUMNS,
    Setup,
    base_parts,
    score,
    score_fasta,
    token_parts,
)
from hyena_cpu.sequences import DnaPolicy, Record, reverse_complement

DNA = {"kind": "dna", "vocab_size": 12, "logits_width": 16}
FOUR = [7, 8, 9, 10]
BASES = "ACGTTNGATTACA" * 5


def records(sequences: list[str]) -> list[Record]:
    return [Record(i, f"r{i}", sequence) for i, sequence in enumerate(sequences)]


def table(
    sequences: list[str], setup: Setup | None = None, model: Any = None, **options: Any
) -> dict[str, np.ndarray]:
    """All rows by column, checking that every record ends once."""
    model = model or FakeModel(**DNA)
    parts = list(base_parts(model, records(sequences), setup or Setup(), DnaPolicy(), **options))
    assert sum(part.last for part in parts) == len(sequences) - options.get("skip", 0)
    for part in parts:
        assert list(part.columns) == list(BASE_COLUMNS)
        assert len({len(column) for column in part.columns.values()}) == 1
    filled = [part.columns for part in parts if len(part.columns["base"])]
    return {name: np.concatenate([columns[name] for columns in filled]) for name in BASE_COLUMNS}


def test_every_base_with_the_distribution_before_it() -> None:
    model = FakeModel(**DNA)
    rows = table([BASES, "GATTACA"])
    ids = model.tokenizer.encode(BASES)
    said = np.concatenate([block for _, block in model.logprob_blocks(ids)])[:-1]
    n = len(BASES)
    assert rows["index"].tolist() == [0] * n + [1] * 7
    assert "".join(rows["base"]) == BASES + "GATTACA"
    assert rows["position"].tolist() == [*range(n), *range(7)]
    assert set(rows["strand"]) == {"fwd"}
    numbers = ("logprob", "p_A", "p_C", "p_G", "p_T", "entropy")
    assert all(np.isnan(rows[name][[0, n]]).all() for name in numbers)
    np.testing.assert_array_equal(rows["logprob"][1:n], model.token_logprobs(ids))
    shares = np.exp(said[:, FOUR])
    for name, want in zip(numbers[1:5], shares.T, strict=True):
        np.testing.assert_allclose(rows[name][1:n], want, rtol=1e-12)
    assert (shares.sum(axis=1) < 0.99).any()  # over all rows: the rest is elsewhere
    among = shares / shares.sum(axis=1, keepdims=True)
    entropy = -(among * np.log2(among)).sum(axis=1)
    np.testing.assert_allclose(rows["entropy"][1:n], entropy, rtol=1e-9)
    assert (rows["entropy"][1:n] <= 2).all()


@pytest.mark.parametrize(
    "setup",
    [
        Setup(),
        Setup(bos=True),
        Setup(window=9),
        Setup(window=40, stride=3),
        Setup(window=17, bos=True, style="x"),
        Setup(alphabet="acgt"),
        Setup(alphabet="acgt", window=20, stride=7),
        Setup(special="cls-sep"),
        Setup(special="hf", window=8),
    ],
)
def test_the_rows_add_up_to_the_score(setup: Setup) -> None:
    model = FakeModel(**DNA, bos=2, styles={"x": 3})
    sequences = [BASES, "A", "", "ACGT" * 20, "NNN"]
    rows = table(sequences, setup, model)
    scores = score_fasta(model, records(sequences), setup, DnaPolicy())
    for i, row in enumerate(scores):
        logprobs = rows["logprob"][rows["index"] == i]
        scored = ~np.isnan(logprobs)
        assert scored.sum() == row.score.n_scored
        assert len(logprobs) == len(sequences[i]) + {None: 0, "hf": 1, "cls-sep": 2}[setup.special]
        total = row.score.logprob_sum or 0.0
        assert logprobs[scored].sum() == pytest.approx(total, rel=1e-12)


def test_the_other_strand_tells_where_its_bases_fall() -> None:
    forward, reverse, both = (table([BASES, "CCG"], strand=s) for s in ("fwd", "rc", "both"))
    again = table([reverse_complement(BASES), "CGG"])
    n = len(BASES)
    assert "".join(reverse["base"][:n]) == reverse_complement(BASES)
    assert reverse["position"].tolist() == [*range(n)[::-1], 2, 1, 0]
    assert set(reverse["strand"]) == {"rc"}
    for name in ("logprob", "p_A", "p_T", "entropy"):
        np.testing.assert_array_equal(reverse[name], again[name])
    assert both["strand"].tolist() == ["fwd"] * n + ["rc"] * n + ["fwd"] * 3 + ["rc"] * 3
    for name in ("position", "base", "logprob", "p_C"):
        for strand, single in (("fwd", forward), ("rc", reverse)):
            np.testing.assert_array_equal(both[name][both["strand"] == strand], single[name])


def test_special_tokens_stand_outside_the_record() -> None:
    rows = table(["ACG"], Setup(special="cls-sep"))
    assert rows["base"].tolist() == ["[CLS]", "A", "C", "G", "[SEP]"]
    assert rows["position"].tolist() == [-1, 0, 1, 2, 3]
    assert np.isnan(rows["logprob"]).tolist() == [True, False, False, False, False]
    rows = table(["ACG"], Setup(special="hf"), strand="rc")
    assert rows["base"].tolist() == ["C", "G", "T", "[SEP]"]
    assert rows["position"].tolist() == [2, 1, 0, -1]
    rows = table(["ACG"], Setup(special="cls-sep", window=3))
    assert rows["base"].tolist() == ["[CLS]", "A", "C", "G", "[SEP]"]


def test_four_bases_among_themselves() -> None:
    every, four = table([BASES]), table([BASES], Setup(alphabet="acgt"))
    shares = np.stack([four[f"p_{base}"] for base in "ACGT"], axis=1)[1:]
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    wide = np.stack([every[f"p_{base}"] for base in "ACGT"], axis=1)[1:]
    np.testing.assert_allclose(shares, wide / wide.sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_array_equal(every["entropy"], four["entropy"])
    unknown = np.array(list(BASES)) == "N"
    assert np.isnan(four["logprob"][1:]).tolist() == unknown[1:].tolist()
    assert not np.isnan(four["p_A"][1:]).any()
    at = ["ACGT".index(base) for base in BASES[1:] if base != "N"]
    np.testing.assert_allclose(
        four["logprob"][1:][~unknown[1:]],
        np.log(shares[~unknown[1:]][np.arange(len(at)), at]),
        rtol=1e-9,
    )
    (one,) = score(FakeModel(**DNA), [BASES], alphabet="acgt")
    assert one.n_scored == len(BASES) - 1 - BASES.count("N")
    assert one.n_bytes == one.n_scored


def test_models_without_a_token_per_base_are_refused() -> None:
    class Words(FakeModel):
        def __init__(self) -> None:
            super().__init__()
            self.tokenizer.kind = "hf"  # type: ignore[union-attr]

    with pytest.raises(InputError, match="needs one token per base"):
        table(["ACGT"], model=Words())
    with pytest.raises(InputError, match="alphabet acgt needs one token per base"):
        score(Words(), "ACGT", alphabet="acgt")
    with pytest.raises(InputError, match="alphabet is 'dna', must be all or acgt"):
        score(FakeModel(), "ACGT", alphabet="dna")  # type: ignore[arg-type]


def test_byte_models_have_a_token_per_base_too() -> None:
    rows = table(["ACGTN"], model=FakeModel(), setup=Setup(alphabet="acgt"))
    assert "".join(rows["base"]) == "ACGTN"
    assert np.isnan(rows["logprob"]).tolist() == [True, False, False, False, True]


def test_a_record_that_cannot_be_scored_has_no_rows() -> None:
    class Small(FakeModel):
        def logprob_blocks(self, ids: Any) -> Any:
            if len(ids) > 5:
                raise LimitError("too long for max-memory")
            return super().logprob_blocks(ids)

    sequences = ["ACGT", "AC-T", "ACGTACGT", "GGG"]
    parts = list(base_parts(Small(**DNA), records(sequences), Setup(), DnaPolicy()))
    ends = [part.problem for part in parts if part.last]
    assert ends == [
        None,
        "record 2 ('r1'): '-' at position 3 is no nucleotide code",
        "record 3 ('r2'): too long for max-memory",
        None,
    ]
    rows = table(sequences, model=Small(**DNA))
    assert rows["index"].tolist() == [0] * 4 + [3] * 3


def test_numbers_that_are_not_finite_name_their_record() -> None:
    with pytest.raises(NumericError, match=r"record 1 \('r0'\).*not finite"):
        table(["ACGT"], model=FakeModel(**DNA, poison=1))
    with pytest.raises(NumericError, match=r"record 1 \('r0'\).*not finite"):
        table(["ACGT"], Setup(alphabet="acgt"), model=FakeModel(**DNA, poison=1))


def test_records_already_done_are_passed_over() -> None:
    sequences = ["ACGT", "GG", "TTT"]
    whole, rest = table(sequences), table(sequences, skip=2)
    for name in BASE_COLUMNS:
        np.testing.assert_array_equal(whole[name][whole["index"] >= 2], rest[name])


def test_a_long_record_comes_in_pieces_and_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    parts = base_parts(
        FakeModel(**DNA),
        records([BASES * 4]),
        Setup(),
        DnaPolicy(),
        "both",
        on_progress=lambda done, total: told.append((done, total)),
    )
    sizes = [len(part.columns["base"]) for part in parts]
    assert max(sizes) <= 16  # rows of the model's blocks
    total = 8 * len(BASES)
    assert sum(sizes) == total
    assert (told[0], told[-1]) == ((0, total), (total, total))
    assert told == sorted(told)


def test_tokens_of_a_text() -> None:
    text = "é!\n".encode()
    model = FakeModel()
    parts = list(token_parts(model, text, Setup(), "file.txt"))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    rows = {name: [v for p in parts for v in p.columns[name]] for name in TOKEN_COLUMNS}
    assert rows["token"] == ["\\xc3", "\\xa9", "!", "\n"]
    assert rows["position"] == [0, 1, 2, 3]
    assert set(rows["id"]) == {"file.txt"}
    assert np.isnan(rows["logprob"][0])
    np.testing.assert_array_equal(rows["logprob"][1:], model.token_logprobs(list(text)))
    begun = list(token_parts(FakeModel(bos=3), b"ab", Setup(bos=True), "x"))
    assert not np.isnan(begun[0].columns["logprob"]).any()
    (nothing,) = token_parts(model, b"", Setup(), "x")
    assert (nothing.last, nothing.columns["token"]) == (True, [])
