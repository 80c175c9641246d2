"""Rows of multi-query associative recall, and accuracy on them.

Fixtures: rows of the authors' generator, see golden/zoology.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy
from conftest import GOLDEN

from hyena_cpu import InputError, NumericError, plots
from hyena_cpu.cli import main
from hyena_cpu.mqar import UNSCORED, Setting, accuracy, evaluate, generate
from hyena_cpu.weights import save_folder

STEM = GOLDEN / "zoology/mqar_data"
CASES = json.loads(STEM.with_suffix(".config.json").read_text())


def setting(case: dict[str, Any]) -> Setting:
    names = ("vocab_size", "input_seq_len", "num_kv_pairs", "power_a", "random_non_queries")
    return Setting(*(case[name] for name in names))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["index"]))
def test_rows_are_those_of_the_original(case: dict[str, Any]) -> None:
    stored = np.load(STEM.with_suffix(".npz"))
    fill_seed = case.get("torch_manual_seed")
    inputs, labels = generate(setting(case), case["num_examples"], case["seed"], fill_seed)
    assert inputs.dtype == labels.dtype == np.int64
    assert np.array_equal(inputs, stored[f"inputs_{case['index']}"])
    assert np.array_equal(labels, stored[f"labels_{case['index']}"])


def test_worked_example() -> None:
    inputs, labels = generate(Setting(20, 16, 2), 4, seed=0)
    assert inputs[0].tolist() == [8, 16, 3, 14, 0, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0]
    want = [UNSCORED] * 16
    want[6], want[8] = 16, 14
    assert labels[0].tolist() == want


def test_distances_follow_the_power_law() -> None:
    want = [0.40536575, 0.20409265, 0.13661457, 0.10275611, 0.08238853, 0.06878240]
    found = Setting(20, 16, 2).distance_probabilities()
    np.testing.assert_allclose(found, want, atol=5e-9)
    uniform = Setting(20, 16, 2, power_a=1.0).distance_probabilities()
    np.testing.assert_allclose(uniform, np.full(6, 1 / 6), rtol=1e-14)


@pytest.mark.parametrize("fill", [False, True])
def test_what_a_row_is_made_of(fill: bool) -> None:
    kind = Setting(100, 40, 6, random_non_queries=fill)
    inputs, labels = generate(kind, 50, seed=3)
    plain, _ = generate(replace(kind, random_non_queries=False), 50, seed=3)
    assert np.array_equal(inputs[plain != 0], plain[plain != 0])
    keys, values = inputs[:, 0:12:2], inputs[:, 1:12:2]
    assert keys.min() >= 1
    assert keys.max() < 50 <= values.min()
    for row, label, names, answers in zip(inputs, labels, keys, values, strict=True):
        assert len(set(names)) == len(set(answers)) == 6
        (asked,) = np.nonzero(label != UNSCORED)
        assert all(asked % 2 == 0)
        assert dict(zip(row[asked], label[asked], strict=True)) == dict(
            zip(names, answers, strict=True)
        )
    assert (inputs[plain == 0] != 0).any() == fill


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 63}, "length is 63, must be even"),
        ({"length": 0}, "length is 0, must be at least 2"),
        ({"vocab_size": 64}, "vocab_size is 64, must be larger than length 64"),
        ({"pairs": 17}, "pairs is 17, must be at most a quarter of length 64"),
        ({"pairs": 0}, "pairs is 0, must be at least 1"),
        ({"vocab_size": 1 << 28}, "vocab_size is 268435456, must be at most 134217728"),
        ({"power_a": 0.0}, "power_a is 0.0, must be positive"),
        ({"power_a": float("nan")}, "power_a is nan, must be positive"),
        ({"power_a": 5e-324}, "power_a is 5e-324, must be at least 1e-290"),
        ({"power_a": 208}, "power_a is 208, must be at most 207 for 4 pairs in length 64"),
        ({"power_a": float("inf")}, "power_a is inf, must be at most 207"),
    ],
)
def test_rules_of_a_setting(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setting(**{"vocab_size": 128, "length": 64, "pairs": 4, **change})


@pytest.mark.parametrize(
    ("length", "pairs", "power_a"),
    [(64, 4, 207), (4, 1, 996), (6, 1, 996), (4096, 4, 90), (4096, 4, 1e-290), (64, 16, 1e-290)],
)
def test_the_extremes_of_the_power_law(length: int, pairs: int, power_a: float) -> None:
    kind = Setting(8192, length, pairs, power_a)
    assert np.isfinite(kind.distance_probabilities()).all()
    assert (kind.distance_probabilities() > 0).all()
    generate(kind, 2, seed=0)


@pytest.mark.parametrize(
    ("rows", "seed", "message"),
    [
        (0, 0, "num_examples is 0"),
        (1 << 22, 0, "num_examples x length is 268435456 tokens, must be at most 134217728"),
        (1, -1, "seed is -1"),
        (1, 1 << 32, "seed is 4294967296"),
    ],
)
def test_counts_and_seeds_out_of_range(rows: int, seed: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(Setting(), rows, seed)


class Reader:
    """Knows the first `known` pairs of a row by heart, and answers 1 to all other keys."""

    def __init__(self, pairs: int, known: int, vocab_size: int = 40) -> None:
        self._pairs, self._known = pairs, known
        self.config = replace(toy.CAUSAL["order2"], d_model=24)
        self.name, self.num_parameters, self.vocab_size = "reader", 7, vocab_size

    def logits(self, ids: np.ndarray) -> np.ndarray:
        answers = dict(zip(ids[0 : 2 * self._known : 2], ids[1 : 2 * self._known : 2], strict=True))
        rows = np.zeros((len(ids), 40), np.float32)
        rows[np.arange(len(ids)), [answers.get(i, 1) for i in ids]] = 1
        return rows


@pytest.mark.parametrize("known", range(5))
def test_accuracy_of_known_answers(known: int) -> None:
    kind = Setting(40, 32, 4)
    found = evaluate(Reader(4, known), kind, 30, seed=5)  # type: ignore[arg-type]
    assert found.accuracy == known / 4
    assert (found.chance, found.length, found.pairs, found.rows) == (0.25, 32, 4, 30)
    assert (found.mixers, found.width, found.parameters) == ("hyena", 24, 7)


def test_accuracy_is_the_mean_of_the_rows() -> None:
    inputs = np.array([[5, 30, 6, 31, 5, 6], [5, 30, 6, 31, 6, 0]])
    labels = np.full_like(inputs, UNSCORED)
    labels[0, 4:], labels[1, 4] = (30, 31), 31
    one = Reader(2, 1)  # right on 1 of 2, and on 0 of 1
    assert accuracy(one, inputs, labels) == 0.25  # type: ignore[arg-type]


def test_what_has_no_accuracy() -> None:
    inputs, labels = generate(Setting(40, 32, 4), 2, seed=0)
    with pytest.raises(InputError, match="vocab_size is 41, must be at most the 40 tokens"):
        evaluate(Reader(4, 4), Setting(41, 32, 4), 2, seed=0)  # type: ignore[arg-type]
    labels[1] = UNSCORED
    with pytest.raises(InputError, match="row 1 has no label"):
        accuracy(Reader(4, 4), inputs, labels)  # type: ignore[arg-type]
    broken = Reader(4, 4)
    broken.logits = lambda ids: np.full((len(ids), 40), np.nan)  # type: ignore[method-assign]
    with pytest.raises(NumericError, match="a logit of row 0 is not finite"):
        accuracy(broken, inputs, labels)  # type: ignore[arg-type]


# ---- the command


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mqar")
    for name, config in {"one": toy.CAUSAL["order2"], "two": toy.CAUSAL["attention_first"]}.items():
        weights = toy.weights(replace(config, name=name))
        save_folder(folder / name, weights.config, weights.tensors)
    return folder


@pytest.fixture
def mqar(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(home)

    def run(*args: str) -> tuple[int, str, str]:
        capfd.readouterr()
        return (main(["mqar", *args]), *capfd.readouterr())

    return run


ROWS = ("--length", "16", "--pairs", "2", "--num-examples", "4")


def test_data_command(home: Path, mqar: Any) -> None:
    inputs, labels = generate(Setting(20, 16, 2), 4, seed=0)
    code, out, _ = mqar("data", *ROWS, "--vocab-size", "20")
    found = json.loads(out)
    assert code == 0
    assert (found["inputs"], found["labels"]) == (inputs.tolist(), labels.tolist())
    assert (found["vocab_size"], found["num_examples"], found["seed"]) == (20, 4, 0)
    assert mqar("data", *ROWS, "--vocab-size", "20", "-o", "rows.npz")[0] == 0
    stored = np.load(home / "rows.npz")
    assert np.array_equal(stored["inputs"], inputs)
    assert np.array_equal(stored["labels"], labels)
    assert stored["power_a"] == 0.01
    fill = (*ROWS, "--vocab-size", "256", "--random-non-queries", "--seed", "9")
    want, _ = generate(Setting(256, 16, 2, random_non_queries=True), 4, seed=9)
    assert json.loads(mqar("data", *fill)[1])["inputs"] == want.tolist()


def test_eval_command(home: Path, mqar: Any) -> None:
    both = ("eval", "-m", "one", "--also", "two", "--length", "16,20", "--pairs", "2,4")
    code, out, _ = mqar(*both, "--num-examples", "5", "--seed", "3")
    head, *lines = [line.split("\t") for line in out.splitlines()]
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert code == 0
    assert [(r["model"], r["length"], r["pairs"], r["chance"]) for r in rows] == [
        (name, length, pairs, chance)
        for name in ("one", "two")
        for length, pairs, chance in (("16", "2", "0.5"), ("20", "4", "0.25"))
    ]
    model = toy.model(toy.CAUSAL["attention_first"])
    inputs, labels = generate(Setting(toy.VOCAB, 20, 4), 5, seed=3)
    assert float(rows[3]["accuracy"]) == pytest.approx(accuracy(model, inputs, labels))
    assert rows[3]["mixers"] == "attention, hyena"
    assert {row["random_non_queries"] for row in rows} == {"0"}
    filled = mqar(*both, "--num-examples", "5", "--seed", "3", "--random-non-queries", "--json")
    inputs, labels = generate(Setting(toy.VOCAB, 20, 4, random_non_queries=True), 5, seed=3)
    found = json.loads(filled[1])[3]
    assert found["random_non_queries"] == 1
    assert found["accuracy"] == pytest.approx(accuracy(model, inputs, labels))
    assert mqar(*both, "--num-examples", "5", "--seed", "3", "-o", "table.json")[0] == 0
    assert [row["model"] for row in json.loads((home / "table.json").read_text())] == [
        row["model"] for row in rows
    ]


def test_a_length_goes_with_several_pairs(mqar: Any) -> None:
    code, out, _ = mqar("eval", "-m", "one", "--length", "24", "--pairs", "2,6", "--json")
    assert code == 0
    assert [(row["length"], row["pairs"]) for row in json.loads(out)] == [(24, 2), (24, 6)]


def test_eval_picture(home: Path, mqar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    kept: list[Any] = []
    save = plots._save
    monkeypatch.setattr(
        plots, "_save", lambda figure, path: (kept.append(figure), save(figure, path))
    )
    rows = ("--length", "16,20", "--pairs", "2", "--num-examples", "3")
    args = ("eval", "-m", "one", "--also", "two", *rows, "--plot", "recall.svg", "--json")
    code, out, _ = mqar(*args)
    assert code == 0
    assert (home / "recall.svg").read_text().startswith("<?xml")
    assert [panel.get_title() for panel in kept[0].axes] == [
        "length 16, 2 pairs",
        "length 20, 2 pairs",
    ]
    for panel, length in zip(kept[0].axes, (16, 20), strict=True):
        want = {r["mixers"]: r["accuracy"] for r in json.loads(out) if r["length"] == length}
        lines = {line.get_label(): line.get_data() for line in panel.lines[:-1]}
        assert {name: (list(x), list(y)) for name, (x, y) in lines.items()} == {
            name: ([toy.WIDTH], [value]) for name, value in want.items()
        }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "data|eval"),
        (("bake",), "invalid choice: 'bake'"),
        (("data", "--bogus"), "unrecognized arguments: --bogus"),
        (("data", "--length", "15"), "--length is 15, must be even"),
        (("data", "--pairs", "17"), "--pairs is 17, must be at most a quarter of length 64"),
        (("data", "--vocab-size", "64"), "--vocab-size is 64, must be larger than length 64"),
        (("data", "--power-a", "-1"), "--power-a is -1.0, must be positive"),
        (("data", "--power-a", "208"), "--power-a is 208.0, must be at most 207 for 4 pairs"),
        (("data", "--seed", "4294967296"), "must be a whole number, at most 4294967295"),
        (("data", "--length", "16,32"), "argument --length: '16,32' must be a whole number"),
        (("data", "--format", "npz"), "give -o FILE"),
        (("data", "-o", "rows.txt"), "the suffix names none of json, npz"),
        (("eval",), "mqar eval needs a model"),
        (("eval", "-m", "one", "--length", "16,20", "--pairs", "1,2,3"), "give as many, or one"),
        (("eval", "-m", "one", "--vocab-size", "30", *ROWS), "at most the 29 tokens of one"),
        (("eval", "-m", "one", "--length", "16,21", "--pairs", "2"), "--length is 21, must be"),
        (("eval", "-m", "one", "--plot", "x.gif"), "must end in one of png"),
    ],
)
def test_refusals(mqar: Any, args: tuple[str, ...], message: str) -> None:
    code, out, err = mqar(*args)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_resuming_an_evaluation(home: Path, mqar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import hyena_cpu.mqar as package

    args = ("eval", "-m", "one", "--also", "two", *ROWS, "-o", "resumed.tsv")
    evaluated = []

    def breaking(model: Any, *rest: Any) -> Any:
        if model.name == "two" and not evaluated:
            raise KeyboardInterrupt
        return evaluate(model, *rest)

    monkeypatch.setattr(package, "evaluate", breaking)
    assert mqar(*args)[0] == 130
    evaluated.append(True)
    assert mqar(*args, "--resume")[0] == 0
    assert mqar(*args[:-2])[1] == (home / "resumed.tsv").read_text()
