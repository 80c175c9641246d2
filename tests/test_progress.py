"""The progress line: only for somebody who watches a long step (C089)."""

from __future__ import annotations

import io
import re
import time

import pytest

from hyena_cpu import progress
from hyena_cpu.progress import Progress, Watch


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    monkeypatch.setattr(progress, "INTERVAL_S", 0.01)


def wait_for_text(stream: io.StringIO) -> None:
    while not stream.getvalue():
        time.sleep(0.005)


def test_a_long_step_shows_its_counts_and_leaves_nothing_behind() -> None:
    stream = Terminal()
    with Progress("layers", stream=stream) as line:
        line.update(3, 8)
        wait_for_text(stream)
    text = stream.getvalue()
    shown = re.match(r"\r(layers: 3/8, [\d,]+/s, 0 s)", text)
    assert shown
    assert re.search(r"\r +\r$", text)


def test_a_rate_is_shown_where_the_end_is_unknown() -> None:
    stream = Terminal()
    with Progress("records", stream=stream) as line:
        line.update(5, 0)
        wait_for_text(stream)
    assert "records: 5, " in stream.getvalue()
    assert "/s" in stream.getvalue()


def test_nothing_is_written_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, enabled in ((io.StringIO(), None), (Terminal(), False)):
        with Progress("layers", stream=stream, enabled=enabled):
            time.sleep(0.05)
        assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "PATIENCE_S", 60.0)
    stream = Terminal()
    with Progress("layers", stream=stream) as line:
        line.update(1, 2)
    line.close()
    assert stream.getvalue() == ""


def test_time_left_by_what_is_done_or_by_a_share() -> None:
    line = Progress("x", enabled=False)
    line.update(25, 100)
    assert line._line(10.0) == "x: 25/100, 2/s, 10 s, about 30 s left"
    line.update(1_000_000, 0, 0.2)
    assert line._line(500.0) == "x: 1,000,000, 2,000/s, 8 min, about 33 min left"
    line.update(7, 0)
    assert line._line(7.0) == "x: 7, 1/s, 7 s"
    line.update(0, 8)
    assert line._line(3.0) == "x: 0/8, 3 s"
    line.update(1, 0, 0.001)
    assert line._line(60.0).endswith("60 s, about 17 h left")


class Told:
    """A Progress that remembers what it was told last."""

    def update(self, done: int, total: int, share: float | None = None) -> None:  # noqa: ARG002
        self.last = done, share


def test_a_watch_adds_up_groups_and_steps() -> None:
    told, read = Told(), iter([0.5, 0.9, 1.0])
    watch = Watch(told, lambda: next(read), resumed=False)  # type: ignore[arg-type]
    watch.scored(0, 100)  # half of the file has been read
    assert told.last == (0, 0.0)
    watch.inside(40, 60)
    assert told.last == (40, 0.2)
    watch.scored(50, 100)
    watch.inside(20, 60)
    assert told.last == (70, 0.35)
    watch.inside(500, 500)  # a window with context
    assert told.last == (100, 0.5)
    watch.scored(100, 100)
    watch.scored(0, 10)
    assert told.last == (100, 0.5)
    watch.scored(10, 10)
    assert told.last == (110, 0.9)
    watch.scored(0, 0)  # a group of empty records
    assert told.last == (110, 1.0)


def test_a_watch_of_a_resumed_run_knows_only_its_own_work() -> None:
    told, read = Told(), iter([0.6, 0.8, 1.0])
    watch = Watch(told, lambda: next(read), resumed=True)  # type: ignore[arg-type]
    watch.scored(0, 10)
    watch.scored(10, 10)
    assert told.last == (10, 0.0)
    watch.scored(0, 10)
    watch.scored(5, 10)
    assert told.last[1] == pytest.approx(0.25)
    watch.scored(10, 10)
    assert told.last[1] == pytest.approx(0.5)


def test_a_watch_without_a_known_end_tells_no_share() -> None:
    told = Told()
    watch = Watch(told, lambda: None, resumed=False)  # type: ignore[arg-type]
    watch.scored(0, 10)
    watch.scored(5, 10)
    assert told.last == (5, None)
