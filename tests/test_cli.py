"""The program, in real processes where that matters: C024, C051, C084, C085, C103, S06-S08, S13."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE_HOME, environment
from in_process import run_cli, run_fake

from hyena_cpu.cli.common import default_model

HERE = Path(__file__).parent
CASES = HERE / "cases"

SAYS = {"script": "hello", "prompt_length": 2, "eos": 250}
DNA = {"kind": "dna", "vocab_size": 12, "logits_width": 16}
COMMANDS = [
    *("generate", "score", "embed", "variants", "tokenize", "info", "bench", "verify", "convert"),
    *("mqar", "recall"),
]


def program(*args: str, env: Any = None, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs `python -m hyena_cpu`, away from a source tree that may lack the kernels."""
    return subprocess.run(
        [sys.executable, "-m", "hyena_cpu", *args],
        capture_output=True,
        cwd=PACKAGE_HOME,
        env=env or environment(),
        timeout=120,
        **settings,
    )


def started(*args: str, **settings: Any) -> subprocess.Popen[Any]:
    """The same under way, with pipes to read its output and messages from."""
    return subprocess.Popen(
        [sys.executable, "-m", "hyena_cpu", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PACKAGE_HOME,
        **{"env": environment(), **settings},
    )


def cut_short(*args: str, after: int) -> tuple[int, bytes]:
    """Exit code and messages of the program, whose reader goes away after so many bytes."""
    with started(*args) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.read(after)
        run.stdout.close()
        said = run.stderr.read()
        return run.wait(timeout=60), said


def fake(model: dict[str, Any], *args: str, env: Any = None, **settings: Any) -> Any:
    """Runs the command line around a FakeModel."""
    return subprocess.run(
        [sys.executable, str(HERE / "fake_cli.py"), json.dumps(model), *args],
        capture_output=True,
        cwd=PACKAGE_HOME,
        env=env or environment(),
        timeout=120,
        **settings,
    )


def assert_one_line(run: Any, code: int, message: str) -> None:
    """The exit code, nothing on standard output, and one sentence on standard error."""
    text = run.stderr.decode()
    assert run.returncode == code, text
    assert run.stdout == b""
    assert text.startswith("hyena-cpu: error: ")
    assert message in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    run = run_cli(command, "--help")
    assert (run.returncode, run.stderr) == (0, b"")
    assert f"usage: hyena-cpu {command}".encode() in run.stdout


def test_options_of_one_value_are_given_once() -> None:
    """And no others: lists, flags and what is counted may come again."""
    for command in COMMANDS:
        for p in parsers(importlib.import_module(f"hyena_cpu.cli.{command}").parser()):
            for action in p._actions:
                if not action.option_strings or action.nargs == 0:
                    continue
                given = argparse.Namespace()
                action(p, given, "1", action.option_strings[0])
                if action.dest in ("stop", "also"):
                    action(p, given, "2", action.option_strings[0])
                    assert getattr(given, action.dest) == ["1", "2"]
                    continue
                with pytest.raises(argparse.ArgumentError, match="given twice"):
                    action(p, given, "2", action.option_strings[-1])


def parsers(p: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A parser, and those of its parts."""
    parts = [a.choices.values() for a in p._actions if isinstance(a, argparse._SubParsersAction)]
    return [p, *itertools.chain.from_iterable(parts)]


def test_help_names_the_model_that_is_taken() -> None:
    for command in COMMANDS:
        for p in parsers(importlib.import_module(f"hyena_cpu.cli.{command}").parser()):
            option = p._option_string_actions.get("-m")
            if option is None or "(required)" in (said := str(option.help)):
                continue
            given = dict.fromkeys(action.dest for action in p._actions)
            assert said.endswith(f" {default_model(argparse.Namespace(**given))})"), command
            if "fasta" in given:
                taken = default_model(argparse.Namespace(**given | {"fasta": "x"}))
                assert f"default: {taken} with --fasta" in said, command


def test_help_of_the_program_names_every_command() -> None:
    run = program("--help")
    assert run.returncode == 0
    assert all(command in run.stdout.decode() for command in COMMANDS)
    assert program("--version").stdout.startswith(b"hyena-cpu ")


def test_help_loads_no_heavy_module() -> None:
    code = (
        "import sys; from hyena_cpu.cli import main; main(['generate', '--help']); "
        "sys.exit(', '.join({'tokenizers', 'dnaio', 'torch'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=PACKAGE_HOME,
        env=environment(),
        timeout=60,
    )
    assert run.stderr.decode().strip() == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "a command is missing"),
        (["dance"], "'dance' is no command"),
        (["generate"], "exactly one input (text, -p, -f): none was given"),
        (["generate", "a", "-p", "b"], "2 were given"),
        (["generate", "a", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["generate", "a", "--max-new", "3"], "unrecognized arguments: --max-new"),
        (["generate", "a", "-n", "-1"], "'-1' must be a whole number, at least 0"),
        (["generate", "a", "-n", "1.5"], "'1.5' must be a whole number"),
        (["generate", "a", "-t", "0"], "'0' must be a whole number, at least 1"),
        (["generate", "a", "-t", "99999999999"], "must be a whole number, at most 4096"),
        (["generate", "a", "-n", "9" * 23], "must be a whole number, at most 2147483647"),
        (["generate", "a", "-n", "9" * 5000], "must be a whole number, at most 2147483647"),
        (["generate", "a", "--max-memory", "lots"], "'lots' is no size"),
        (["generate", "a", "--max-memory", "9" * 400], "is no size"),
        (["info", "--max-memory", "1G"], "unrecognized arguments: --max-memory"),
        (["tokenize", "a", "--max-memory", "1G"], "unrecognized arguments: --max-memory"),
        (["tokenize", "a", "-t", "1"], "unrecognized arguments: -t"),
        (["generate", "a", "--stream", "no"], "unrecognized arguments: no"),
        (["generate", "a", "--greedy=0"], "ignored explicit argument '0'"),
        (["generate", "a", "--verbose", "0"], "unrecognized arguments: 0"),
        (["generate", "a", "--json", "--format", "text"], "exclude each other"),
        (["generate", "a", "--json", "--stream"], "--stream acts on text"),
        (["generate", "a", "-q", "-v"], "exclude each other"),
        (["generate", "a", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["score", "--fasta", "a", "-f", "b"], "2 were given"),
        (["convert", "a"], "required: DESTINATION"),
        (["score", "--fasta", "a", "--fasta", "b"], "argument --fasta: given twice, give it once"),
        (["generate", "a", "--temp", "1", "--temperature", "1"], "--temp: given twice"),
        (["mqar", "data", "--length", "8", "--length", "8"], "argument --length: given twice"),
    ],
)
def test_usage_errors(args: list[str], message: str) -> None:
    assert_one_line(run_cli(*args), 2, message)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--temperature", "-1"], "--temperature is -1.0, must be finite and at least 0"),
        (["--top-p", "1.5"], "--top-p is 1.5, must be in 0..1"),
        (["--greedy", "--top-k", "3"], "--top-k has no effect on greedy decoding"),
        (["--repetition-last-n", "3"], "--repetition-last-n does nothing"),
        (["-s", str(1 << 64)], "-s/--seed: '18446744073709551616' must be a whole number, at most"),
        (["--temperature", "inf"], "--temperature is inf, must be finite and at least 0"),
        (["--repetition-penalty", "inf"], "must be finite and above 0"),
        (["--repetition-penalty", "-2"], "-penalty is -2.0, must be finite and above 0"),
        (["--stop", ""], "--stop must be"),
        (["--style", "tale"], "no style 'tale'"),
        (["--case", "keep"], "--case acts on DNA only"),
        (["--special", "hf"], "--special acts on DNA only"),
        (["--strip-newline"], "--strip-newline acts on a prompt file"),
        (["-o", "/absent/folder/x"], "--output /absent/folder/x: No such file"),
    ],
)
def test_options_that_cannot_act_are_refused(args: list[str], message: str) -> None:
    assert_one_line(run_fake(SAYS, "generate", "hi", *args), 2, message)


def test_text_goes_to_standard_output_and_nothing_else() -> None:
    run = fake(SAYS, "generate", "hi")
    assert (run.returncode, run.stdout, run.stderr) == (0, b"hello\n", b"")
    loud = fake(SAYS, "generate", "hi", "-v")
    assert loud.stdout == b"hello\n"
    assert b"2 bytes are 2 tokens" in loud.stderr
    quiet = fake({}, "generate", "hi", "--temperature", "1", "-q", "-n", "3")
    assert (quiet.returncode, quiet.stderr) == (0, b"")
    assert quiet.stdout


def test_no_new_tokens() -> None:
    run = run_fake(SAYS, "generate", "hi", "-n", "0")
    assert (run.returncode, run.stdout) == (0, b"")


def test_json_has_everything() -> None:
    run = run_fake(SAYS, "generate", "hi", "--json", "--stop", "lo", "-s", "7")
    result = json.loads(run.stdout)
    assert result["text"] == "hel"
    assert (result["finish_reason"], result["stop_text"], result["seed"]) == ("stop", "lo", 7)
    assert (result["prompt_tokens"], result["completion_tokens"]) == (2, 5)
    assert result["sampling"]["order"][0] == "penalties"
    keys = {"model", "version", "tokens", "logprob_mean", "numerics", "timings"}
    assert keys <= set(result)


def test_samples() -> None:
    args = ["generate", "hi", "--num-samples", "3", "--temperature", "1", "-s", "5", "-n", "8"]
    listed = json.loads(run_fake({}, *args, "--json").stdout)
    lines = run_fake({}, *args, "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["tokens"] for line in lines] == [one["tokens"] for one in listed]
    assert [one["sample"] for one in listed] == [0, 1, 2]


def test_seed_repeats_a_text_and_is_always_told() -> None:
    args = ["generate", "hi", "--temperature", "1", "-n", "20"]
    first = run_fake({}, *args)
    seed = first.stderr.decode().split()[-1]
    assert run_fake({}, *args, "-s", seed).stdout == first.stdout
    assert run_fake({}, *args, "-s", str(int(seed) ^ 1)).stdout != first.stdout


def test_echo_gives_the_prompt_back_byte_for_byte() -> None:
    path = CASES / "C024/tag_prompt.txt"
    data = path.read_bytes()
    model = {**SAYS, "prompt_length": len(data)}
    assert fake(model, "generate", "-f", str(path), "--echo").stdout == data + b"hello\n"
    piped = fake(model, "generate", "-f", "-", "--echo", input=data)
    assert piped.stdout == data + b"hello\n"
    raw = b"\xff\x00 \xc3\xa9"
    model["prompt_length"] = len(raw)
    assert fake(model, "generate", "-f", "-", "--echo", input=raw).stdout == raw + b"hello\n"


def test_output_is_utf8_whatever_the_locale() -> None:
    env = environment(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")
    model = {"script": "日本é", "prompt_length": 2, "eos": 250}
    assert fake(model, "generate", "hi", env=env).stdout == "日本é\n".encode()
    assert fake(model, "tokenize", "é", env=env).stdout == b'195\t"\\\\xc3"\n169\t"\\\\xa9"\n'


@pytest.mark.parametrize(
    ("name", "text_tokens", "dna_tokens"),
    [("crlf", 6, 4), ("lf", 5, 4), ("none", 4, 4), ("two_lf", 6, 5)],
)
def test_line_end_of_a_prompt_file(name: str, text_tokens: int, dna_tokens: int) -> None:
    path = str(CASES / f"C051/prompt_{name}.txt")

    def count(model: dict[str, Any], *args: str) -> int:
        return int(
            json.loads(run_fake(model, "tokenize", "-f", path, "--json", *args).stdout)["count"]
        )

    assert (count({}), count(DNA)) == (text_tokens, dna_tokens)
    assert (count({}, "--strip-newline"), count(DNA, "--no-strip-newline")) == (
        dna_tokens,
        text_tokens,
    )


def test_dna_prompts_are_folded_and_it_is_said() -> None:
    run = run_fake(DNA, "tokenize", "acgT", "--json", "--special", "hf")
    assert json.loads(run.stdout)["ids"] == [7, 8, 9, 10, 1]
    assert b"letters of the prompt folded to upper case: 3" in run.stderr
    kept = run_fake(DNA, "tokenize", "acgT", "--json", "--case", "keep")
    assert json.loads(kept.stdout)["ids"] == [6, 6, 6, 10]
    assert b"does not know, [UNK]: 3" in kept.stderr
    assert run_fake(DNA, "tokenize", "ACGTN").stderr == b""


@pytest.mark.parametrize(
    ("model", "args", "code", "message"),
    [
        ({}, ["generate", ""], 4, "the prompt is empty"),
        ({}, ["generate", "-f", str(CASES / "C103/empty_prompt.txt")], 4, "the prompt is empty"),
        ({}, ["generate", "-f", "/absent.txt"], 4, "/absent.txt: cannot be opened"),
        ({}, ["generate", "hi", "--bos"], 3, "no begin token"),
        ({"max_length": 4}, ["generate", "hello"], 6, "the context holds 4"),
        ({"poison": 1}, ["generate", "hi"], 5, "position 2 are not finite"),
        ({"poison": 4}, ["generate", "hi", "--json"], 5, "position 5 are not finite"),
        (DNA, ["score", "--fasta", str(CASES / "C103/empty_prompt.txt")], 4, "no FASTA record"),
        ({}, ["score", "hi", "--rna", "keep"], 2, "--rna acts on DNA only"),
        ({}, ["score", "hi", "--stride", "3"], 2, "--stride needs a window"),
    ],
)
def test_exit_codes(model: dict[str, Any], args: list[str], code: int, message: str) -> None:
    assert_one_line(run_fake(model, *args), code, message)


def test_internal_errors_are_one_line_unless_asked() -> None:
    broken = {"max_length": "ten"}
    assert_one_line(run_fake(broken, "generate", "hi"), 1, "run again with -vv for the traceback")
    assert b"Traceback" in run_fake(broken, "generate", "hi", "-vv").stderr


def test_truncation_is_reported() -> None:
    run = run_fake(
        {"max_length": 4}, "generate", "hello", "--truncate", "left", "-n", "2", "--json"
    )
    assert json.loads(run.stdout)["prompt_dropped"] == 3
    assert b"3 tokens of the prompt cut off" in run.stderr


def test_score_table() -> None:
    run = fake(DNA, "score", "--fasta", str(CASES / "C099/iupac.fa"))
    lines = [line.split("\t") for line in run.stdout.decode().splitlines()]
    assert run.returncode == 4
    assert lines[0][0] == "index"
    assert [line[1] for line in lines[1:]] == ["s1", "s2", "s3"]
    assert [line[-1] for line in lines[1:3]] == ["ok", "ok"]
    assert lines[3][3:7] == ["0", "NA", "NA", "NA"]
    assert lines[3][-1].startswith("error: '-' at position 5")
    data = (CASES / "C097/two_members.fa.gz").read_bytes()
    piped = fake(DNA, "score", "--fasta", "-", "--json", input=data)
    assert [row["length"] for row in json.loads(piped.stdout)] == [4, 4]


def test_score_of_a_text_has_bits_per_byte() -> None:
    run = run_fake({}, "score", "hello", "--format", "jsonl")
    row = json.loads(run.stdout)
    assert (row["length"], row["n_scored"], row["status"]) == (5, 4, "ok")
    assert row["bits_per_byte"] > 0
    header = run_fake({}, "score", "hello").stdout.splitlines()[0]
    assert header.endswith(b"status\tbits_per_byte")


def test_output_files_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "модель é 1.txt"
    run = run_fake(SAYS, "generate", "hi", "-o", str(path))
    assert (run.stdout, path.read_bytes()) == (b"", b"hello\n")
    path.unlink()
    assert run_fake({"poison": 4}, "generate", "hi", "-o", str(path)).returncode == 5
    assert list(tmp_path.iterdir()) == []
    assert run_fake(SAYS, "generate", "hi", "-o", os.devnull).returncode == 0
    assert not Path(os.devnull).is_file()


def test_log_file_and_level(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    run = fake(SAYS, "generate", "hi", "-q", "--log-file", str(path))
    assert run.stderr == b""
    assert "2 bytes are 2 tokens" in path.read_text()
    env = environment(HYENA_CPU_LOG="loud")
    assert_one_line(fake(SAYS, "generate", "hi", env=env), 2, "HYENA_CPU_LOG is 'loud'")


def start(model: dict[str, Any], *args: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "fake_cli.py"), json.dumps(model), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PACKAGE_HOME,
        env=environment(),
    )


@pytest.mark.parametrize("form", ["text", "json"])
def test_ctrl_c_keeps_the_text_so_far(form: str) -> None:
    slow = {"script": "ab" * 5000, "prompt_length": 2, "delay": 0.02}
    args = ["generate", "hi", "-n", "10000", "-v", "--format", form]
    with start(slow, *args) as run:
        assert run.stderr is not None
        while b"tokens" not in run.stderr.readline():
            pass
        if form == "text":
            assert run.stdout is not None
            assert run.stdout.read(4) == b"abab"
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert run.returncode == 130, err.decode()
    assert b"Traceback" not in err, err.decode()
    if form == "json":
        assert not out or json.loads(out)["finish_reason"] == "cancelled"
    else:
        assert out.endswith(b"\n")
        assert len(out) < 10000


def test_a_closed_pipe_ends_quietly() -> None:
    slow = {"script": "ab" * 500, "prompt_length": 2, "delay": 0.005}
    with start(slow, "generate", "hi", "-n", "1000") as run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.read(2)
        run.stdout.close()
        err = run.stderr.read()
        run.wait(timeout=30)
    assert (run.returncode, err) == (0, b"")


def test_a_missing_model_is_one_sentence() -> None:
    run = program("generate", "hi", "-m", "/absent/model")
    assert_one_line(run, 3, "/absent/model")
