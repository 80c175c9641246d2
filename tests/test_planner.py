"""Memory is said before it is taken, and no more is taken than was said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE_HOME
from toy import CAUSAL, LENGTH, model, tokens

import hyena_cpu
from hyena_cpu.planner import readable

MEASURE = """
import sys
import numpy as np, hyena_cpu


def resident(key):
    # Not getrusage: its maximum begins with that of the process that started this one.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))


model = hyena_cpu.load(threads=2)
length, verb = int(sys.argv[1]), sys.argv[2]
ids = np.random.default_rng(0).integers(0, 2048, length)
model.hidden(ids[:4])
before = resident("VmRSS")
if verb == "score":
    model.token_logprobs(ids)
elif verb == "prefill":
    model.step(model.prefill(ids), 1)
else:
    state = model.prefill(ids[: length // 2])
    model.extend(state, ids[length // 2 :])
rows = length - length // 2 if verb == "extend" else 0
said = hyena_cpu.plan(model, length, logits_rows=rows, state=verb != "score").total
print(resident("VmHWM") - before, said)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux memory figures")
@pytest.mark.parametrize("verb", ["score", "prefill", "extend"])
@pytest.mark.parametrize("length", [2000, 20_000])
def test_no_more_is_taken_than_was_said(length: int, verb: str, tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", MEASURE, str(length), verb],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PACKAGE_HOME)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    taken, said = map(int, out.split())
    assert taken <= said + (8 << 20)  # the allocator's own slack


@pytest.mark.parametrize("name", CAUSAL)
def test_a_run_above_the_limit_is_refused_before_it_starts(name: str) -> None:
    free = model(CAUSAL[name])
    small, large = (hyena_cpu.plan(free, n, logits_rows=1).total for n in (8, LENGTH))
    assert small < large
    bounded = model(CAUSAL[name], max_memory=(small + large) // 2)
    state = bounded.prefill(tokens(8))
    assert state.position == 8
    with pytest.raises(hyena_cpu.LimitError, match=r"needs about .* but max-memory is"):
        bounded.prefill(tokens(LENGTH))
    assert model(CAUSAL[name], max_memory=large).prefill(tokens(LENGTH)).position == LENGTH
    whole = hyena_cpu.plan(free, LENGTH, state=False).total
    assert whole < large
    with pytest.raises(hyena_cpu.LimitError, match="allow at least"):
        model(CAUSAL[name], max_memory=whole - 1).hidden(tokens(LENGTH))
    assert len(model(CAUSAL[name], max_memory=whole).hidden(tokens(LENGTH))) == LENGTH


def test_new_tokens_count_before_the_prompt_is_taken_in() -> None:
    free = model(CAUSAL["finite_hybrid"])
    needed = hyena_cpu.plan(free, 4096, new=10).total
    bounded = model(CAUSAL["finite_hybrid"], max_memory=needed - 1)
    with pytest.raises(hyena_cpu.LimitError, match="max-memory"):
        bounded.prefill(tokens(10), max_new_tokens=4086)
    assert bounded.prefill(tokens(10)).position == 10


def test_all_logits_are_counted_where_all_are_returned() -> None:
    m = model(CAUSAL["order2"])
    rest = hyena_cpu.plan(m, LENGTH, state=False).total
    with_all = hyena_cpu.plan(m, LENGTH, logits_rows=LENGTH, state=False).total
    assert with_all - rest == 4 * m.logits_width * LENGTH
    bounded = model(CAUSAL["order2"], max_memory=rest)
    bounded.token_logprobs(tokens(LENGTH))
    with pytest.raises(hyena_cpu.LimitError, match="max-memory"):
        bounded.logits(tokens(LENGTH))


def test_sizes_are_written_for_people() -> None:
    assert [readable(n) for n in (12, 3 << 10, 5 << 19, 7 << 30)] == [
        "12 bytes",
        "3.0 KiB",
        "2.5 MiB",
        "7.0 GiB",
    ]
