"""bench/run.py: real processes on small lengths, and the table made of given rows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench_modules import children, latency, run, sides, stages, summary
from conftest import PACKAGE_HOME

OURS = stages.side("hyena-cpu", "tiny", threads=1)


@pytest.fixture(autouse=True)
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package under test is that of the child processes too."""
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE_HOME))


def test_sides_answer_in_turn() -> None:
    twice = stages.side(
        "hyena-cpu", "tiny", label="again", threads=1, environment={"HYENA_CPU_THREADS": "1"}
    )
    found = children.times([OURS, twice], "prefill", 64, 4, 1e9)
    assert [len(one.values) for one in found] == [4, 4]
    assert all(min(one.values) > 0 and one.absent is None for one in found)


def test_the_budget_ends_repetitions_but_three() -> None:
    (one,) = children.times([OURS], "decode", 16, 5, 0.0)
    assert len(one.values) == children.LEAST


def test_memory_floor_and_convolutions() -> None:
    dropped = stages.side("hyena-cpu", "tiny", threads=1, history="drop")
    kept, less = children.sizes([OURS, dropped], "state", 4000)
    assert kept.median is not None
    assert less.median is not None
    assert less.median < kept.median
    (one,) = children.sizes([OURS], "memory", 1000)
    if one.absent is None:
        assert one.median >= 4 * 128 * 1000
    assert children.floor(OURS, "prefill", 64) > 0
    (one,) = children.times([stages.library("LongConv")], "conv", 1024, 3, 1e9)
    assert len(one.values) == 3


def test_latency_is_the_shortest_of_identical_runs() -> None:
    """A step that is slow in one run is the machine's, one that is slow in all the program's."""
    runs: list[list[int]] = []

    def begin() -> latency.Step:
        runs.append([])
        return lambda token: runs[-1].append(token)

    found = latency.spread(begin, 50)
    assert [len(run) for run in runs] == [51] * latency.RUNS
    assert 0 < found["seconds"] <= found["p99"] <= found["max"]
    one, tail = children.latency(OURS, 100, 20)
    assert one.median is not None
    assert one.median <= tail["p99"] <= tail["max"]
    assert summary.own(row("latency", 100, "us", 1e-3, p99=2e-3, max=3e-3, first=1.0)) == {
        "us: median, 99 %, slowest, ms": "1 / 2 / 3"
    }


def test_a_side_that_dies_is_said() -> None:
    (one,) = children.times([stages.library("no such library")], "conv", 1024, 3, 1e9)
    assert (one.values, one.absent) == ([], "its process ended with code 1")


def test_a_side_that_is_not_there_is_said() -> None:
    with pytest.raises(sides.AbsentError, match="no_such_module is not installed"):
        sides.wanted("no_such_module")


def test_the_children_run_on_as_many_cpus_as_threads() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("this system pins nothing")
    before = os.sched_getaffinity(0)
    try:
        sides.pin(1)
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_run_writes_figures_and_shows_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = (
        stages.Stage("prefill", "prefill", (OURS, OURS), (), (64, 1024)),
        stages.Stage("memory", "memory", (OURS,), (), (1024,)),
        stages.Stage("bfloat16", "prefill", (OURS,), (), ()),
    )
    monkeypatch.setattr(stages, "STAGES", small)
    where = ["--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["run.py", "--quick", "--name", "a", *where])
    assert run.main() == 0
    text = capsys.readouterr().out
    found = json.loads((tmp_path / "a.json").read_text())
    assert [(row["stage"], row["length"]) for row in found["rows"]] == [
        *[("prefill", 64)] * 2,
        *[("prefill", 1024)] * 2,
        ("memory", 1024),
    ]
    assert all(len(row["values"]) == 3 for row in found["rows"][:4])
    assert found["machine"]["numpy"]
    monkeypatch.setattr("sys.argv", ["run.py", "--show", "a", *where])
    assert run.main() == 0
    assert capsys.readouterr().out == text
    assert text.startswith("| what | against | 1,024 |\n")


def test_options_without_effect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["run.py", "--show", "a", "--quick"])
    with pytest.raises(SystemExit, match="--show measures nothing"):
        run.main()


def test_stages_by_effort() -> None:
    def names(effort: stages.Effort, only: list[str] | None = None) -> list[str]:
        return [stage.name for stage in stages.chosen(effort, only)]

    everything = [stage.name for stage in stages.STAGES]
    assert names(stages.Effort(long=True)) == everything
    longer = {"prefill-long", "prefill-medium", "prefill-million"}
    longer |= {"decode-long", "state-long", "memory-million"}
    assert names(stages.Effort()) == [n for n in everything if n not in longer]
    assert names(stages.Effort(), ["prefill-long"]) == ["prefill-long"]
    quick = stages.chosen(stages.Effort(quick=True), None)
    assert max(max(stage.lengths) for stage in quick if stage.what != "memory") == 8192
    assert set(everything) == set(summary.TITLES)


def row(stage: str, length: int, side: str, median: float | None, **changes: Any) -> dict[str, Any]:
    given = {"floor": None, "unit": "s", "environment": {}, "absent": None, **changes}
    values = [] if median is None else [median]
    return {
        "stage": stage, "length": length, "side": side, "median": median, "values": values, **given
    }  # fmt: skip


def test_table_ratios_floors_and_what_is_missing() -> None:
    rows = [
        row("prefill", 1024, "hyena-cpu", 0.010, floor=0.008),
        row("prefill", 1024, "other", 0.025),
        row("prefill", 1024, "llama.cpp", None, absent="not installed"),
        row("prefill", 8192, "hyena-cpu", 0.1, floor=0.08),
        row("prefill", 8192, "other", 1.24),
        row("memory", 8192, "hyena-cpu", 2e6, unit="bytes", floor=1e6),
        row("memory", 8192, "other", 5e6, unit="bytes"),
    ]
    assert summary.markdown(rows).splitlines() == [
        "| what | against | 1,024 | 8,192 |",
        "| --- | --- | --- | --- |",
        "| prefill, HyenaDNA-small | other | 2.5x | 12x |",
        "| prefill, HyenaDNA-small | hyena-cpu itself | 10 ms | 100 ms |",
        "| prefill, HyenaDNA-small | hyena-cpu over its floor | 1.2 | 1.2 |",
        "| memory, HyenaDNA-small | other |  | 2.5x |",
        "| memory, HyenaDNA-small | hyena-cpu itself |  | 2 MB |",
        "",
        "- other: hyena-cpu is faster from 1,024 on, the shortest length tried",
        "- not measured: llama.cpp: not installed",
    ]


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ((0.5, 0.9, 2.0, 3.0), "faster from 1,024 on"),
        ((0.5, 2.0, 0.9, 3.0), "faster from 2,048 on"),
        ((0.5, 0.6, 0.7, 0.8), "not faster at 2,048, the longest length tried"),
        ((2.0, 3.0, 4.0, 5.0), "faster from 256 on, the shortest length tried"),
    ],
)
def test_where_attention_is_overtaken(theirs: tuple[float, ...], says: str) -> None:
    rows = []
    for length, seconds in zip(stages.DECIDING, theirs, strict=True):
        rows += [row("prefill", length, "hyena-cpu", 1.0), row("prefill", length, "peer", seconds)]
    assert summary.crossovers(rows) == [f"peer: hyena-cpu is {says}"]


def test_plots_are_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import pictures

    rows = [row("prefill", n, "hyena-cpu", n * 1e-6, floor=n * 1e-7) for n in (256, 1024)]
    assert pictures.draw(rows, tmp_path) == [tmp_path / "speed-time.svg"]
    first = (tmp_path / "speed-time.svg").read_text()
    assert first.startswith("<?xml")
    pictures.draw(rows, tmp_path)
    assert (tmp_path / "speed-time.svg").read_text() == first
