"""Tables: six forms, whole records only, and runs that go on where another one ended."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from read_tables import read_table

from hyena_cpu.errors import InputError, NumericError
from hyena_cpu.streams import WriteError
from hyena_cpu.tables import FORMS, TableWriter

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)
FORM_PARAMS = [pytest.param(f, marks=needs_pyarrow if f == "parquet" else ()) for f in FORMS]
every_form = pytest.mark.parametrize("form", FORM_PARAMS)
line_forms = pytest.mark.parametrize("form", ["tsv", "csv", "json", "jsonl"])
column_forms = pytest.mark.parametrize("form", FORM_PARAMS[-2:])

TYPES: dict[str, type] = {"index": int, "id": str, "x": float}
SETTINGS = {"model": "abc", "window": 8}


def record(i: int) -> dict[str, Any]:
    """Record i has i % 3 rows; every fifth value is missing."""
    n = i % 3
    xs = [None if (i + k) % 5 == 0 else i / 7 + k for k in range(n)]
    return {"index": np.full(n, i), "id": [f"récord {i}"] * n, "x": xs}


def rows(first: int, last: int) -> list[tuple[int, str, float | None]]:
    return [
        row for i in range(first, last) for row in zip(*map(list, record(i).values()), strict=True)
    ]


def read(path: Path, form: str) -> list[tuple[Any, ...]]:
    return read_table(path, form, TYPES)


def same(got: list[Any], want: list[Any]) -> bool:
    """Equal rows; tsv and csv have ten digits."""
    return len(got) == len(want) and all(
        g[:2] == w[:2] and (g[2] == w[2] or g[2] == pytest.approx(w[2], rel=1e-9))
        for g, w in zip(got, want, strict=True)
    )


def write(path: Path, form: str, first: int, last: int, **options: Any) -> TableWriter:
    with TableWriter(path, form, TYPES, settings=SETTINGS, **options) as table:
        for i in range(max(first, table.done), last):
            table.write(record(i), failed=i % 4 == 0)
    return table


def interrupt(
    path: Path, form: str, last: int, torn: Callable[[TableWriter], None] | None, **options: Any
) -> None:
    """A run that Ctrl-C ends after `last` records and whatever `torn` writes."""

    def run() -> None:
        with TableWriter(path, form, TYPES, settings=SETTINGS, **options) as table:
            for i in range(table.done, last):
                table.write(record(i), failed=i % 4 == 0)
            if torn is not None:
                torn(table)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()


def half_a_record(table: TableWriter) -> None:
    table.write(
        {"index": [99, 99], "id": ["torn", "and longer than others"], "x": [1, 2]}, last=False
    )


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("hyena_cpu").propagate = True
    with caplog.at_level(logging.WARNING):
        yield caplog


@every_form
def test_rows_come_back(tmp_path: Path, form: str) -> None:
    path = tmp_path / "модель é.out"
    table = write(path, form, 0, 20)
    assert same(read(path, form), rows(0, 20))
    assert (table.done, table.failed) == (0, 5)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@every_form
def test_an_empty_table(tmp_path: Path, form: str) -> None:
    write(tmp_path / "none", form, 0, 0)
    assert read(tmp_path / "none", form) == []
    write(tmp_path / "rowless", form, 0, 1)
    assert read(tmp_path / "rowless", form) == []


@every_form
def test_pieces_are_one_record(tmp_path: Path, form: str) -> None:
    path = tmp_path / "x"
    with TableWriter(path, form, TYPES) as table:
        for k in range(5):
            piece = {
                "index": np.zeros(100, int),
                "id": np.full(100, "a"),
                "x": np.arange(100.0) + k,
            }
            table.write(piece, last=k == 4)
        assert table._sink.whole.records == 1
    assert same(read(path, form), [(0, "a", float(j + k)) for k in range(5) for j in range(100)])


@every_form
@pytest.mark.parametrize("torn", [None, half_a_record])
@pytest.mark.parametrize("at", [1, 2, 7])
def test_an_interrupted_table_is_valid_and_is_continued(
    tmp_path: Path, form: str, at: int, torn: Any, messages: pytest.LogCaptureFixture
) -> None:
    path, part = tmp_path / "t", tmp_path / "t.part"
    interrupt(path, form, at, torn)
    assert not path.exists()
    assert same(read(part, form), rows(0, at))
    (sentence,) = messages.messages
    assert f"t.part holds the first {at} records" in sentence
    assert "--resume" in sentence
    table = write(path, form, 0, 20, resume=True)
    assert table.done == at
    assert table.failed == 5
    assert same(read(path, form), rows(0, 20))
    assert list(tmp_path.iterdir()) == [path]
    write(tmp_path / "whole", form, 0, 20)
    if form != "parquet":  # its row groups tell where the runs met
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@every_form
def test_interrupted_again_and_again(tmp_path: Path, form: str) -> None:
    path = tmp_path / "t"
    for at in range(1, 8):
        interrupt(path, form, at, half_a_record, resume=True)
        assert same(read(tmp_path / "t.part", form), rows(0, at))
    write(path, form, 0, 9, resume=True)
    assert same(read(path, form), rows(0, 9))


@every_form
def test_nothing_whole_leaves_nothing(
    tmp_path: Path, form: str, messages: pytest.LogCaptureFixture
) -> None:
    interrupt(tmp_path / "t", form, 0, half_a_record)
    assert list(tmp_path.iterdir()) == []
    assert messages.messages == []


@line_forms
def test_a_kill_at_any_point_loses_a_second_at_most(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files as they are after every write, and with any torn end, can be continued."""
    monkeypatch.setattr("hyena_cpu.tables.writer.COMMIT_S", 0.0)
    monkeypatch.setattr("hyena_cpu.tables.lines.SPILL", 1)
    path, other = tmp_path / "t", tmp_path / "killed"
    rng = random.Random(5)
    with TableWriter(path, form, TYPES, settings=SETTINGS) as table:
        for i in range(12):
            table.write(record(i))
            half_a_record_of = {"index": [i], "id": ["torn"], "x": [0.5]}
            for name in (".part", ".part.json"):
                shutil.copy(f"{path}{name}", f"{other}{name}")
            if i == 11:
                break
            with Path(f"{other}.part").open("ab") as file:
                torn = json.dumps(half_a_record_of).encode()
                file.write(torn[: rng.randrange(len(torn) + 1)])
            resumed = write(other, form, 0, 12, resume=True)
            assert resumed.done == i + 1
            assert same(read(other, form), rows(0, 12))
            other.unlink()
    assert same(read(path, form), rows(0, 12))


@line_forms
def test_a_file_that_lost_committed_rows_is_refused(tmp_path: Path, form: str) -> None:
    interrupt(tmp_path / "t", form, 8, None)
    part = tmp_path / "t.part"
    size = json.loads((tmp_path / "t.part.json").read_text())["size"]
    os.truncate(part, size - 1)
    with pytest.raises(InputError, match=rf"t\.part has {size - 1} bytes, .* says {size}"):
        write(tmp_path / "t", form, 0, 9, resume=True)
    part.unlink()
    with pytest.raises(InputError, match="has 0 bytes"):
        write(tmp_path / "t", form, 0, 9, resume=True)


@column_forms
def test_a_damaged_partial_file_is_refused(tmp_path: Path, form: str) -> None:
    interrupt(tmp_path / "t", form, 8, None)
    part = tmp_path / "t.part"
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(InputError, match="cannot be read"):
        write(tmp_path / "t", form, 0, 9, resume=True)
    part.write_bytes(b"longer" * 10_000)
    with pytest.raises(InputError, match="has 60000 bytes"):
        write(tmp_path / "t", form, 0, 9, resume=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"records": "x"}', None])
def test_a_damaged_statement_is_refused(tmp_path: Path, text: str | None) -> None:
    interrupt(tmp_path / "t", "tsv", 3, None)
    sidecar = tmp_path / "t.part.json"
    if text is None:
        sidecar.unlink()
    else:
        sidecar.write_text(text)
    for resume in (True, False):
        with pytest.raises(InputError, match=r"t\.part\.json is absent or damaged"):
            write(tmp_path / "t", "tsv", 0, 9, resume=resume)
    assert len(read(tmp_path / "t.part", "tsv")) == 3


def test_other_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    interrupt(path, "tsv", 3, None)
    for settings, message in (
        ({"model": "abc", "window": 9}, "window was 8 and is 9;"),
        ({"model": "é", "window": 8}, 'model was "abc" and is "é"'),
        ({"model": "abc"}, "window was 8 and is not given"),
        ({**SETTINGS, "rna": "keep"}, 'rna was not given and is "keep"'),
    ):
        with pytest.raises(InputError, match=f"begun with other settings: {message}"):
            TableWriter(path, "tsv", TYPES, settings=settings, resume=True)
    with pytest.raises(InputError, match='format was "tsv" and is "jsonl"'):
        TableWriter(path, "jsonl", TYPES, settings=SETTINGS, resume=True)
    with pytest.raises(InputError, match="columns was"):
        TableWriter(path, "tsv", {**TYPES, "y": int}, settings=SETTINGS, resume=True)
    assert write(path, "tsv", 0, 4, resume=True).done == 3


def test_an_unfinished_run_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "t"
    interrupt(path, "tsv", 3, None)
    with pytest.raises(InputError, match="holds 3 records of an unfinished run: continue it"):
        write(path, "tsv", 0, 4)
    assert len(read(tmp_path / "t.part", "tsv")) == 3


def test_a_run_killed_before_its_first_record_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "t"
    TableWriter(path, "tsv", TYPES)
    assert (tmp_path / "t.part").exists()
    (tmp_path / "t.part.json").unlink()
    assert write(path, "jsonl", 0, 4).done == 0
    TableWriter(path, "tsv", TYPES)
    assert write(path, "jsonl", 0, 4).done == 0
    assert same(read(path, "jsonl"), rows(0, 4))


@every_form
def test_resume_with_nothing_there_begins_and_a_complete_table_is_refused(
    tmp_path: Path, form: str
) -> None:
    path = tmp_path / "t"
    assert write(path, form, 0, 5, resume=True).done == 0
    before = path.read_bytes()
    with pytest.raises(InputError, match="is complete, so there is nothing to resume"):
        write(path, form, 0, 5, resume=True)
    assert path.read_bytes() == before
    write(path, form, 0, 3)  # a new run replaces it
    assert same(read(path, form), rows(0, 3))


def test_missing_values_and_awkward_texts(tmp_path: Path) -> None:
    data = {"index": [1, 2], "id": ["a\tb\n c\r", None], "x": np.array([np.nan, 1e-300])}
    with TableWriter(tmp_path / "t", "tsv", TYPES) as table:
        table.write(data)
    assert (tmp_path / "t").read_text() == "index\tid\tx\n1\ta\\tb\\n c\\r\tNA\n2\tNA\t1e-300\n"
    for form in ("json", "jsonl"):
        with TableWriter(tmp_path / form, form, TYPES) as table:
            table.write(data)
        assert read(tmp_path / form, form) == [(1, "a\tb\n c\r", None), (2, None, 1e-300)]
    with TableWriter(tmp_path / "csv", "csv", TYPES) as table:
        table.write(data)
    assert read(tmp_path / "csv", "csv") == [(1, "a\tb\n c\r", None), (2, None, 1e-300)]
    with TableWriter(tmp_path / "npz", "npz", TYPES) as table:
        table.write(data)
    assert read(tmp_path / "npz", "npz") == [(1, "a\tb\n c\r", None), (2, "", 1e-300)]
    with (
        pytest.raises(ValueError, match="cannot hold missing"),
        TableWriter(tmp_path / "t", "npz", TYPES) as table,
    ):
        table.write({"index": [None], "id": ["a"], "x": [1.0]})


def test_a_tsv_is_the_same_with_and_without_missing_values(tmp_path: Path) -> None:
    data = {"index": [1, -5], "id": ["%d", "é %"], "x": np.array([1 / 3, -2e-17])}
    holed = {"index": [1, 7, -5], "id": ["%d", "x", "é %"], "x": [1 / 3, None, -2e-17]}
    lines = []
    for name, record in (("plain", data), ("holed", holed)):
        with TableWriter(tmp_path / name, "tsv", TYPES) as table:
            table.write(record)
        lines.append((tmp_path / name).read_text().splitlines())
    assert lines[0] == [line for line in lines[1] if not line.startswith("7")]
    assert lines[0][1] == "1\t%d\t0.3333333333"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("plain", "plain"),
        ("a,b", '"a,b"'),
        ('say "so"', '"say ""so"""'),
        ("a\rb", '"a\rb"'),
        ("a\r\n", '"a\r\n"'),
        ("a\tb", "a\tb"),
        ("é;\u2028", "é;\u2028"),
    ],
)
def test_a_csv_quotes_what_its_readers_would_split(tmp_path: Path, text: str, cell: str) -> None:
    path = tmp_path / "t.csv"
    with TableWriter(path, "csv", TYPES) as table:
        table.write({"index": [1, 2], "id": [text, "b"], "x": [1 / 3, None]})
    assert path.read_bytes().decode() == f"index,id,x\n1,{cell},0.3333333333\n2,b,NA\n"
    assert read(path, "csv") == [(1, text, 0.3333333333), (2, "b", None)]


def test_json_has_no_infinite_numbers(tmp_path: Path) -> None:
    with (
        pytest.raises(NumericError, match="no infinite numbers"),
        TableWriter(tmp_path / "t", "json", TYPES) as table,
    ):
        table.write({"index": [1], "id": ["a"], "x": [np.inf]})


def test_columns_must_fit(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t", "tsv", TYPES) as table:
        with pytest.raises(ValueError, match="different lengths"):
            table.write({"index": [1], "id": ["a", "b"], "x": [1.0]})
        with pytest.raises(ValueError, match="the table has"):
            table.write({"index": [1], "id": ["a"]})


@line_forms
def test_standard_output(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, form: str
) -> None:
    write(tmp_path / "t", form, 0, 6)
    write(None, form, 0, 6)  # type: ignore[arg-type]
    assert capfdbinary.readouterr().out == (tmp_path / "t").read_bytes()
    with pytest.raises(InputError, match="standard output cannot be resumed"):
        TableWriter(None, form, TYPES, resume=True)
    with pytest.raises(ZeroDivisionError), TableWriter(None, form, TYPES):
        raise ZeroDivisionError
    assert capfdbinary.readouterr().out == b""


@column_forms
def test_forms_that_need_a_file(form: str) -> None:
    for path in (None, Path(os.devnull)):
        with pytest.raises(InputError, match=f"{form} cannot be written to"):
            TableWriter(path, form, TYPES)


@every_form
def test_places_that_cannot_be_written(tmp_path: Path, form: str) -> None:
    with pytest.raises(InputError, match="cannot be"):
        TableWriter(tmp_path, form, TYPES)
    with pytest.raises((InputError, WriteError), match="No such file"):
        TableWriter(tmp_path / "absent" / "t", form, TYPES)


def test_a_device_is_written_directly() -> None:
    write(Path(os.devnull), "tsv", 0, 5)
    assert not Path(os.devnull).is_file()
    full = Path("/dev/full")
    if full.is_char_device():
        with pytest.raises(WriteError, match="No space left"):
            write(full, "tsv", 0, 5)
