"""The program with the bundled model, as its user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import PACKAGE_HOME
from in_process import run_cli
from test_cli import cut_short

SHARED = Path(os.environ.get("HYENA_CPU_SHARED", Path(__file__).parents[2] / "shared"))
ASSETS = PACKAGE_HOME / "hyena_cpu" / "assets" / "tiny-en"
ALICE = SHARED / "data" / "canterbury_text" / "alice29.txt"
PROMPT = "It was the best of times"

pytestmark = pytest.mark.skipif(
    not (ASSETS / "reference.json").is_file(),
    reason="the bundled model is not in this checkout",
)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "hyena_cpu", *args]


def program(*args: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command(*args), capture_output=True, cwd=PACKAGE_HOME, timeout=300, **settings
    )


def test_text() -> None:
    run = program("generate", PROMPT, "-n", "40")
    assert run.returncode == 0, run.stderr.decode()
    assert len(run.stdout.decode().split()) > 5
    assert run.stderr.startswith(b"hyena-cpu: seed ")


def test_a_seed_is_a_text_whatever_the_threads() -> None:
    args = ["generate", PROMPT, "-n", "40", "--temperature", "0.9", "-s", "11", "--json"]
    results = [json.loads(run_cli(*args, "-t", t).stdout) for t in ("1", "2", "3")]
    assert results[0]["seed"] == 11
    assert len({tuple(result["tokens"]) for result in results}) == 1
    assert len({result["logprob_mean"] for result in results}) == 1
    other = json.loads(run_cli(*args[:-2], "12", "--json").stdout)
    assert other["tokens"] != results[0]["tokens"]


def test_stop_string() -> None:
    args = ["generate", PROMPT, "-n", "60", "-s", "3", "--json"]
    whole = json.loads(run_cli(*args).stdout)["text"]
    stop = whole[10:13]
    result = json.loads(run_cli(*args, "--stop", stop).stdout)
    assert (result["finish_reason"], result["stop_text"]) == ("stop", stop)
    assert result["text"] == whole[: whole.index(stop)]


def test_no_new_tokens() -> None:
    run = run_cli("generate", PROMPT, "-n", "0")
    assert (run.returncode, run.stdout) == (0, b"")


def test_samples_share_a_prompt() -> None:
    args = ["generate", PROMPT, "-n", "10", "-s", "3", "--temperature", "1"]
    lines = run_cli(*args, "--num-samples", "3", "--format", "jsonl").stdout.splitlines()
    tokens = [json.loads(line)["tokens"] for line in lines]
    assert len({tuple(t) for t in tokens}) == 3
    assert json.loads(run_cli(*args, "--json").stdout)["tokens"] == tokens[0]


def test_styles() -> None:
    info = json.loads(run_cli("info", "--json").stdout)
    for style in info["special_tokens"]["styles"]:
        run = run_cli("generate", "", "--style", style, "-n", "5", "--json")
        assert json.loads(run.stdout)["prompt_tokens"] == 1


def test_tokens_join_to_the_text() -> None:
    text = "It was the best of times,\nit was the worst of times"
    result = json.loads(run_cli("tokenize", text, "--json").stdout)
    assert "".join(result["pieces"]) == text
    assert result["count"] == len(result["ids"]) < len(text) / 2


def test_info_and_plan() -> None:
    assert b"hyena" in run_cli("info").stdout
    plan = json.loads(run_cli("generate", PROMPT, "--dry-run", "--json").stdout)
    assert plan["bytes"]["total"] > 0


@pytest.mark.skipif(not ALICE.is_file(), reason="HYENA_CPU_SHARED has no data folder")
def test_bits_per_byte_of_an_unseen_book_are_those_of_pytorch() -> None:
    """And at most what the model's card promises for text of another hand."""
    reference = json.loads((ASSETS / "reference.json").read_text())
    (expected,) = [f for f in reference["outside"] if f["file"].endswith(ALICE.name)]
    text = ALICE.read_bytes().replace(b"\r\n", b"\n")
    how = ["--style", expected["style"], "--window", str(reference["window"])]
    run = program("score", "-f", "-", *how, "--format", "jsonl", input=text)
    row = json.loads(run.stdout)
    assert (row["length"], row["n_scored"]) == (expected["bytes"], expected["tokens"])
    assert row["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], abs=1e-3)
    assert row["bits_per_byte"] <= 2.40


def test_ctrl_c() -> None:
    args = command("generate", PROMPT, "-n", "1000000")
    with subprocess.Popen(
        args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=PACKAGE_HOME
    ) as run:
        assert run.stdout is not None
        begin = run.stdout.read(20)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=60)
    assert len(begin) == 20
    assert run.returncode == 130
    assert b"Traceback" not in err


def test_closed_pipe() -> None:
    assert cut_short("generate", PROMPT, "-n", "1000000", "-q", after=20) == (0, b"")
