"""The default number of threads (C072): parsers on strings, limits, order of precedence."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from hyena_cpu import threads
from hyena_cpu.errors import InputError
from hyena_cpu.threads import (
    choose_threads,
    count_cores,
    cpu_quota,
    default_threads,
    machine_limits,
    parse_cfs,
    parse_cgroup,
    parse_cpu_max,
    parse_threads,
)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYENA_CPU_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("200000 100000", 2.0),
        ("50000 100000", 0.5),
        ("100000", None),
        ("", None),
        ("0 100000", None),
        ("100000 0", None),
    ],
)
def test_cpu_max(text: str, cpus: float | None) -> None:
    assert parse_cpu_max(text) == cpus


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [("-1\n", "100000\n", None), ("250000\n", "100000\n", 2.5), ("", "", None), ("x", "1", None)],
)
def test_cfs_quota(quota: str, period: str, cpus: float | None) -> None:
    assert parse_cfs(quota, period) == cpus


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4", 4),
        (" 8 ", 8),
        ("4,2", 4),
        ("", None),
        ("0", None),
        ("-2", None),
        ("many", None),
        ("004", 4),
        ("4096", 4096),
        ("4097", None),
        ("9" * 5000, None),
    ],
)
def test_numbers_in_variables(text: str, count: int | None) -> None:
    assert parse_threads(text) == count


def test_cgroup_lines() -> None:
    text = "4:cpu,cpuacct:/a/b\n0::/user.slice/x\nnonsense\n"
    groups = parse_cgroup(text)
    assert groups["cpu"] == PurePosixPath("/a/b")
    assert groups[""] == PurePosixPath("/user.slice/x")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_the_tightest_group_of_v2_counts(tmp_path: Path) -> None:
    write(tmp_path, {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000"})
    assert cpu_quota("0::/a/b\n", tmp_path) == 1.5


def test_quota_files_of_v1(tmp_path: Path) -> None:
    folder = "cpu,cpuacct/job"
    write(tmp_path, {f"{folder}/cpu.cfs_quota_us": "300000"})
    assert cpu_quota("3:cpu,cpuacct:/job\n", tmp_path) is None
    write(tmp_path, {f"{folder}/cpu.cfs_period_us": "100000"})
    assert cpu_quota("3:cpu,cpuacct:/job\n", tmp_path) == 3.0


def test_inside_a_container_the_mount_itself_counts(tmp_path: Path) -> None:
    write(tmp_path, {"cpu.max": "200000 100000"})
    assert cpu_quota("0::/not/visible/here\n", tmp_path) == 2.0


def test_without_control_groups_there_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota("", tmp_path) is None


def test_siblings_share_a_core() -> None:
    assert count_cores(["0,4\n", "1,5\n", "0,4\n", ""]) == 2
    assert count_cores(["", ""]) == 0


def test_the_least_limit_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: list(range(8)))
    monkeypatch.setattr(threads, "_siblings", lambda cpus: [str(cpu // 2) for cpu in cpus])
    monkeypatch.setattr(threads, "cpu_quota", lambda: 2.9)
    assert machine_limits() == {"CPU affinity": 8, "CPU quota": 2, "physical cores": 4}
    assert choose_threads().reason == "CPU quota"
    assert default_threads() == 2
    monkeypatch.setattr(threads, "cpu_quota", lambda: 0.3)
    assert default_threads() == 1
    monkeypatch.setattr(threads, "cpu_quota", lambda: None)
    assert choose_threads() == threads.ThreadChoice(4, "physical cores")


def test_argument_beats_environment_beats_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert choose_threads() == threads.ThreadChoice(3, "OMP_NUM_THREADS")
    monkeypatch.setenv("HYENA_CPU_THREADS", "5")
    assert choose_threads() == threads.ThreadChoice(5, "HYENA_CPU_THREADS")
    assert choose_threads(7) == threads.ThreadChoice(7, "argument")


def test_a_number_of_numpy_is_taken_as_a_whole_number() -> None:
    assert type(choose_threads(np.int8(2)).count) is int  # else sums of bytes would wrap around


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="threads is 0"):
        choose_threads(0)
    monkeypatch.setenv("HYENA_CPU_THREADS", "two")
    with pytest.raises(InputError, match="HYENA_CPU_THREADS is 'two'"):
        choose_threads()
