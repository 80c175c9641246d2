"""`hyena-cpu bench`: rows, forms, refusals and Ctrl-C. Nothing depends on how long a run takes."""

from __future__ import annotations

import csv
import io
import json
import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy
from conftest import PACKAGE_HOME
from freed import give_back_freed
from in_process import run_cli
from test_cli import assert_one_line, environment, started

from hyena_cpu import LimitError, ModelError, config_json
from hyena_cpu.bench_runs import kinds, machine, mixer_rows, model_rows, recall_rows
from hyena_cpu.bench_runs.mixer_rows import Crossover, Setting
from hyena_cpu.bench_runs.model_rows import Test as Case
from hyena_cpu.bench_runs.timing import Times, in_turn, repeat
from hyena_cpu.planner import plan

SMALL = ("-p", "40", "-g", "3", "-r", "2", "-t", "1")


def bench(*args: str) -> Any:
    """A run that succeeds, and says nothing beside its table."""
    run = run_cli("bench", *args)
    assert (run.returncode, run.stderr) == (0, b"")
    return run.stdout.decode()


# ---- rows of a model


def test_recall_shows_what_attention_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall_rows, "PROMPT", Case("pp", 16))
    monkeypatch.setattr(recall_rows, "STEPS", Case("tg", 4))
    monkeypatch.setattr(recall_rows, "DEPTH", Case("tg", 4, 64))
    found = json.loads(bench("--recall", "-r", "1", "--json"))
    rows = {row["model"]: row for row in found["rows"]}
    assert len(rows) == 4
    assert (found["length"], found["pairs"], found["rows"][0]["chance"]) == (64, 4, 0.25)
    for name, row in rows.items():
        solved = "attention" in row["mixers"]
        assert row["accuracy"] > 0.99 if solved else row["accuracy"] < 0.35, name
        assert min(row["prompt_rate"], row["step_rate"], row["deep_step_rate"]) > 0
    monkeypatch.setattr(recall_rows, "ROWS", 10)
    lines = bench("--recall", "-r", "1", "-t", "1").splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == list(rows)


def test_json_holds_every_repetition_and_what_they_belong_to() -> None:
    found = json.loads(bench(*SMALL, "--json", "-d", "0,7"))
    names = ["pp40", "tg3", "pp40 @ d7", "tg3 @ d7"]
    assert [row["test"] for row in found["rows"]] == names
    assert found["numerics"]["threads"] == 1
    assert (found["model"], found["repetitions"], found["interrupted"]) == ("tiny-en", 2, False)
    assert found["machine"]["numpy"] == np.__version__
    for row in found["rows"]:
        tokens = row["prompt_tokens"] or row["gen_tokens"]
        rates = [tokens / s for s in row["each_seconds"]]
        assert len(rates) == 2
        assert row["each_tokens_per_second"] == pytest.approx(rates)
        assert row["planned_bytes"] > 0


def test_the_table_has_a_line_per_row() -> None:
    lines = bench(*SMALL).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:4]]
    assert cells[0][:3] == ["test", "tokens/s", "each repetition"]
    assert [row[0] for row in cells[2:]] == ["pp40", "tg3"]
    assert all(len(row[2].split()) == 2 for row in cells[2:])
    assert lines[4] == ""
    assert lines[5].startswith("version 0.1.0, model tiny-en, ")


def test_lines_and_csv_repeat_what_rows_share(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in bench(*SMALL, "--format", "jsonl").splitlines()]
    assert [line["test"] for line in lines] == ["pp40", "tg3"]
    assert {(line["model"], line["threads"], line["dtype"]) for line in lines} == {
        ("tiny-en", 1, "float32")
    }
    out = tmp_path / "rows.csv"
    assert bench(*SMALL, "-o", str(out)) == ""  # the suffix names the format
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [row["test"] for row in rows] == ["pp40", "tg3"]
    assert len(rows[0]["each_seconds"].split()) == 2


def test_a_length_of_nought_is_no_row() -> None:
    tests = model_rows.tests([0, 5], [0], [0, 9])
    assert [test.name for test in tests] == ["pp5", "pp5 @ d9"]


def test_tests_run_what_they_are_called() -> None:
    """Tokens taken in by each call, and where the sequence ends."""
    model = toy.model(toy.CAUSAL["finite_hybrid"])
    seen = []
    prefill, step = model.prefill, model.step
    model.prefill = lambda ids, *a, **k: seen.append(len(ids)) or prefill(ids, *a, **k)
    model.step = lambda state, token: seen.append(state.position) or step(state, token)
    row = model_rows.measure(model, Case("tg", 3, 5), 2, 0, None)
    assert seen == [5, 5, 6, 7, 5, 5, 6, 7, 5, 6, 7]
    assert (len(row.times.each), row.measured_bytes) == (2, None)
    seen.clear()
    model_rows.measure(model, Case("pp", 3, 5), 2, 0, None)
    assert seen == [5, 3, 5, 3, 3]


def test_memory_measured_is_that_of_the_run() -> None:
    """Rows of a wide model: at least the residual stream, at most a little above the plan."""
    if machine.resident() is None or not machine.forget_peak():
        pytest.skip("this system does not tell what is resident")
    model = kinds.build("hyena", 256, 20_000, threads=1)
    give_back_freed()
    row = model_rows.measure(model, Case("pp", 20_000), 1, 0, machine.resident())
    assert row.measured_bytes is not None
    assert 4 * 256 * 20_000 <= row.measured_bytes <= 1.25 * row.planned_bytes
    assert row.planned_bytes == plan(model, 20_000, logits_rows=1).total


# ---- refusals


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["-p", "0", "-g", "0"], 2, "nothing to measure"),
        (["-p", "12,x"], 2, "'x' must be a whole number"),
        (["-r", "0"], 2, "must be a whole number, at least 1"),
        (["--width", "64"], 2, "--width acts with --mixer only"),
        (["--json", "--format", "csv"], 2, "exclude each other"),
        (["-p", "9", "--max-memory", "1K"], 6, "max-memory is 1.0 KiB"),
        (["-p", "2147483647"], 2, "must be a whole number, at most 536870912"),
        (["-p", "536870912", "-d", "536870912"], 6, "pp536870912 @ d536870912 needs about"),
        (["--mixer", "dance"], 2, "'dance' is no kind; known: all, hyena"),
        (["--mixer", "all", "-p", "0"], 2, "leaves a layer nothing to do"),
        (["--mixer", "all", "-g", "4"], 2, "--gen-tokens cannot act: --mixer is about no model"),
        (["--recall", "-m", "tiny-en"], 2, "--model cannot act: --recall has models and lengths"),
        (["--recall", "--mixer", "all"], 2, "--mixer cannot act: --recall has models and lengths"),
        (["--recall", "-p", "9"], 2, "--prompt-tokens cannot act: --recall has models and lengths"),
        (["--mixer", "all", "-m", "tiny-en"], 2, "--model cannot act: --mixer is about no model"),
        (["--mixer", "all", "--width", "50"], 2, "must be a multiple of 16"),
        (["--mixer", "hyena", "-p", "536870912"], 6, "the most taps of a filter"),
        (["--mixer", "hyena", "-p", "99", "--max-memory", "1K"], 6, "max-memory is 1.0 KiB"),
    ],
)
def test_refusals(args: list[str], code: int, message: str) -> None:
    assert_one_line(run_cli("bench", *args), code, message)


def test_lengths_above_the_models_are_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = toy.dna_folder(tmp_path / "m", longest=100)
    run = run_cli("bench", "-m", str(folder), "-p", "8", "-g", "60", "-d", "41")
    assert_one_line(run, 6, "the sequence has 101 tokens but dna-toy takes at most 100")


def test_models_without_a_next_token_are_refused() -> None:
    with pytest.raises(ModelError, match="bench measures language models"):
        model_rows.check(toy.model(toy.BIDIRECTIONAL), Case("pp", 4))


def test_ctrl_c_prints_the_rows_that_are_complete() -> None:
    args = ["bench", "-p", "2", "-g", "200000", "-r", "3", "--format", "jsonl"]
    run = interrupted(args, rows=1)
    (row,) = [json.loads(line) for line in run.splitlines()]
    assert row["test"] == "pp2"


def test_ctrl_c_completes_the_document(tmp_path: Path) -> None:
    code = (
        "import sys; from hyena_cpu.bench_runs import model_rows; from hyena_cpu.cli import main\n"
        "measure = model_rows.measure\n"
        "def once(model, test, *rest):\n"
        "    if test.kind == 'tg': raise KeyboardInterrupt\n"
        "    return measure(model, test, *rest)\n"
        "model_rows.measure = once; sys.exit(main(sys.argv[1:]))"
    )
    for form in ("json", "md"):
        out = tmp_path / form
        args = ["bench", *SMALL, "--format", form, "-o", str(out)]
        run = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            cwd=PACKAGE_HOME,
            env=environment(),
            timeout=120,
        )
        assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")
    found = json.loads((tmp_path / "json").read_text())
    assert found["interrupted"] is True
    assert [row["test"] for row in found["rows"]] == ["pp40"]
    assert (tmp_path / "md").read_text().endswith("interrupted: the rows that are complete\n")


def interrupted(args: list[str], rows: int) -> str:
    """Standard output of a run that gets Ctrl-C after so many lines."""
    with started(*args, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rows)]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    return "".join(lines) + rest


# ---- mixers


def test_every_kind_has_a_line() -> None:
    """A mixer that the package knows and `bench --mixer all` leaves out: add it to KINDS."""
    assert sorted(kinds.KINDS) == sorted(config_json._MIXERS)


@pytest.mark.parametrize("kind", kinds.KINDS)
@pytest.mark.parametrize("width", [48, 128])
def test_layers_run_on_sensible_numbers(kind: str, width: int) -> None:
    model = kinds.build(kind, width, 200, threads=1)
    assert model.config.layers[0].mixer.kind == kind
    hidden = model.hidden(np.arange(200) % kinds.VOCAB, layer=1)
    assert np.isfinite(hidden).all()
    assert 1e-3 < np.abs(hidden).mean() < 1e3
    row = mixer_rows.measure(Setting(width, 1, 2), kind, 200)
    assert len(row.times.each) == 2
    assert row.state_bytes == model.blocks[0].mixer.state_bytes(200)
    assert row.operations > 0


def test_operations_by_hand() -> None:
    """Hyena: 4 D^2 weights and 3 short taps on 3 D channels, D convolutions. Attention: 4 D^2
    weights and pairs. long_conv: 2 D^2. h3_conv: 4 D^2, 2 D convolutions."""
    D, N = 64, 128
    fft = 2 * 2.5 * 256 * 8  # a convolution: two transforms of 256 points
    count = {
        kind: kinds.operations(kind, kinds.build(kind, D, N, threads=1), N)
        for kind in ("hyena", "attention", "long_conv", "h3_conv")
    }
    assert count["hyena"] == 2 * N * (4 * D * D + 9 * D) + D * fft
    assert count["attention"] == 2 * N * 4 * D * D + 4 * D * (N * (N + 1) / 2)
    assert count["long_conv"] == 2 * N * 2 * D * D + D * fft
    assert count["h3_conv"] == 2 * N * 4 * D * D + 2 * D * fft


def test_mixers_as_json() -> None:
    found = json.loads(bench("--mixer", "attention,hyena", "-p", "32,8", "-r", "1", "--json"))
    assert [(row["mixer"], row["length"]) for row in found["rows"]] == [
        ("attention", 32),
        ("hyena", 32),
        ("attention", 8),
        ("hyena", 8),
    ]
    assert found["rows"][0]["n_over_log2_n"] == 32 / math.log2(32)
    assert found["width"] == 256
    names = [row["crossover"] for row in found["crossovers"]]
    assert names == ["direct sums and FFT", "attention and hyena"]
    assert all(row["lengths"] == [16, 32] for row in found["crossovers"])


def test_mixers_as_a_table() -> None:
    text = bench("--mixer", "hyena", "-p", "16", "-r", "1", "--width", "32")
    assert [line.split("|")[1].strip() for line in text.splitlines()[:3]][::2] == ["mixer", "hyena"]
    assert "width 32" in text
    assert "FFT is" in text


def test_csv_holds_rows_alone() -> None:
    text = bench("--mixer", "hyena", "-p", "16", "-r", "1", "--width", "32", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["mixer"], row["length"], row["width"]) == ("hyena", "16", "32")


def test_all_is_every_kind() -> None:
    text = bench("--mixer", "all", "-p", "8", "-r", "1", "--width", "16", "--format", "csv")
    assert [row["mixer"] for row in csv.DictReader(io.StringIO(text))] == list(kinds.KINDS)


def test_a_crossover_is_where_the_second_wins_for_good() -> None:
    def at(*pairs: tuple[float, float]) -> int | None:
        lengths = tuple(16 << k for k in range(len(pairs)))
        first, second = zip(*pairs, strict=True)
        return Crossover("a", "b", lengths, first, second).at

    assert at((1, 2), (2, 1), (3, 1)) == 32
    assert at((2, 1), (1, 2), (3, 1)) == 64
    assert at((2, 1), (2, 1)) == 16
    assert at((2, 1), (2, 2)) is None


# ---- timing


def test_medians_and_turns() -> None:
    assert Times(9.0, (3.0, 1.0, 2.0)).median == 2.0
    calls: list[str] = []
    times = repeat(lambda: calls.append("a"), 3)
    assert (len(times.each), len(calls)) == (3, 4)
    calls.clear()
    a, b = in_turn([lambda: calls.append("a"), lambda: calls.append("b")], 2)
    assert "".join(calls) == "ababab"
    assert len(a.each) == len(b.each) == 2


def test_more_than_is_free_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory", lambda _name: 1 << 20)
    model_rows.refuse_above_free(1 << 20, "pp1")
    with pytest.raises(LimitError, match=r"pp1 needs about 2.0 MiB and 1.0 MiB are free"):
        model_rows.refuse_above_free(2 << 20, "pp1")
