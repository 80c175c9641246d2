"""Scores, windows and tables: C012, C022, C025, C085, C103, S02."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_model import FakeModel

from hyena_cpu.errors import InputError, LimitError, ModelError, NumericError
from hyena_cpu.score import (
    COLUMNS,
    Row,
    Setup,
    score,
    score_fasta,
    score_text,
    values,
)
from hyena_cpu.score.windows import token_logprobs, windows
from hyena_cpu.sequences import DnaPolicy, Record, read_fasta, reverse_complement

CASES = Path(__file__).parent / "cases"
DNA = {"kind": "dna", "vocab_size": 12, "logits_width": 16}


def rows(text: list[str], **settings: Any) -> list[Row]:
    records = [Record(i, f"r{i}", sequence) for i, sequence in enumerate(text)]
    return list(score_fasta(FakeModel(**DNA), records, Setup(), DnaPolicy(), **settings))


def test_a_score_is_the_sum_of_what_the_model_says() -> None:
    model = FakeModel()
    expected = model.token_logprobs(list(b"hello"))
    (result,) = score(model, "hello")
    assert result.n_scored == 4
    assert result.logprob_sum == pytest.approx(expected.sum(), rel=1e-12)
    assert result.logprob_mean == pytest.approx(expected.mean(), rel=1e-12)
    assert result.perplexity == pytest.approx(math.exp(-expected.mean()), rel=1e-12)
    # Four bytes are scored; the first has nothing before it.
    assert result.bits_per_byte == pytest.approx(-expected.sum() / math.log(2) / 4, rel=1e-12)


def test_a_begin_or_style_token_lets_the_first_one_be_scored() -> None:
    model = FakeModel(bos=3, styles={"tale": 5})
    assert score(model, "hello", bos=True)[0].n_scored == 5
    both = score(model, "hello", bos=True, style="tale")[0]
    expected = model.token_logprobs([3, 5, *b"hello"])[1:]
    assert both.logprob_sum == pytest.approx(expected.sum(), rel=1e-12)
    with pytest.raises(ModelError, match="no begin token"):
        score(FakeModel(), "hello", bos=True)


@pytest.mark.parametrize("text", ["", "x"])
def test_nothing_to_score_gives_nothing(text: str) -> None:
    (result,) = score(FakeModel(), text)
    assert (result.n_scored, result.logprob_sum, result.logprob_mean) == (0, None, None)
    assert (result.perplexity, result.bits_per_byte) == (None, None)


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(("window", "stride"), [(2, None), (7, None), (7, 1), (7, 3), (64, None)])
def test_windows_score_every_token_once(window: int, stride: int | None, bos: bool) -> None:
    model = FakeModel(bos=3)
    prefix = [3] if bos else []
    if len(prefix) >= window - 1:
        window = len(prefix) + 2
    ids = np.arange(40, dtype=np.int32)
    setup = Setup(window=window, stride=stride, bos=bos)
    logprobs = np.concatenate(
        [token_logprobs(model, ids, place, setup) for place in windows(model, len(ids), setup)]
    )
    assert len(logprobs) == 40 - (not bos)
    # Each block is what the model says after the window's own context.
    step = stride or window - max(len(prefix), 1)
    first = 0 if bos else 1
    for begin in range(first, 40, step):
        end = min(begin + step, 40)
        seen = ids[max(begin + step - window + len(prefix), 0) : end]
        expected = model.token_logprobs([*prefix, *seen])[-(end - begin) :]
        np.testing.assert_array_equal(logprobs[begin - first : end - first], expected)


def test_windows_may_be_numbers_of_numpy() -> None:
    text, small = "ab" * 200, {"window": np.uint8(200), "stride": np.uint8(100)}
    assert score(FakeModel(), text, **small) == score(FakeModel(), text, window=200, stride=100)


def test_windows_never_exceed_the_context() -> None:
    model = FakeModel(max_length=10)
    assert score(model, "x" * 35)[0].n_scored == 34
    with pytest.raises(LimitError, match="window is 11"):
        score(model, "x", window=11)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 1}, "window is 1"),
        ({"window": 5, "stride": 5}, r"stride is 5, must be in 1\.\.4"),
        ({"window": 5, "stride": 0}, "stride is 0"),
        ({"stride": 3}, "stride needs a window"),
    ],
)
def test_windows_that_cannot_work_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(FakeModel(), "hello", **options)


def test_several_sequences_of_any_kind() -> None:
    results = score(FakeModel(), ["hello", b"hello", list(b"hello"), "hi"])
    assert results[0] == results[1] == results[2] != results[3]
    for one in (list(b"hello"), tuple(b"hello"), np.array(list(b"hello"))):
        assert score(FakeModel(), one) == results[:1]


def test_numbers_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(NumericError, match="not finite"):
        score(FakeModel(poison=2), "hello")


def test_fasta_rows_in_order_with_their_counts() -> None:
    records = read_fasta(CASES / "C025/variable_lengths.fa")
    model = FakeModel(**DNA)
    table = list(score_fasta(model, records, Setup(), DnaPolicy()))
    assert [(row.index, row.id, row.length, row.score.n_scored) for row in table] == [
        (0, "a", 8, 7),
        (1, "b", 2, 1),
        (2, "c", 16, 15),
    ]
    alone = score(model, "AC")[0]
    assert table[1].score == alone
    lower = list(score_fasta(model, read_fasta(CASES / "C090/lower.fa"), Setup(), DnaPolicy()))
    assert [(row.n_case_folded, row.n_ambiguous) for row in lower] == [(10, 0), (6, 4)]


def test_one_bad_record_does_not_stop_the_others() -> None:
    table = rows(["ACGT", "AC-T", "", "A", "GGGG"])
    assert [row.status == "ok" for row in table] == [True, False, True, True, True]
    assert table[1].status.startswith("error: '-' at position 3")
    assert [row.score.n_scored for row in table] == [3, 0, 0, 0, 3]
    assert values(table[1])["logprob_sum"] is None


def test_strands() -> None:
    sequence = "ACGTTN"
    (forward,) = rows([sequence])
    (reverse,) = rows([sequence], strand="rc")
    (both,) = rows([sequence], strand="both")
    assert reverse.score == rows([reverse_complement(sequence)])[0].score
    mean = (forward.score.logprob_sum + reverse.score.logprob_sum) / 2
    assert both.score.logprob_sum == pytest.approx(mean, rel=1e-12)
    assert (both.score.n_scored, both.strand, reverse.strand) == (5, "both", "rc")
    assert forward.score.logprob_sum != reverse.score.logprob_sum


def test_special_tokens_of_other_programs_are_scored_like_bases() -> None:
    record = [Record(0, "a", "ACGT")]
    model = FakeModel(**DNA)
    (row,) = score_fasta(model, record, Setup(special="cls-sep"), DnaPolicy())
    expected = model.token_logprobs([0, 7, 8, 9, 10, 1])
    assert row.score.logprob_sum == pytest.approx(expected.sum(), rel=1e-12)


def test_a_text_is_one_row_measured_in_bytes() -> None:
    row = score_text(FakeModel(), "é!".encode(), Setup(), "file.txt")
    assert (row.index, row.id, row.length, row.score.n_scored) == (0, "file.txt", 3, 2)
    named = values(row)
    assert tuple(named) == (*COLUMNS, "bits_per_byte")
    assert named["bits_per_byte"] == pytest.approx(-row.score.logprob_sum / math.log(2) / 2)


def test_columns_are_the_published_ones() -> None:
    assert ", ".join(COLUMNS) == (
        "index, id, length, n_scored, logprob_sum, logprob_mean, perplexity, strand, "
        "n_case_folded, n_ambiguous, status"
    )


@pytest.mark.parametrize("window", [0, -1, 1, "8"])
def test_a_window_too_small_or_of_a_wrong_type(window: Any) -> None:
    with pytest.raises(InputError, match="window is"):
        score(FakeModel(), "hello", window=window)


def test_short_records_are_scored_together_and_long_ones_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyena_cpu.score.sums.GROUP_TOKENS", 20)
    model = FakeModel(**DNA)
    lengths = [5, 5, 9, 30, 0, 1, 18, 21, 2, 3]
    records = [Record(i, f"r{i}", ("ACGTN" * 9)[:n]) for i, n in enumerate(lengths)]
    told: list[tuple[int, int]] = []
    table = list(
        score_fasta(
            model,
            records,
            Setup(),
            DnaPolicy(),
            on_progress=lambda done, total: told.append((done, total)),
        )
    )
    assert [row.index for row in table] == list(range(10))
    for row, record in zip(table, records, strict=True):
        assert row.score == score(model, record.sequence)[0]
    groups = [total for done, total in told if done == 0]
    assert groups == [19, 30, 19, 21, 5]
    assert told[-1] == (5, 5)
    # Nothing is scored twice, and what was done before is not scored at all.
    model = FakeModel(**DNA)
    rest = list(score_fasta(model, records, Setup(), DnaPolicy(), skip=8))
    assert rest == table[8:]
    assert model.calls == ["each 2"]


def test_groups_fall_back_to_single_records_to_name_the_one_at_fault() -> None:
    class Small(FakeModel):
        def token_logprobs_each(self, sequences: Any) -> Any:
            if sum(map(len, sequences)) > 12:
                raise LimitError("too much together")
            return super().token_logprobs_each(sequences)

        def token_logprobs(self, ids: Any) -> Any:
            if len(ids) > 8:
                raise LimitError("too long alone")
            return super().token_logprobs(ids)

    records = [Record(i, f"r{i}", "ACGTACGTACGT"[:n]) for i, n in enumerate([4, 10, 4, 8])]
    table = list(score_fasta(Small(**DNA), records, Setup(), DnaPolicy()))
    assert [row.status for row in table] == ["ok", "error: too long alone", "ok", "ok"]
    poisoned = FakeModel(**DNA, poison=5)
    rows = score_fasta(poisoned, records, Setup(), DnaPolicy())
    assert next(rows).status == "ok"
    with pytest.raises(NumericError, match=r"record 2 \('r1'\).*not finite"):
        next(rows)


def test_rows_before_a_damaged_place_come_out() -> None:
    def damaged() -> Any:
        yield Record(0, "a", "ACGT")
        yield Record(1, "b", "ACG")
        raise InputError("x.fa: cannot be read to its end")

    rows = score_fasta(FakeModel(**DNA), damaged(), Setup(), DnaPolicy())
    assert [next(rows).id, next(rows).id] == ["a", "b"]
    with pytest.raises(InputError, match="cannot be read to its end"):
        next(rows)


def test_many_texts_are_scored_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyena_cpu.score.sums.GROUP_TOKENS", 10)
    model = FakeModel()
    texts = ["hello", "", "x", "four", "a long one of many letters", "end"]
    together = score(model, texts)
    assert model.calls == ["each 2", "each 1", "each 1"]  # one of "" and "x" has nothing to score
    assert together == [score(model, text)[0] for text in texts]
