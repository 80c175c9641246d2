"""Hits in text, worked by hand, and what a report makes of them."""

from __future__ import annotations

import csv
import json
import math
import pickle
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

import hyena_cpu
from hyena_cpu import InputError, NumericError
from hyena_cpu.cli import main
from hyena_cpu.config import TokenizerConfig
from hyena_cpu.recall import LARGEST_BIN, Counts, Tally, bins, count, distances, report, span, tally
from hyena_cpu.recall.report import slope
from hyena_cpu.score import Setup
from hyena_cpu.weights import save_folder

IDS = np.array([0, 1, 2, 0, 1, 3, 1, 2, 1], np.int32)
# Bigrams that end at 4, (0, 1), and at 7, (1, 2), were there before, 3 and 5 tokens back.


class Teller:
    """Gives token t of a window the log-probability falling * t + level, whatever it is."""

    def __init__(self, falling: float, level: float = 0.0, vocab_size: int = 4) -> None:
        self.falling, self.level, self.vocab_size = falling, level, vocab_size
        self.name, self.max_length, self.config = "teller", None, toy.CAUSAL["order2"]

    def token_logprobs(self, ids: np.ndarray) -> np.ndarray:
        return self.falling * np.arange(1, len(ids)) + self.level


FALLING, FLAT = Teller(-0.1), Teller(0.0, -0.2)


def counted(*models: Teller, setup: Setup | None = None, **options: Any) -> Tally:
    return tally(models, IDS, setup or Setup(), **options)  # type: ignore[arg-type]


def lines(found: Tally, *names: str) -> dict[tuple[str, str], Any]:
    return {(line.model, line.slice): line for line in report(found, names).lines}


def test_hits_by_hand() -> None:
    assert distances(IDS, 4).tolist() == [0, 0, 0, 0, 3, 0, 0, 5, 0]
    assert distances(np.array([7, 7, 7, 7]), 8).tolist() == [0, 0, 1, 1]  # may share a token
    for short in ([], [1], [1, 2]):
        assert not distances(np.array(short, np.int32), 4).any()
    assert bins(np.array([0, 1, 2, 3, 4, 7, 8, 1 << 40])).tolist() == [0, 1, 2, 2, 3, 3, 4, 41]
    assert [span(k) for k in (1, 2, 4)] == [(1, 1), (2, 3), (8, 15)]


def test_hits_of_long_random_text(rng: np.random.Generator) -> None:
    ids = rng.integers(0, 12, 700)
    last: dict[tuple[int, int], int] = {}
    for t, found in enumerate(distances(ids, 12)):
        if t:
            pair = int(ids[t - 1]), int(ids[t])
            assert found == (t - last[pair] if pair in last else 0)
            last[pair] = t
    assert len(last) > 100


def test_report_by_hand() -> None:
    found = counted(FALLING, FLAT)
    by = lines(found, "falling", "flat")
    hits, others, everything = (by["falling", name] for name in ("hits", "others", "all"))
    assert [line.score.n_scored for line in (hits, others, everything)] == [2, 6, 8]
    assert hits.score.logprob_mean == pytest.approx(-(0.4 + 0.7) / 2)
    assert others.score.logprob_mean == pytest.approx(-2.5 / 6)
    assert everything.score.logprob_mean == pytest.approx(-3.6 / 8)
    assert hits.score.perplexity == pytest.approx(math.exp(0.55))
    assert (hits.share, others.share, everything.share) == (0.25, 0.75, 1.0)
    # The flat model leads by 2.0 nats in all, by 0.7 on the hits.
    assert hits.gap_share == pytest.approx(0.35)
    assert others.gap_share == pytest.approx(0.65)
    assert everything.gap_share == 1.0
    assert by["flat", "hits"].score.logprob_mean == pytest.approx(-0.2)
    assert by["flat", "hits"].gap_share is None
    near, far = by["falling", "hits 2-3"], by["falling", "hits 4-7"]
    assert (near.score.logprob_sum, far.score.logprob_sum) == (-0.4, pytest.approx(-0.7))
    assert report(found, ["a", "b"]).distances == [(2, 3, 1), (4, 7, 1)]


def test_gap_where_the_better_model_is_worse_on_hits() -> None:
    class Forgetful(Teller):
        def token_logprobs(self, ids: np.ndarray) -> np.ndarray:
            found = np.full(len(ids) - 1, -0.1)
            found[[3, 6]] = -0.3  # the hits
            return found

    by = lines(counted(Forgetful(0), FLAT), "m", "a")  # it leads by 0.6 - 0.2
    assert by["m", "hits"].gap_share == 1.0
    by = lines(counted(FLAT, Forgetful(0)), "m", "a")
    assert by["m", "hits"].gap_share == pytest.approx(-0.2 / 0.4)
    same = lines(counted(FLAT, FLAT), "m", "a")
    assert same["m", "hits"].gap_share is None
    alone = lines(counted(FLAT), "m")
    assert alone["m", "all"].gap_share is None


def test_frequent_bigrams_are_no_hits() -> None:
    counts = count([np.array([0, 1, 0, 1, 2])], 4)  # (0, 1) twice, (1, 0) and (1, 2) once
    assert counts.of(IDS).tolist() == [0, 2, 1, 0, 2, 0, 0, 1, 0]
    for threshold, hits in ((1, 0), (2, 1), (3, 2)):
        found = counted(FALLING, counts=counts, threshold=threshold)
        assert found.counts[1:].sum() == hits
        assert found.counts.sum() == 8
    with pytest.raises(InputError, match="counts are of 5 tokens, but teller has 4"):
        counted(FALLING, counts=count([IDS], 5))


def test_a_hit_lies_in_what_the_model_sees() -> None:
    # Windows of 6: tokens 0 .. 5, then 5 .. 8, where (1, 2) has no earlier one.
    found = counted(FALLING, setup=Setup(window=6))
    assert (found.counts[:3].tolist(), found.longest) == ([7, 0, 1], 6)
    # With a stride of 2 windows overlap: the last one sees 3 .. 8, and the one before 1 .. 6.
    found = counted(FALLING, setup=Setup(window=6, stride=2))
    assert found.counts[:4].tolist() == [7, 0, 1, 0]
    found = counted(FALLING, setup=Setup(window=8, stride=1))
    assert found.counts[:4].tolist() == [6, 0, 1, 1]


def test_counts_over_several_texts(rng: np.random.Generator, tmp_path: Path) -> None:
    texts = [rng.integers(0, 9, n) for n in (400, 1, 0, 300)]
    counts = count(texts, 9)
    assert counts.tokens == 701
    for a in range(9):
        for b in range(9):
            times = sum(int(((t[:-1] == a) & (t[1:] == b)).sum()) for t in texts)
            assert counts.of(np.array([a, b])).tolist() == [0, times]
    with (tmp_path / "counts.npz").open("wb") as file:
        counts.save(file)
    again = Counts.load(tmp_path / "counts.npz")
    assert (again.vocab_size, again.tokens) == (9, 701)
    assert np.array_equal(again.bigrams, counts.bigrams)
    assert np.array_equal(again.counts, counts.counts)


GOOD: dict[str, Any] = {
    "format_version": 1,
    "vocab_size": 4,
    "tokens": 5,
    "first": np.array([0, 1]),
    "second": np.array([1, 0]),
    "count": np.array([2, 1]),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 2}, "format_version is 2; this release reads 1"),
        ({"count": None}, "array 'count' is missing"),
        ({"count": np.array([2.0, 1.0])}, "array 'count' must hold whole numbers"),
        ({"vocab_size": np.array([4, 4])}, "array 'vocab_size' must be a single number"),
        ({"first": np.array([0])}, "lists of one length"),
        ({"second": np.array([1, 4])}, "a token is outside 0..3"),
        ({"first": np.array([1, 0])}, "bigrams must be in order"),
        ({"count": np.array([2, 0])}, "counts positive"),
    ],
)
def test_damaged_counts(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "counts.npz"
    np.savez(path, **{k: v for k, v in {**GOOD, **change}.items() if v is not None})
    with pytest.raises(InputError, match=message):
        Counts.load(path)


NO_COUNTS = (
    "no counts of bigrams: not an npz file, or a damaged one; give one that recall "
    "--write-counts has written"
)


def test_what_are_no_counts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        Counts.load(tmp_path / "absent.npz")
    packed = BytesIO()
    np.save(packed, np.arange(3))
    pickled = BytesIO()
    np.savez(pickled, **{**GOOD, "count": np.array([{}], object)})
    others = (b"", b"some text", b"PK\x03\x04 broken", pickle.dumps(3))
    for content in (*others, packed.getvalue(), pickled.getvalue()):
        (tmp_path / "counts.npz").write_bytes(content)
        with pytest.raises(InputError) as error:
            Counts.load(tmp_path / "counts.npz")
        assert str(error.value) == f"{tmp_path}/counts.npz: {NO_COUNTS}"


def test_no_damage_of_counts_is_an_internal_error(tmp_path: Path) -> None:
    packed = BytesIO()
    count([np.arange(200) % 7], 9).save(packed)
    good = packed.getvalue()
    for i, byte in enumerate(good):
        for other in (byte ^ 1, byte ^ 255):
            (tmp_path / "counts.npz").write_bytes(good[:i] + bytes([other]) + good[i + 1 :])
            with suppress(InputError):  # some bytes, such as those of the time, say nothing
                Counts.load(tmp_path / "counts.npz")


@pytest.mark.parametrize("power", [-0.5, -1.0, -2.0])
def test_slope_of_a_power_law(power: float) -> None:
    counts = np.zeros(LARGEST_BIN + 1, np.int64)
    for k in range(1, 13):
        low, high = span(k)
        exact = 1e9 * (np.arange(low, high + 1, dtype=np.float64) ** power).sum()
        counts[k] = round(exact)
    # Sums over a bin are no exact power of it where distances are few.
    assert slope(counts, 1 << 13) == pytest.approx(power, abs=0.04)
    counts[1:4] = 10**9  # near distances take no part
    counts[12] = 1  # nor do those that the window cuts off
    assert slope(counts, 6000) == pytest.approx(power, abs=0.04)


def test_slope_by_hand() -> None:
    counts = np.zeros(LARGEST_BIN + 1, np.int64)
    counts[4], counts[5] = 24, 12  # 3 and 0.75 per unit of distance: -2
    assert slope(counts, 64) == pytest.approx(-2)
    assert slope(counts, 61) is None  # 16..31 is not within half of it
    assert slope(np.zeros_like(counts), 1 << 20) is None


def test_numbers_that_are_not_finite() -> None:
    with pytest.raises(NumericError, match="teller: a log-probability"):
        counted(Teller(-math.inf))


# ---- the command


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recall")
    changes = {"vocab_size": 256, "logits_width": 256, "tokenizer": TokenizerConfig("bytes")}
    for name, base in {"one": "order3", "two": "attention_first", "other": "order2"}.items():
        config = replace(toy.CAUSAL[base], name=name, **changes)
        weights = toy.weights(config)
        save_folder(folder / name, weights.config, weights.tensors)
    save_folder(folder / "words", *_with_vocabulary(300))
    (folder / "text").write_bytes(b"the cat and the dog and the cat sat on the mat. " * 3)
    return folder


def _with_vocabulary(size: int) -> tuple[Any, Any]:
    changes = {"vocab_size": size, "logits_width": size, "tokenizer": TokenizerConfig("bytes")}
    weights = toy.weights(replace(toy.CAUSAL["order3"], name="words", **changes))
    return weights.config, weights.tensors


@pytest.fixture
def recall(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(home)
    monkeypatch.setenv("HYENA_CPU_THREADS", "1")

    def run(*args: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return (main(["recall", *args]), *capfd.readouterr())

    return run


def test_command(home: Path, recall: Any) -> None:
    code, out, _ = recall("text", "-m", "one", "--against", "two", "--json")
    assert code == 0
    found = json.loads(out)
    data = (home / "text").read_bytes()
    earlier = [t for t in range(2, len(data)) if data[t - 1 : t + 1] in data[:t]]
    assert (found["n_tokens"], found["n_scored"]) == (len(data), len(data) - 1)
    assert (found["threshold"], found["counted_tokens"]) == (None, None)
    scores = {}
    for name in ("one", "two"):
        logprobs = hyena_cpu.load(home / name, threads=1).token_logprobs(list(data))
        by = {line["slice"]: line for line in found["lines"] if line["model"] == name}
        scores[name] = np.concatenate([[0], logprobs])
        assert by["hits"]["n_scored"] == len(earlier)
        assert by["hits"]["logprob_mean"] == pytest.approx(scores[name][earlier].mean())
        assert by["all"]["logprob_mean"] == pytest.approx(logprobs.mean())
    lead = scores["two"] - scores["one"]
    assert found["lines"][0]["gap_share"] == pytest.approx(lead[earlier].sum() / lead.sum())
    assert sum(d["hits"] for d in found["distances"]) == len(earlier)


def test_table_equals_the_json(recall: Any) -> None:
    args = ("text", "-m", "two", "--window", "40", "--stride", "20")
    code, out, _ = recall(*args)
    assert code == 0
    want = json.loads(recall(*args, "--json")[1])
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head == list(want["lines"][0])
    assert len(rows) == len(want["lines"])
    for row, line in zip(rows, want["lines"], strict=True):
        for cell, value in zip(row, line.values(), strict=True):
            if isinstance(value, float):
                assert float(cell) == pytest.approx(value, rel=1e-9)
            else:
                assert cell == ("NA" if value is None else str(value))
    assert want["longest_window"] == 40


def test_a_csv_has_the_cells_of_the_table(home: Path, recall: Any) -> None:
    args = ("text", "-m", "one", "--against", "two")
    table = recall(*args)[1]
    assert recall(*args, "-o", "lines.csv")[0] == 0
    with (home / "lines.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [line.split("\t") for line in table.splitlines()]
    assert recall(*args, "--format", "csv")[1] == (home / "lines.csv").read_text()


def test_counts_of_a_training_text(home: Path, recall: Any) -> None:
    (home / "training").write_bytes(b"the the the the")
    assert recall("training", "text", "-m", "one", "--write-counts", "counts.npz")[0] == 0
    counts = Counts.load(home / "counts.npz")
    data = (home / "text").read_bytes()
    assert counts.tokens == 15 + len(data)
    assert counts.of(np.frombuffer(b"th", np.uint8)).tolist() == [0, 4 + data.count(b"th")]
    frequent = recall("text", "-m", "one", "--counts", "counts.npz", "--threshold", "13", "--json")
    found = json.loads(frequent[1])
    assert (found["threshold"], found["counted_tokens"]) == (13, counts.tokens)
    earlier = [t for t in range(2, len(data)) if data[t - 1 : t + 1] in data[:t]]
    rare = [t for t in earlier if counts.of(np.frombuffer(data[t - 1 : t + 1], np.uint8))[1] < 13]
    assert 0 < len(rare) < len(earlier)
    assert found["lines"][0]["n_scored"] == len(rare)
    assert (
        json.loads(recall("text", "-m", "one", "--counts", "counts.npz", "--json")[1])["threshold"]
        == 1250
    )


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("text", "text", "-m", "one"), 2, "recall scores one text, 2 were given"),
        (("text", "-m", "one", "--threshold", "9"), 2, "give --counts"),
        (
            ("text", "-m", "one", "--write-counts", "x", "--window", "9"),
            2,
            "--window has no effect",
        ),
        (("text", "-m", "one", "--write-counts", "x", "--json"), 2, "--json has no effect"),
        (("text", "--write-counts", "x", "--max-memory", "1G"), 2, "--max-memory has no effect"),
        (("text", "-m", "one", "--against", "words"), 2, "have different tokens for text"),
        (("text", "-m", "one", "--counts", "absent.npz"), 4, "absent.npz: cannot be read"),
        (("text", "-m", "tiny-dna"), 2, "recall is for models of text, and tiny-dna reads DNA"),
        (("absent", "-m", "one"), 4, "absent"),
        (("text", "-m", "one", "--stride", "9"), 2, "--stride needs a window"),
        (("text", "-m", "one", "--bos"), 3, "begin"),
        ((), 2, "the following arguments are required: FILE"),
    ],
)
def test_refusals(recall: Any, args: tuple[str, ...], code: int, message: str) -> None:
    got, out, err = recall(*args)
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_counts_of_another_vocabulary(home: Path, recall: Any) -> None:
    with (home / "words.npz").open("wb") as file:
        count([np.arange(5)], 300).save(file)
    code, _, err = recall("text", "-m", "one", "--counts", "words.npz")
    assert code == 2
    assert "--counts words.npz is of 300 tokens, but one has 256" in err


def test_the_smaller_limit_is_the_window(home: Path, recall: Any) -> None:
    long = home / "long"
    long.write_bytes((home / "text").read_bytes() * 4)
    found = json.loads(recall("long", "-m", "one", "--against", "two", "--json")[1])
    assert found["longest_window"] == toy.LENGTH < found["n_tokens"]
