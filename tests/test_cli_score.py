"""hyena-cpu score: formats, positions, runs that are interrupted and go on."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_cli, run_fake
from read_tables import read_table
from test_cli import CASES, DNA, assert_one_line, environment, started
from toy import dna_folder

import hyena_cpu
from hyena_cpu import progress
from hyena_cpu.score import BASE_COLUMNS, COLUMNS, TOKEN_COLUMNS
from hyena_cpu.tables import FORMS, TableWriter

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)
FORM_PARAMS = [pytest.param(f, marks=needs_pyarrow if f == "parquet" else ()) for f in FORMS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dna_folder(tmp_path_factory.mktemp("models") / "dna-toy")


@pytest.fixture(scope="module")
def fasta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 records of up to 400 bases; the one called r7 has a gap."""
    rng = np.random.default_rng(9)
    path = tmp_path_factory.mktemp("data") / "many.fa"
    lines = []
    for i, length in enumerate(rng.integers(0, 400, 30)):
        bases = "".join(rng.choice(list("ACGTN"), length, p=[0.24, 0.24, 0.24, 0.24, 0.04]))
        lines += [f">r{i} x", "AC-GT" if i == 7 else bases]
    path.write_text("\n".join(lines) + "\n")
    return path


def run(*args: object) -> Any:
    return run_cli(*args, HYENA_CPU_THREADS="1")


def interrupted(write: int, *args: object) -> Any:
    """A run that gets Ctrl-C before so many writes of a table."""
    left, whole = [write], TableWriter.write

    def counted(self: TableWriter, *rows: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        whole(self, *rows, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableWriter, "write", counted)
        return run(*args)


@pytest.mark.parametrize("form", FORM_PARAMS)
def test_positions_in_every_form(tmp_path: Path, folder: Path, form: str) -> None:
    path, source = tmp_path / f"out.{form}", tmp_path / "x.fa"
    source.write_text(">a\nACGTN\n>b\n\n>c\nGATTACA\n")
    done = run("score", "-m", folder, "--fasta", source, "--per-position", "-o", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    rows = read_table(path, form, BASE_COLUMNS)
    assert [row[4] for row in rows] == list("ACGTNGATTACA")
    assert [row[0] for row in rows] == [0] * 5 + [2] * 7
    model = hyena_cpu.load(folder)
    logprobs = model.token_logprobs(model.tokenizer.encode("GATTACA"))
    assert rows[5][5:] == (None,) * 6
    np.testing.assert_allclose([row[5] for row in rows[6:]], logprobs, rtol=1e-9)
    assert all(abs(sum(row[6:10]) - 1) < 0.9 and 0 <= row[10] <= 2 for row in rows[6:])


def test_positions_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    done = run_fake({}, "score", "a b\n", "--per-position", "-o", str(path))
    assert done.returncode == 0, done.stderr
    rows = read_table(path, "jsonl", TOKEN_COLUMNS)
    assert [row[:4] for row in rows] == [(0, "prompt", i, c) for i, c in enumerate("a b\n")]
    assert [row[4] is None for row in rows] == [True, False, False, False]
    shown = run_fake({}, "score", "a\n", "--per-position").stdout.decode().splitlines()
    assert [line.split("\t")[3] for line in shown] == ["token", "a", "\\n"]


def test_a_long_text_is_no_file_name(tmp_path: Path) -> None:
    for text in ("a long story " * 500, str(CASES / "C025/variable_lengths.fa")):
        done = run_fake({}, "score", text, "-o", str(tmp_path / "t"))
        assert (done.returncode, done.stderr) == (0, b"")


def test_the_suffix_names_the_form_unless_it_is_given(tmp_path: Path) -> None:
    fasta = str(CASES / "C025/variable_lengths.fa")
    for args, name, form in (
        ([], "t.json", "json"),
        ([], "t.TXT", "tsv"),
        ([], "t.CSV", "csv"),
        (["--format", "csv"], "t.tsv", "csv"),
        (["--format", "jsonl"], "t.npz", "jsonl"),
        (["--format", "tsv"], "t.gz", "tsv"),
        (["--json"], "t.tsv", "json"),
    ):
        path = tmp_path / name
        done = run_fake(DNA, "score", "--fasta", fasta, *args, "-o", str(path))
        assert done.returncode == 0, done.stderr
        assert [row[1] for row in read_table(path, form, COLUMNS)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--format", "npz"], "npz cannot be written to standard output: give -o FILE"),
        (["--resume"], "standard output cannot be resumed"),
        (["-o", "x.tsv.GZ"], "x.tsv.GZ: no table is written compressed: give a name without .gz"),
        (["--json", "--format", "npz", "-o", "x"], "exclude each other"),
        (["-o", "/absent/folder/x"], "/absent/folder/x cannot be written"),
        (["-o", "/absent/folder/x.npz"], "/absent/folder/x.npz cannot be written"),
        (["--alphabet", "dna"], "invalid choice: 'dna'"),
        (["--alphabet", "acgt", "--stride", "3"], "--stride needs a window"),
    ],
)
def test_options_that_cannot_act_are_refused(args: list[str], message: str) -> None:
    fasta = str(CASES / "C025/variable_lengths.fa")
    assert_one_line(run_fake(DNA, "score", "--fasta", fasta, *args), 2, message)


def test_sequences_need_a_token_per_base() -> None:
    fasta = str(CASES / "C025/variable_lengths.fa")
    for args in (["--per-position"], ["--alphabet", "acgt"]):
        done = run("score", "-m", "tiny-en", "--fasta", fasta, *args)
        assert_one_line(done, 2, "needs one token per base, and tiny-en has none")


def test_fasta_goes_to_the_model_for_dna() -> None:
    fasta = str(CASES / "C025/variable_lengths.fa")
    assert (
        run("score", "--fasta", fasta).stdout
        == run("score", "-m", "tiny-dna", "--fasta", fasta).stdout
    )


def test_strands_with_other_counts_are_pooled() -> None:
    """The first base of each strand is not scored, and here one of them is an N."""

    def row(strand: str) -> dict[str, str]:
        args = ["--strand", strand, "--alphabet", "acgt", "-m", "tiny-dna"]
        lines = run("score", "NACGTACG", *args).stdout.decode().splitlines()
        return dict(zip(*(line.split("\t") for line in lines), strict=True))

    rows = [row(strand) for strand in ("fwd", "rc")]
    total, n = sum(float(r["logprob_sum"]) for r in rows), sum(int(r["n_scored"]) for r in rows)
    assert rows[0]["n_scored"] != rows[1]["n_scored"]
    both = row("both")
    assert float(both["logprob_sum"]) == pytest.approx(total / 2, abs=1e-7)
    assert float(both["logprob_mean"]) == pytest.approx(total / n, abs=1e-7)


def test_a_file_name_is_no_sequence(tmp_path: Path) -> None:
    path = tmp_path / "genes.fa"
    path.write_text(">a\nACGT\n")
    done = run("score", "-m", "tiny-dna", str(path))
    assert_one_line(done, 2, f"{path} is a file: give it as --fasta {path}")


def test_a_plain_sequence_that_is_fasta(tmp_path: Path) -> None:
    path = tmp_path / "x.fa"
    path.write_text(">a\nACGT\n")
    assert_one_line(run_fake(DNA, "score", "-f", str(path)), 4, "give it as --fasta FILE")


def test_failures_of_positions_are_named(fasta: Path, folder: Path) -> None:
    done = run("score", "-m", folder, "--fasta", fasta, "--per-position")
    assert done.returncode == 4
    first, last = done.stderr.decode().splitlines()
    assert "record 8 ('r7'): '-' at position 3 is no nucleotide code" in first
    assert "1 of the records could not be scored" in last
    assert b"\tr7\t" not in done.stdout


HOW = {"strands": ["--strand", "both"], "positions": ["--per-position"]}
TYPES = {"strands": COLUMNS, "positions": BASE_COLUMNS}


@pytest.fixture(scope="module")
def wanted(folder: Path, fasta: Path) -> dict[str, list[Any]]:
    """Rows of runs that nothing disturbs."""
    rows = {}
    for name, how in HOW.items():
        done = run("score", "-m", folder, "--fasta", fasta, "--format", "jsonl", *how)
        assert done.returncode == 4
        rows[name] = [tuple(json.loads(line).values()) for line in done.stdout.splitlines()]
    return rows


def same(got: list[Any], want: list[Any], form: str) -> bool:
    """Equal rows; numbers of tsv and csv have ten digits."""
    if form in ("tsv", "csv"):
        want = [tuple(float(f"{v:.10g}") if type(v) is float else v for v in r) for r in want]
    return got == want


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("form", FORM_PARAMS)
def test_an_interrupted_run_goes_on_and_ends_the_same(
    tmp_path: Path, folder: Path, fasta: Path, wanted: dict[str, Any], form: str, name: str
) -> None:
    path, part = tmp_path / "t", tmp_path / "t.part"
    command = ["score", "-m", folder, "--fasta", fasta, "--format", form, *HOW[name], "-o", path]
    stopped = interrupted(12, *command)
    assert stopped.returncode == 130, stopped.stderr.decode()
    assert b"Traceback" not in stopped.stderr
    sentence = stopped.stderr.decode().splitlines()[-1]
    assert "t.part holds the first " in sentence
    assert "--resume" in sentence
    assert not path.exists()
    kept = read_table(part, form, TYPES[name])
    assert 0 < len(kept) < len(wanted[name])
    assert same(kept, wanted[name][: len(kept)], form)
    resumed = run(*command, "--resume")
    assert resumed.returncode == 4, resumed.stderr.decode()
    assert same(read_table(path, form, TYPES[name]), wanted[name], form)
    assert list(tmp_path.iterdir()) == [path]


def test_what_stands_against_going_on_is_said(tmp_path: Path, folder: Path, fasta: Path) -> None:
    path = tmp_path / "t"
    command = ["score", "-m", folder, "--fasta", fasta, "-o", path]
    assert interrupted(12, *command).returncode == 130
    assert_one_line(run(*command), 2, "of an unfinished run: continue it with --resume")
    other = run(*command, "--resume", "--window", "100")
    assert_one_line(other, 2, "window was not given and is 100")
    fasta = CASES / "C025/variable_lengths.fa"
    other = run("score", "-m", folder, "--fasta", fasta, "-o", path, "--resume")
    assert_one_line(other, 2, "fasta was")
    assert run(*command, "--resume").returncode == 4
    complete = run(*command, "--resume")
    assert_one_line(complete, 2, "is complete, so there is nothing to resume")


def test_ctrl_c_from_outside(tmp_path: Path, folder: Path) -> None:
    source, path = tmp_path / "big.fa", tmp_path / "t.tsv"
    with source.open("w") as file:
        for i in range(600):
            file.write(f">r{i}\n{'ACGTTGCA' * 1250}\n")
    command = ["score", "-m", str(folder), "--fasta", str(source), "-o", str(path), "-t", "1"]
    with started(*command, env=environment(HYENA_CPU_THREADS="1")) as process:
        sidecar = tmp_path / "t.tsv.part.json"
        while not (sidecar.exists() and json.loads(sidecar.read_text())["records"]):
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    assert errors.decode().count("\n") == 1
    kept = read_table(tmp_path / "t.tsv.part", "tsv", COLUMNS)
    assert 0 < len(kept) < 600
    assert [row[:3] for row in kept] == [(i, f"r{i}", 10_000) for i in range(len(kept))]


def test_the_progress_line_tells_rate_and_time_left(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one.fa"
    source.write_text(f">r\n{'ACGTTGCA' * 100_000}\n")
    monkeypatch.setattr(progress, "PATIENCE_S", 0.02)
    monkeypatch.setattr(progress, "INTERVAL_S", 0.02)
    command = ["score", "-m", folder, "--fasta", source, "--progress", "-t", "1"]
    done = run(*command, "--window", "20000", "-o", os.devnull)
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stderr.decode().split("\r")
    shown = [line for line in lines if line.startswith("bases scored: ")]
    assert any("/s, " in line and " left" in line for line in shown), shown
    counts = [int(line.split()[2].strip(",").replace(",", "")) for line in shown if "/s" in line]
    assert counts == sorted(counts)
    assert len(set(counts)) > 3  # one record, many steps
    assert counts[-1] <= 800_000
