"""Runs that end in a state and go on from it, as if they had never stopped."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from in_process import run_cli, run_fake
from model_files import folder, stored
from test_cli import SAYS, assert_one_line
from test_cli_bundled import PROMPT, command
from test_cli_bundled import pytestmark as with_bundled_model
from toy import CAUSAL, LENGTH, model, tokens

from hyena_cpu import InputError, LimitError
from hyena_cpu.generate import TextStream, samples
from hyena_cpu.model import Model
from hyena_cpu.prompts import Options, append, prepare
from hyena_cpu.state import State

SETTINGS = {"temperature": 0.9, "seed": 11}


def finished(run: TextStream) -> TextStream:
    for _ in run:
        pass
    return run


def first(m: Model, ids: np.ndarray, **options: Any) -> TextStream:
    chosen = Options(**options)
    return finished(next(samples(m, prepare(m, ids, chosen), chosen, keep=True)))


def resumed(m: Model, state: State, ids: Any = (), **options: Any) -> TextStream:
    chosen = Options(**options)
    prompt = append(m, ids, chosen, state.position)
    return finished(next(samples(m, prompt, chosen, state=state, keep=True)))


@pytest.mark.parametrize("penalty", [{}, {"repetition_penalty": 1.3, "repetition_last_n": 25}])
@pytest.mark.parametrize("name", ["finite_hybrid", "order2", "h3_conv"])
def test_two_runs_write_what_one_writes(name: str, penalty: dict[str, Any], tmp_path: Path) -> None:
    m = model(CAUSAL[name])
    options = SETTINGS | penalty
    whole = first(m, tokens(40), max_new_tokens=60, **options)
    run = first(m, tokens(40), max_new_tokens=33, **options)
    run.final_state().save(tmp_path / "s")
    state = m.load_state(tmp_path / "s")
    assert state.position == 73
    assert state.tokens.tolist() == [*tokens(40).tolist(), *run.tokens]
    more = resumed(m, state, max_new_tokens=27, **options)
    assert run.tokens + more.tokens == whole.tokens
    assert (more.result().prompt_tokens, more.finish_reason) == (0, "length")
    assert more.final_state().tokens.tolist() == whole.final_state().tokens.tolist()


def test_a_prompt_is_taken_in_after_the_state(tmp_path: Path) -> None:
    m = model(CAUSAL["finite_hybrid"])
    ids = tokens(60)
    prompt_only = first(m, ids[:40], max_new_tokens=0)
    assert (prompt_only.tokens, prompt_only.finish_reason) == ([], "length")
    prompt_only.final_state().save(tmp_path / "s")
    run = resumed(m, m.load_state(tmp_path / "s"), ids[40:], max_new_tokens=20, **SETTINGS)
    assert run.tokens == first(m, ids, max_new_tokens=20, **SETTINGS).tokens
    assert run.result().prompt_tokens == 20
    assert run.final_state().position == 80


def test_samples_share_a_state() -> None:
    m = model(CAUSAL["finite_hybrid"])
    state = m.prefill(tokens(30))
    options = Options(max_new_tokens=12, **SETTINGS)
    runs = samples(m, append(m, [], options, 30), options, 3, state=state)
    texts = [finished(run).tokens for run in runs]
    want = samples(m, prepare(m, tokens(30), options), options, 3)
    assert texts == [finished(run).tokens for run in want]


def test_the_context_holds_state_prompt_and_new_tokens() -> None:
    m = model(CAUSAL["order2"])
    options = Options(max_new_tokens=50)
    assert append(m, tokens(20), options, LENGTH - 30).new_tokens == 10
    assert append(m, tokens(30), options, LENGTH - 30).new_tokens == 0
    with pytest.raises(LimitError, match="the state has 370 tokens and the prompt 31, but the"):
        append(m, tokens(31), options, LENGTH - 30)
    run = resumed(m, m.prefill(tokens(LENGTH - 30)), tokens(20), max_new_tokens=50)
    assert len(run.tokens) == 10
    assert run.final_state().position == LENGTH


def test_what_a_state_does_not_know_is_asked_for() -> None:
    m = model(CAUSAL["finite_hybrid"])
    with pytest.raises(InputError, match="its next token is not known: give a prompt"):
        resumed(m, m.new_state())
    state = m.prefill(tokens(30))
    state.rewind(20)
    with pytest.raises(InputError, match="after a rewind"):
        resumed(m, state.fork())
    assert len(resumed(m, state, [5], max_new_tokens=3).tokens) == 3
    with pytest.raises(InputError, match="repetition_penalty must be 1 here"):
        resumed(m, state, [5], repetition_penalty=1.2)
    with pytest.raises(InputError, match="tell: 9 tokens for a state at"):
        state.tell(tokens(9))
    options = Options(max_new_tokens=2)
    run = next(samples(m, prepare(m, tokens(5), options), options))
    with pytest.raises(InputError, match="the run is not over"):
        run.final_state()


def test_told_tokens_follow_the_position() -> None:
    m = model(CAUSAL["finite_hybrid"])
    ids = tokens(50)
    state = m.prefill(ids)
    assert state.tokens is None
    state.tell(ids)
    state.rewind(45)
    assert state.fork().tokens.tolist() == ids[:45].tolist()
    m.step(state, 3)  # and nobody says so
    assert state.tokens is None


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--state-in", "x", "--bos"], "--bos cannot act: the sequence has begun in the state"),
        (["--state-in", "x", "--no-bos"], "--bos cannot act"),
        (["--state-in", "x", "--style", "tale"], "--style cannot act"),
        (["--state-in", "x", "--truncate", "left"], "--truncate cannot act"),
        (["--state-in", "x", "--special", "cls-sep"], "--special cls-sep cannot act"),
        (["--state-in", "x", "a", "-p", "b"], "2 were given"),
        (["a", "--state-out", "x", "--num-samples", "2"], "--state-out saves the state of one run"),
        (["a", "--state-out", "/absent/x"], "--state-out /absent/x: no such folder"),
        (["a", "--state-out", "/"], "--state-out /: not a regular file"),
        (["a", "--state-out", "/dev/null"], "--state-out /dev/null: not a regular file"),
        (["a", "--state-out", "x", "-o", "./x"], "--state-out and -o are the same file"),
    ],
)
def test_options_that_cannot_act(args: list[str], message: str) -> None:
    assert_one_line(run_fake(SAYS, "generate", *args), 2, message)


@with_bundled_model
def test_the_program_stops_and_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    args = ["generate", "-t", "1", "-s", "7", "--json"]
    whole = json.loads(run_cli(*args, PROMPT, "-n", "24").stdout)
    run = json.loads(run_cli(*args, PROMPT, "-n", "10", "--state-out", path).stdout)
    assert "state_tokens" not in run
    again = run_cli(*args, "-n", "14", "--state-in", path, "--state-out", path)
    more = json.loads(again.stdout)
    assert run["tokens"] + more["tokens"] == whole["tokens"]
    assert more["state_tokens"] == whole["prompt_tokens"] + 10
    text = run_cli("generate", "-t", "1", "-s", "7", "-n", "5", "--state-in", path, " and so")
    assert text.returncode == 0
    plan = run_cli("generate", "--dry-run", "-n", "0", "--json", "--state-in", path, "and")
    assert json.loads(plan.stdout)["length"] == whole["prompt_tokens"] + 24 + 1


def test_the_plan_knows_whether_a_state_is_saved(tmp_path: Path) -> None:
    weights = str(folder(tmp_path / "model", *stored("hyenadna/hf_causal_lm")))
    path = tmp_path / "s"
    args = ["generate", "-m", weights, "--dry-run", "--json", "-n", "4", "ACGT" * 10]
    dropped, kept = (
        json.loads(run_cli(*args, *more).stdout)["bytes"]["total"]
        for more in ([], ["--state-out", str(path)])
    )
    assert dropped != kept
    assert not path.exists()


@with_bundled_model
def test_what_is_no_state_of_the_model_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "s"
    model(CAUSAL["order1"]).prefill(tokens(9)).save(path)
    for dry in ([], ["--dry-run"]):
        args = ["generate", "--greedy", *dry, "--state-in"]
        assert_one_line(run_cli(*args, str(path)), 4, "a state of another model: its fingerprint")
        assert_one_line(run_cli(*args, str(tmp_path / "no")), 4, "no: cannot be read: No such file")
        assert_one_line(run_cli(*args, __file__), 4, "not a state saved by hyena-cpu")


@with_bundled_model
def test_ctrl_c_leaves_the_old_state(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"old")
    run = subprocess.Popen(
        command("generate", "-t", "1", "-n", "100000", "--state-out", str(path), PROMPT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PACKAGE_HOME,
    )
    assert run.stdout is not None
    assert run.stdout.read(10)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=120)
    assert run.returncode == 130
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
