"""Tables where no more can be written, and runs whose input is no longer what it was."""

from __future__ import annotations

import argparse
import errno
import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hyena_cpu.cli.common import UsageError
from hyena_cpu.cli.tables import open_table, table_settings
from hyena_cpu.errors import InputError
from hyena_cpu.streams import WriteError
from hyena_cpu.tables import FORMS, Kind, TableWriter, Vector

resource = pytest.importorskip("resource", reason="files cannot be kept short here")

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)
ALL = [pytest.param(f, marks=needs_pyarrow if f == "parquet" else ()) for f in (*FORMS, "npy")]
every_form = pytest.mark.parametrize("form", ALL)
column_forms = pytest.mark.parametrize("form", ALL[-3:-1])

ROOM = 20_000  # bytes that a file may have


def columns(form: str) -> dict[str, Kind]:
    return {"index": int, "id": str, "x": Vector(2) if form == "npy" else float}


def record(form: str, i: int) -> dict[str, Any]:
    """100 rows that no compression makes much shorter."""
    numbers = np.random.default_rng(i).random((100, 2), np.float32)
    x = numbers if form == "npy" else numbers[:, 0].astype(float)
    return {"index": np.full(100, i), "id": [f"r{i}"] * 100, "x": x}


def run(path: Path, form: str, last: int, **options: Any) -> None:
    with TableWriter(path, form, columns(form), **options) as table:
        for i in range(table.done, last):
            table.write(record(form, i))


def interrupt(path: Path, form: str, last: int, before: Callable[[], None] | None = None) -> None:
    """A run that Ctrl-C ends, right after `before`."""

    def stopped() -> None:
        with TableWriter(path, form, columns(form)) as table:
            for i in range(last):
                table.write(record(form, i))
            if before is not None:
                before()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()


@contextmanager
def short_files(room: int = ROOM) -> Iterator[None]:
    """Inside, no file grows beyond `room`: the system refuses that as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def no_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk is full as soon as the statement beside a table has its name."""

    def write_text(path: Path, *_: Any, **__: Any) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write_text)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave early, so that a write fails amid a run."""
    monkeypatch.setattr("hyena_cpu.tables.lines.SPILL", 1000)
    monkeypatch.setattr("hyena_cpu.tables.parquet.GROUP", 500)


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("hyena_cpu").propagate = True
    with caplog.at_level(logging.WARNING):
        yield caplog


def inside(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@every_form
def test_a_full_disk_is_said_once_and_leaves_nothing_temporary(
    tmp_path: Path, form: str, messages: pytest.LogCaptureFixture
) -> None:
    with short_files(), pytest.raises(WriteError, match=r"cannot write .*/t\.x: File too large$"):
        run(tmp_path / "t.x", form, 200)
    assert [text for text in messages.messages if "cannot write" in text] == []
    grows = {"t.x.part", "t.x.part.json"} | ({"t.x.ids.tsv.part"} if form == "npy" else set())
    assert inside(tmp_path) == (set() if form in ("npz", "parquet") else grows)


@needs_pyarrow
def test_a_disk_too_full_for_the_first_bytes_of_parquet(tmp_path: Path) -> None:
    with short_files(0), pytest.raises(WriteError, match=r"cannot write .*/t: File too large$"):
        run(tmp_path / "t", "parquet", 3)
    assert inside(tmp_path) == set()


@column_forms
def test_a_disk_too_full_for_the_rows_of_an_earlier_run(tmp_path: Path, form: str) -> None:
    path, part = tmp_path / "t", tmp_path / "t.part"
    interrupt(path, form, 60)
    before = part.read_bytes()
    with short_files(), pytest.raises(WriteError, match=r"cannot write .*/t: "):
        run(path, form, 80, resume=True)
    assert inside(tmp_path) == {"t.part", "t.part.json"}
    assert part.read_bytes() == before
    run(path, form, 80, resume=True)
    assert inside(tmp_path) == {"t"}


@needs_pyarrow
def test_the_end_of_a_parquet_file_that_nobody_will_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be written either, which is no error of its own."""
    import pyarrow.parquet as pq

    def close(self: Any) -> None:
        self.is_open = False
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    monkeypatch.setattr(pq.ParquetWriter, "close", close)
    with (
        pytest.raises(ZeroDivisionError),
        TableWriter(tmp_path / "t", "parquet", columns("parquet")),
    ):
        raise ZeroDivisionError
    assert inside(tmp_path) == set()


@pytest.mark.parametrize("form", ["tsv", "json", "npy"])
def test_a_run_that_cannot_even_begin_leaves_nothing(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_statements(monkeypatch)
    with pytest.raises(WriteError, match=r"cannot write .*/t\.part\.json: No space left"):
        run(tmp_path / "t", form, 3)
    assert inside(tmp_path) == set()


@every_form
def test_after_ctrl_c_a_full_disk_is_news(
    tmp_path: Path,
    form: str,
    monkeypatch: pytest.MonkeyPatch,
    messages: pytest.LogCaptureFixture,
) -> None:
    interrupt(tmp_path / "t", form, 1, lambda: no_statements(monkeypatch))
    (sentence,) = messages.messages
    assert "t.part.json: No space left on device" in sentence
    assert not [name for name in inside(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("x.npy", "x.ids.tsv"),
        ("x.NPY", "x.ids.tsv"),
        ("set.train.npy", "set.train.ids.tsv"),
        ("set.train", "set.train.ids.tsv"),
        ("x", "x.ids.tsv"),
    ],
)
def test_ids_beside_a_matrix_carry_its_whole_name(tmp_path: Path, name: str, ids: str) -> None:
    run(tmp_path / name, "npy", 2)
    assert inside(tmp_path) == {name, ids}


def test_matrices_of_one_stem_keep_their_ids_apart(tmp_path: Path) -> None:
    run(tmp_path / "set.train", "npy", 2)
    run(tmp_path / "set.test", "npy", 3)
    lines = (tmp_path / "set.train.ids.tsv").read_text().splitlines()
    assert len(lines) == 1 + 200


def table_of(fasta: Path | str, out: Path | None, *, resume: bool = False) -> TableWriter:
    """The table of a command that reads `fasta` and whose rows have one column."""
    args = argparse.Namespace(
        fasta=fasta, output=out, format="tsv", json=False, resume=resume, text="x.fa"
    )
    model: Any = SimpleNamespace(fingerprint="abc", numerics={"threads": 1})
    return open_table(args, {"n": int}, table_settings(args, model, "fasta", "text"))


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Path, Path]:
    """A FASTA file and the table of a run over it that was interrupted."""
    fasta, out = tmp_path / "x.fa", tmp_path / "t"
    fasta.write_bytes(b">a\n" + b"ACGT" * 1_000_000)

    def run_over() -> None:
        with table_of(fasta, out) as table:
            table.write({"n": [1]})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_over()
    return fasta, out


def test_input_that_changed_but_kept_its_size_is_refused(stopped: tuple[Path, Path]) -> None:
    fasta, out = stopped
    data = fasta.read_bytes()
    fasta.write_bytes(data[:-1] + b"A")
    with pytest.raises(UsageError, match=r"other settings: checksum of fasta was \"\w+\" and is"):
        table_of(fasta, out, resume=True)
    fasta.write_bytes(data)
    with table_of(fasta, out, resume=True) as table:
        assert table.done == 1
    assert out.read_text() == "n\n1\n"


def test_a_run_that_noted_only_the_size_of_its_input_is_refused(
    stopped: tuple[Path, Path],
) -> None:
    fasta, out = stopped
    sidecar = out.with_name("t.part.json")
    text = sidecar.read_text()
    start = text.index('"checksum of fasta"')
    end = text.index("\n", start)
    sidecar.write_text(text[:start] + '"bytes of fasta": 4000003,' + text[end:])
    with pytest.raises(UsageError, match="bytes of fasta was 4000003 and is not given"):
        table_of(fasta, out, resume=True)


def test_only_files_are_read_and_only_for_a_table_that_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path | str) -> str:
        raise AssertionError(f"{path} is read")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hyena_cpu.cli.tables._checksum", read)
    (tmp_path / "x.fa").write_text(">a\nACGT\n")
    os.mkfifo("pipe.fa")
    table_of(tmp_path / "x.fa", None)
    for fasta in ("-", "pipe.fa", "absent.fa"):
        with table_of(fasta, tmp_path / "t"):
            pass


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.path.isfile", lambda _: True)
    with pytest.raises(InputError, match=r"absent\.fa: cannot be read: No such file"):
        table_of(tmp_path / "absent.fa", tmp_path / "t")
