"""Files that a run reads and writes: none is lost without a word."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from in_process import run_cli
from test_cli import assert_one_line, cut_short, program
from test_cli_system import shell

DNA = ("-m", "tiny-dna")
FASTA = b">a\nACGTACGT\n>b\nGATTACA\n"
RUN = f"{sys.executable} -m hyena_cpu"


@pytest.mark.parametrize(
    ("command", "name", "option"),
    [
        (["score", *DNA, "--fasta", "IN", "-o", "IN"], "in.fa", "--output"),
        (["embed", *DNA, "--fasta", "IN", "-o", "IN"], "in.npz", "--output"),
        (["score", *DNA, "--fasta", "IN", "--log-file", "IN"], "in.fa", "--log-file"),
        (["generate", "-f", "IN", "-o", "IN"], "in.txt", "--output"),
        (["generate", "-f", "IN", "--state-out", "IN"], "in.txt", "--state-out"),
        (["generate", "--state-in", "IN", "-o", "IN"], "in.state", "--output"),
        (["recall", "IN", "--write-counts", "IN"], "in.txt", "--write-counts"),
        (
            ["variants", *DNA, "--reference", "IN", "--variants", "IN", "-o", "IN"],
            "in.tsv",
            "--output",
        ),
    ],
)
def test_nothing_that_is_read_is_overwritten(
    command: list[str], name: str, option: str, tmp_path: Path
) -> None:
    path, link = tmp_path / name, tmp_path / f"link-{name}"
    path.write_bytes(FASTA)
    link.symlink_to(path)
    for other in (path, link):
        names = iter([str(path)] * (command.count("IN") - 1) + [str(other)])
        run = run_cli(*[next(names) if word == "IN" else word for word in command])
        assert_one_line(run, 2, f"{option} {other}: the run reads this file")
        assert path.read_bytes() == FASTA
    assert sorted(tmp_path.iterdir()) == sorted([path, link])


def test_a_state_may_be_continued_in_its_place(tmp_path: Path) -> None:
    state = str(tmp_path / "s")
    assert run_cli("generate", *DNA, "ACGT", "-n", "3", "--state-out", state).returncode == 0
    run = run_cli("generate", *DNA, "--state-in", state, "-n", "3", "--state-out", state)
    assert run.returncode == 0


def test_standard_output_by_another_name(tmp_path: Path) -> None:
    """What was there before, and what comes after, stays."""
    fasta, out = tmp_path / "in.fa", tmp_path / "out"
    fasta.write_bytes(FASTA)
    plain = run_cli("score", *DNA, "--fasta", str(fasta)).stdout
    command = f"{RUN} score -m tiny-dna --fasta {fasta} -o /dev/stdout"
    run = shell(f"{{ echo before; {command}; echo after; }} > {out}")
    assert run.returncode == 0
    assert out.read_bytes() == b"before\n" + plain + b"after\n"


def test_a_dash_is_standard_output_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in (["score"], ["embed"], ["tokenize"], ["generate", "-n", "3", "--seed", "1"]):
        plain, dashed = (run_cli(*verb, *DNA, "ACGT", *rest) for rest in ([], ["-o", "-"]))
        assert (dashed.returncode, dashed.stdout) == (0, plain.stdout), verb
    run = run_cli("generate", *DNA, "ACGT", "--state-out", "-")
    assert (run.returncode, list(tmp_path.iterdir())) == (2, [])
    assert b"--state-out needs a file, not standard output" in run.stderr


def test_a_closed_pipe_does_not_lose_a_file_in_silence(tmp_path: Path) -> None:
    state = tmp_path / "s"
    args = ("generate", *DNA, "ACGT", "-n", "2000", "--seed", "1", "--state-out", str(state))
    code, said = cut_short(*args, after=10)
    assert code == 1
    assert f"--state-out {state} was not written".encode() in said
    assert not state.exists()


def test_the_log_file_has_the_error_that_ends_a_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = run_cli("info", "-m", "nobody", "--log-file", str(log))
    assert run.returncode != 0
    assert log.read_bytes() == run.stderr


def test_a_log_file_that_is_full_ends_no_run() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("/dev/full is absent")
    run = program("generate", *DNA, "A", "-n", "1", "-v", "-s", "1", "--log-file", "/dev/full")
    assert run.returncode == 0
    assert run.stderr.count(b"No space left on device") == 1
    assert b"Traceback" not in run.stderr


@pytest.mark.parametrize("name", ["a" * 260, "loop", "loop/x"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    path = str(tmp_path / name)
    for option, *command in (
        ("--output", "generate", *DNA, "A", "-n", "1", "-s", "1"),
        ("--state-out", "generate", *DNA, "A", "-n", "1", "-s", "1"),
        ("--output", "score", "A"),
        ("--output", "embed", "A", "--format", "npy"),
        ("--plot", "score", *DNA, "A", "--per-position"),
        ("--write-counts", "recall", __file__),
    ):
        assert_one_line(run_cli(*command, option, path), 2, f"{option} {path}: ")


@pytest.mark.parametrize("length", [242, 250])
def test_a_name_with_no_room_for_the_endings_of_partial_files(length: int, tmp_path: Path) -> None:
    run = run_cli("score", "A", "-o", str(tmp_path / ("a" * length)))
    assert_one_line(run, 2, "cannot be written: File name too long")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "path"),
    [
        (["info", "-m", "~nobodyx/m"], "~nobodyx/m"),
        (["verify", "~nobodyx/m"], "~nobodyx/m"),
        (["info", "-m", "A/b", "--cache-dir", "~nobodyx/c"], "~nobodyx/c"),
        (["convert", "~nobodyx/m", "new"], "~nobodyx/m"),
        (["convert", "m", "~nobodyx/new"], "~nobodyx/new"),
        (["convert", __file__, "new", "--config", "~nobodyx/config.json"], "~nobodyx/config.json"),
    ],
    ids=str,
)
def test_homes_of_nobody(args: list[str], path: str) -> None:
    assert_one_line(run_cli(*args), 3, f"{path}: no home folder of ~nobodyx is known")
