"""Stop strings across pieces (C047) and whole UTF-8 characters only (C049)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu.errors import InputError
from hyena_cpu.text_stream import StopStrings, Utf8Stream

CASES = Path(__file__).parent / "cases"


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    scanner = StopStrings(stops)
    shown = []
    for piece in pieces:
        shown.append(scanner.push(piece))
        if scanner.hit is not None:
            return shown, scanner.hit
    return [*shown, scanner.finish()], None


def test_stop_string_never_leaks() -> None:
    case = json.loads((CASES / "C047/stop.json").read_text())
    shown, hit = run(case["stop"], case["pieces"])
    assert [text for text in shown if text] == case["expected_stream"]
    assert "".join(shown) == case["expected_text"]
    assert hit == case["stop"][0]


def test_near_miss_is_released_in_full() -> None:
    case = json.loads((CASES / "C047/stop.json").read_text())
    near = case["near_miss"]
    shown, hit = run(case["stop"], near["pieces"])
    assert "".join(shown) == near["expected_text"]
    assert hit is None


def test_held_text_is_released_at_the_end() -> None:
    assert run(["DEF"], ["ABCD", "E"]) == (["ABC", "", "DE"], None)


def test_the_string_complete_first_wins_however_the_text_is_cut() -> None:
    assert run(["BCD", "C"], ["ABCD"]) == (["AB"], "C")
    assert run(["BCD", "C"], ["AB", "C", "D"]) == (["A", "B"], "C")
    assert run(["CD", "BCD"], ["ABCD"]) == (["A"], "BCD")


def test_self_overlapping_stop_string() -> None:
    assert run(["aab"], ["aa", "aa", "b!"]) == (["", "aa", ""], "aab")


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        StopStrings([""])


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_cutting_changes_nothing(text: str, stops: list[str]) -> None:
    whole, hit = run(stops, [text])
    assert run(stops, list(text))[1] == hit
    assert "".join(run(stops, list(text))[0]) == "".join(whole)
    if hit is None:
        assert "".join(whole) == text
        assert not any(stop in text for stop in stops)


def test_characters_appear_when_they_are_complete() -> None:
    case = json.loads((CASES / "C049/pieces.json").read_text())
    stream = Utf8Stream()
    assert [stream.push(bytes.fromhex(p)) for p in case["pieces_hex"]] == case["expected_chunks"]
    assert stream.finish() == ""


def test_an_unfinished_character_is_marked() -> None:
    stream = Utf8Stream()
    assert stream.push(b"a\xf0\x9f") == "a"
    assert stream.finish() == "\ufffd"


@given(st.binary(max_size=12), st.data())
def test_pieces_equal_the_whole(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=4)))
    stream = Utf8Stream()
    edges = zip([0, *cuts], [*cuts, len(data)], strict=True)
    text = "".join(stream.push(data[a:b]) for a, b in edges) + stream.finish()
    assert text == data.decode("utf-8", "replace")
