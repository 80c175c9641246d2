"""The progress line: only for somebody who watches a long step (C089)."""

from __future__ import annotations

import io
import re
import time

import pytest

from hyena_cpu import progress
from hyena_cpu.progress import Progress


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
