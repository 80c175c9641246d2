"""The program and its system: full disks, closed streams, the environment, signals at the start."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE_HOME
from test_cli import HERE, SAYS, assert_one_line, environment, fake, program

from hyena_cpu._isa import built


def test_a_full_disk_is_one_sentence_and_leaves_no_file() -> None:
    full = Path("/dev/full")
    if not full.is_char_device():
        pytest.skip("/dev/full is absent")
    run = fake(SAYS, "generate", "hi", "-o", str(full))
    assert_one_line(run, 1, "cannot write /dev/full: No space left on device")
    for args in (["generate", "hi"], ["generate", "--help"], ["--version"]):
        run = shell(f"{line(*args)} > /dev/full")
        assert_one_line(run, 1, "cannot write standard output: No space left on device")


def test_a_file_that_grows_too_large_leaves_nothing(tmp_path: Path) -> None:
    command = line("generate", "hi", "-o", str(tmp_path / "out"))
    assert_one_line(shell(f"ulimit -f 0; {command}"), 1, "out: File too large")
    assert list(tmp_path.iterdir()) == []


def test_closed_streams() -> None:
    run = shell(f"{line('generate', '-f', '-')} <&-")
    assert_one_line(run, 4, "standard input is closed")
    run = shell(f"{line('generate', 'hi')} >&-")
    assert_one_line(run, 1, "cannot write standard output: it is closed")
    assert shell(f"{line('generate', 'hi')} 2>&-").returncode == 0


def line(*args: str) -> str:
    """A shell command that runs the command line around a FakeModel."""
    return shlex.join([sys.executable, str(HERE / "fake_cli.py"), json.dumps(SAYS), *args])


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    """Runs a shell command line."""
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        cwd=PACKAGE_HOME,
        env=environment(),
        timeout=120,
    )


@pytest.mark.parametrize("command", [["info"], ["generate", "a"], ["tokenize", "a"]])
def test_an_unknown_build_is_one_sentence(command: list[str]) -> None:
    for build in ("foo", "neon" if "avx2" in built() else "avx2"):
        run = program(*command, env=environment(HYENA_CPU_ISA=build))
        assert_one_line(run, 2, f"HYENA_CPU_ISA is '{build}', must be one of")


def test_the_seed_is_not_told_where_nothing_is_drawn() -> None:
    for how in (["-n", "0"], ["--dry-run"]):
        code = program("generate", "hi", "--temperature", "1", *how)
        assert (code.returncode, code.stderr) == (0, b"")


def test_dry_run_refuses_what_acts_on_text_alone() -> None:
    for option in ("--echo", "--stream"):
        run = program("generate", "hi", "--dry-run", option)
        assert_one_line(run, 2, f"--dry-run writes nothing, so {option} cannot act")


def test_dry_run_plans_the_prompt_and_not_the_new_tokens() -> None:
    few, many = (
        json.loads(program("generate", "hi", "--dry-run", "--json", "-n", n).stdout)["bytes"]
        for n in ("1", "400")
    )
    assert few["ids and positions"] == many["ids and positions"] > 0
    assert few["state"] < many["state"]


def test_absurd_threads_in_the_environment() -> None:
    run = program("info", env=environment(HYENA_CPU_THREADS="9" * 11))
    assert_one_line(run, 4, "must be a whole number in 1..4096")


def test_ctrl_c_while_starting() -> None:
    code = (
        "import os, signal, sys; import hyena_cpu.__main__ as entry\n"
        "class Finder:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'numpy': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder()); sys.exit(entry.main())"
    )
    # numpy is the first heavy import; it must not be there before the program has begun.
    run = shell(shlex.join([sys.executable, "-c", code]))
    assert (run.returncode, run.stdout, run.stderr) == (130, b"", b"")
