"""Files of embeddings: every format, whole records only, and interrupted runs that go on."""

from __future__ import annotations

import csv
import importlib.util
import logging
import os
import resource
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyena_cpu.arrays import open_arrays
from hyena_cpu.embed import Item
from hyena_cpu.errors import InputError
from hyena_cpu.streams import WriteError
from hyena_cpu.tables.npy import header

WIDTH = 3
SETTINGS = {"model": "abc", "layer": -1}
FAILED = 5  # of 20 records: every fourth

needs_pyarrow = pytest.mark.skipif(
    importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed"
)
KINDS = [
    pytest.param((pool, form), marks=needs_pyarrow if form == "parquet" else ())
    for pool, forms in (
        ("mean", ("tsv", "csv", "npy", "npz", "parquet")),
        ("none", ("npz", "parquet")),
    )
    for form in forms
]
every_kind = pytest.mark.parametrize("kind", KINDS)
Kind = tuple[str, str]


def item(i: int) -> Item:
    error = InputError(f"no {i}") if i % 4 == 3 else None
    return Item(i, f"récord {i}", 10 * i, None if error else np.zeros(i % 3 + 1, np.int32), error)


def matrix(i: int) -> np.ndarray:
    """The rows of record i at every position, numbers that need all digits of a float32."""
    return np.random.default_rng(i).normal(size=(i % 3 + 1, WIDTH)).astype(np.float32)


def blocks(kind: Kind, i: int) -> Iterator[np.ndarray]:
    """What is handed to a writer: a row, or all rows in pieces, none for a failed record."""
    if item(i).error is None:
        yield matrix(i)[:1]
        if kind[0] == "none" and i % 3:
            yield matrix(i)[1:]


def write(path: Path | None, kind: Kind, last: int, torn: Any = None, **options: Any) -> Any:
    """Records up to `last`, after what is there; `torn` is called with the writer then."""
    options = {"settings": SETTINGS, **options}
    with open_arrays(path, kind[1], WIDTH, pooled=kind[0] == "mean", **options) as arrays:
        for i in range(last):
            if i < arrays.done:
                arrays.skip(item(i))
            else:
                arrays.put(item(i), blocks(kind, i))
        if torn is not None:
            torn(arrays, last)
    return arrays


def interrupt(path: Path, kind: Kind, last: int, torn: Any, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(path, kind, last, torn, **options)


def at_once(*_: Any) -> None:
    raise KeyboardInterrupt


def amid_a_record(arrays: Any, i: int) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield np.ones((2, WIDTH), np.float32)
        raise KeyboardInterrupt

    arrays.put(Item(i, "torn", 4, np.zeros(4, np.int32)), broken())
    raise KeyboardInterrupt


def wanted(kind: Kind, last: int) -> list[tuple[Any, ...]]:
    """(index, status, rows) of every record."""
    found = []
    for i in range(last):
        rows = np.concatenate([np.zeros((0, WIDTH), np.float32), *blocks(kind, i)])
        if kind[0] == "mean" and not len(rows):
            rows = np.full((1, WIDTH), np.nan, np.float32)
        found.append((i, item(i).status, rows))
    return found


def read(path: Path, kind: Kind, last: int, *, part: bool = False) -> list[tuple[Any, ...]]:
    """The same from a file, with everything else in it checked."""
    ids = [item(i).id for i in range(last)]
    if kind == ("none", "parquet"):
        return _positions(path, last)
    if kind[1] == "npz":
        with np.load(path, allow_pickle=False) as z:
            if kind[0] == "none" and part:
                return [(i, item(i).status, z.get(str(i))) for i in range(last)]
            assert z["ids"].tolist() == ids
            assert z["lengths"].tolist() == [10 * i for i in range(last)]
            status = z["status"].tolist()
            if kind[0] == "none":
                assert len(z.files) == 3 + sum(item(i).error is None for i in range(last))
                return [(i, s, z.get(str(i))) for i, s in enumerate(status)]
            assert z["vectors"].shape == (last, WIDTH)
            return [(i, s, z["vectors"][i : i + 1]) for i, s in enumerate(status)]
    if kind[1] == "parquet":
        import pyarrow.parquet as pq

        table = pq.read_table(path).to_pydict()
        vectors = np.array(table["vector"], np.float32).reshape(-1, 1, WIDTH)
    else:
        text = path
        if kind[1] == "npy":
            text = path.with_name(path.name.replace(".npy", ".ids.tsv"))
        with text.open(encoding="utf-8", newline="") as file:
            separator = "," if kind[1] == "csv" else "\t"
            lines = list(csv.DictReader(file, delimiter=separator))
        table = {
            name: [line[name] for line in lines] for name in ("index", "id", "length", "status")
        }
        names = [f"v{d}" for d in range(WIDTH)]
        if kind[1] == "npy":
            vectors = np.load(path).reshape(-1, 1, WIDTH)
        else:
            cells = [[line[n].replace("NA", "nan") for n in names] for line in lines]
            vectors = np.array(cells, np.float32).reshape(-1, 1, WIDTH)
    assert table["id"] == ids
    assert list(map(int, table["length"])) == [10 * i for i in range(last)]
    return list(zip(map(int, table["index"]), table["status"], vectors, strict=True))


def _positions(path: Path, last: int) -> list[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = np.array(table["vector"].to_pylist(), np.float32).reshape(-1, WIDTH)
    index = np.array(table["index"].to_pylist(), int)
    for i in range(last):
        n = int((index == i).sum())
        assert [p for p, k in zip(table["position"].to_pylist(), index, strict=True) if k == i] == [
            *range(n)
        ]
        assert {s for s, k in zip(table["id"].to_pylist(), index, strict=True) if k == i} <= {
            item(i).id
        }
    return [(i, item(i).status, rows[index == i]) for i in range(last)]


def same(got: list[tuple[Any, ...]], want: list[tuple[Any, ...]]) -> bool:
    return len(got) == len(want) and all(
        g[:2] == w[:2]
        and (len(w[2]) == 0 if g[2] is None else np.array_equal(g[2], w[2], equal_nan=True))
        for g, w in zip(got, want, strict=True)
    )


def names(kind: Kind) -> set[str]:
    return {f"t.{kind[1]}", *(["t.ids.tsv"] if kind[1] == "npy" else [])}


def inside(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("hyena_cpu").propagate = True
    with caplog.at_level(logging.WARNING):
        yield caplog


@every_kind
def test_vectors_come_back_to_the_bit(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / f"t.{kind[1]}"
    arrays = write(path, kind, 20)
    assert same(read(path, kind, 20), wanted(kind, 20))
    assert (arrays.done, arrays.failed) == (0, FAILED)
    assert inside(tmp_path) == names(kind)


@every_kind
@pytest.mark.parametrize("torn", [at_once, amid_a_record])
@pytest.mark.parametrize("at", [1, 2, 7])
def test_an_interrupted_run_leaves_a_valid_part_and_is_continued(
    tmp_path: Path,
    kind: Kind,
    at: int,
    torn: Callable[..., None],
    messages: pytest.LogCaptureFixture,
) -> None:
    if kind[0] == "mean" and torn is amid_a_record:
        torn = at_once  # a row is never torn
    path, part = tmp_path / f"t.{kind[1]}", tmp_path / f"t.{kind[1]}.part"
    interrupt(path, kind, at, torn)
    assert inside(tmp_path) == {f"{n}.part" for n in names(kind)} | {f"{part.name}.json"}
    assert same(read(part, kind, at, part=True), wanted(kind, at))
    (sentence,) = messages.messages
    assert f"{part.name} holds the first {at} records" in sentence
    with pytest.raises(InputError, match="unfinished run"):
        write(path, kind, 20)
    interrupt(path, kind, at, at_once, resume=True)  # nothing new
    interrupt(path, kind, at + 1, torn, resume=True)
    assert same(read(part, kind, at + 1, part=True), wanted(kind, at + 1))
    arrays = write(path, kind, 20, resume=True)
    assert (arrays.done, arrays.failed) == (at + 1, FAILED)
    assert same(read(path, kind, 20), wanted(kind, 20))
    assert inside(tmp_path) == names(kind)
    write(tmp_path / f"w.{kind[1]}", kind, 20)
    if kind[1] != "parquet":  # its row groups tell where the runs met
        assert path.read_bytes() == (tmp_path / f"w.{kind[1]}").read_bytes()


@every_kind
def test_nothing_whole_leaves_nothing(
    tmp_path: Path, kind: Kind, messages: pytest.LogCaptureFixture
) -> None:
    interrupt(tmp_path / f"t.{kind[1]}", kind, 0, amid_a_record if kind[0] == "none" else at_once)
    assert inside(tmp_path) == set()
    assert messages.messages == []


@every_kind
def test_other_settings_are_named(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / f"t.{kind[1]}"
    interrupt(path, kind, 3, at_once)
    with pytest.raises(InputError, match="layer was -1 and is 2;"):
        write(path, kind, 9, resume=True, settings={**SETTINGS, "layer": 2})
    write(path, kind, 9, resume=True)
    with pytest.raises(InputError, match="is complete, so there is nothing to resume"):
        write(path, kind, 9, resume=True)


def test_the_wrong_number_of_rows_is_noticed(tmp_path: Path) -> None:
    one = Item(0, "a", 5, np.zeros(5, np.int32))
    for n, word in ((4, "1 rows too few"), (6, "1 rows too many")):
        with (
            pytest.raises(ValueError, match=word),
            open_arrays(tmp_path / "t.npz", "npz", WIDTH, pooled=False) as arrays,
        ):
            arrays.put(one, iter([np.zeros((n, WIDTH), np.float32)]))
    assert inside(tmp_path) == set()


def test_all_positions_of_one_record_as_npy(tmp_path: Path) -> None:
    path = tmp_path / "t.npy"
    h = np.random.default_rng(0).normal(size=(9_000, WIDTH)).astype(np.float32)
    pieces = [h[:4096], h[4096:8192], h[8192:]]
    one = Item(0, "a", 9_000, np.zeros(9_000, np.int32))
    with open_arrays(path, "npy", WIDTH, pooled=False) as arrays:
        arrays.put(one, iter(pieces))
    assert np.array_equal(np.load(path), h)
    assert np.load(path, mmap_mode="r").dtype == np.float32
    assert inside(tmp_path) == {"t.npy"}


def test_a_killed_run_of_npy_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files as they are after every write, with torn ends, can be continued."""
    monkeypatch.setattr("hyena_cpu.tables.writer.COMMIT_S", 0.0)
    kind = ("mean", "npy")
    path, other = tmp_path / "t.npy", tmp_path / "k.npy"
    with open_arrays(path, "npy", WIDTH, pooled=True, settings=SETTINGS) as arrays:
        for i in range(8):
            arrays.put(item(i), blocks(kind, i))
            for name in ("npy.part", "npy.part.json", "ids.tsv.part"):
                shutil.copy(tmp_path / f"t.{name}", tmp_path / f"k.{name}")
            for name in ("npy.part", "ids.tsv.part"):
                with (tmp_path / f"k.{name}").open("ab") as file:
                    file.write(b"torn\n to"[: 2 * i])
            assert len(np.load(tmp_path / "k.npy.part")) == i + 1
            assert write(other, kind, 12, resume=True).done == i + 1
            assert same(read(other, kind, 12), wanted(kind, 12))
            other.unlink()


def test_lost_ids_are_noticed(tmp_path: Path) -> None:
    kind, path = ("mean", "npy"), tmp_path / "t.npy"
    interrupt(path, kind, 5, at_once)
    ids = tmp_path / "t.ids.tsv.part"
    ids.write_text("".join(ids.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(InputError, match=r"t\.ids\.tsv\.part has lost records"):
        write(path, kind, 9, resume=True)
    ids.unlink()
    with pytest.raises(InputError, match=r"t\.ids\.tsv\.part cannot be read: No such file"):
        write(path, kind, 9, resume=True)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    kind, path = ("none", "npz"), tmp_path / "t.npz"
    interrupt(path, kind, 5, at_once)
    part = tmp_path / "t.npz.part"
    part.write_bytes(bytes(part.stat().st_size))
    with pytest.raises(InputError, match=r"t\.npz\.part cannot be read"):
        write(path, kind, 9, resume=True)


def test_archives_are_whole(tmp_path: Path) -> None:
    """Sums of the members are right also where a run was continued."""
    kind, path = ("none", "npz"), tmp_path / "t.npz"
    for at in (1, 3, 4):
        interrupt(path, kind, at, amid_a_record, resume=True)
        with zipfile.ZipFile(tmp_path / "t.npz.part") as archive:
            assert archive.testzip() is None
    write(path, kind, 6, resume=True)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


@contextmanager
def small_files() -> Iterator[None]:
    """Files cannot grow beyond 4,096 bytes; not for long, for pytest writes to files too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_a_full_disk_is_one_error_and_whole_records_stay(tmp_path: Path, form: str) -> None:
    h = np.random.default_rng(0).normal(size=(20, 1, 256)).astype(np.float32)

    def run() -> None:
        with open_arrays(tmp_path / "t", form, 256, pooled=form == "npy") as arrays:
            for i, row in enumerate(h):
                arrays.put(Item(i, "a", 1, np.zeros(1, np.int32)), iter([row]))

    with pytest.raises(WriteError, match="File too large"), small_files():
        run()
    found = np.load(tmp_path / "t.part")
    if form == "npz":
        with found:
            found = np.concatenate([found[str(i)] for i in range(len(found.files))])
    assert len(found) == 3
    assert np.array_equal(found, h[: len(found), 0])


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for form, pooled in (("npy", True), ("npz", True), ("npz", False), ("npy", False)):
        for path in (Path(os.devnull), tmp_path):
            with pytest.raises(InputError, match="cannot be written to"):
                open_arrays(path, form, WIDTH, pooled=pooled)
        with pytest.raises((InputError, WriteError), match="No such file"):
            open_arrays(tmp_path / "absent" / "t", form, WIDTH, pooled=pooled)
    with pytest.raises(InputError, match="npy cannot be written to standard output"):
        open_arrays(None, "npy", WIDTH, pooled=True)
    with pytest.raises(InputError, match=r"all positions go to a file"):
        open_arrays(None, "tsv", WIDTH, pooled=False)


def test_the_head_of_a_matrix_has_room_to_grow() -> None:
    assert len({len(header(10**k, 256)) for k in range(16)}) == 1
