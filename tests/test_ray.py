"""score and embed through Ray Data: two local workers make the rows of the command line."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from dna_toy import dna_folder
from test_cli import program
from toy import LENGTH

from hyena_cpu import ray_data
from hyena_cpu.errors import InputError, ModelError

ray = pytest.importorskip("ray", reason="ray is not installed")
pc = pytest.importorskip("pyarrow.compute", reason="pyarrow is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # of ray and what it imports


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A local Ray with two CPUs; rows keep their order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers look into the folder they are started from first: not the sources without kernels.
        patch.chdir(tmp_path_factory.mktemp("start"))
        patch.setenv("PYTHONPATH", str(PACKAGE_HOME))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dna_folder(tmp_path_factory.mktemp("models") / "dna-toy")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Records of many lengths in three files, with an empty one, a bad one and one too long."""
    home = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    paths = []
    for k, lengths in enumerate(([8, 0, 301, 1], [LENGTH, LENGTH + 1, 40], [200] * 30)):
        sequences = ["".join(rng.choice(list("ACGTNacgt"), n)) for n in lengths]
        sequences[-1] = "AC-GT" if k == 1 else sequences[-1]
        text = "".join(f">r{i} file {k}\n{s}\n" for i, s in enumerate(sequences))
        paths.append(home / f"{k}.fa{'.gz' if k == 2 else ''}")
        data = text.encode()
        paths[-1].write_bytes(gzip.compress(data) if k == 2 else data)
    return paths


def together(meeting: Path) -> type[ray_data.Score]:
    """A worker that waits at its first batch until a second one is there; it leaves a file."""

    class Together(ray_data.Score):
        def __call__(self, batch: Any) -> Any:
            (meeting / str(os.getpid())).touch()
            for _ in range(1200):
                if len(list(meeting.iterdir())) > 1:
                    break
                time.sleep(0.1)
            return super().__call__(batch)

    return Together


def mapped(files: list[Path], worker: Any, folder: Path, **options: Any) -> list[dict[str, Any]]:
    found = ray_data.read_fasta(files).map_batches(
        worker,
        fn_constructor_kwargs={"model": str(folder), **options},
        concurrency=2,
        batch_size=5,
    )
    return found.take_all()


def command(name: str, folder: Path, path: Path, *args: object) -> list[dict[str, Any]]:
    run = program(name, "-m", str(folder), "-t", "1", "--fasta", str(path), *map(str, args))
    assert run.returncode in (0, 4), run.stderr.decode()
    return [json.loads(line) for line in run.stdout.splitlines()]


def by_file(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    kept = [row for row in rows if row["file"] == str(path)]
    return [{k: v for k, v in row.items() if k != "file"} for row in kept]


def test_scores_are_those_of_the_command(folder: Path, files: list[Path]) -> None:
    rows = mapped(files, ray_data.Score, folder, strand="both")
    assert len(rows) == 37
    for path in files:
        want = command("score", folder, path, "--strand", "both", "--format", "jsonl")
        assert by_file(rows, path) == want
    assert sum(row["status"] != "ok" for row in rows) == 1


def test_positions_are_those_of_the_command(folder: Path, files: list[Path]) -> None:
    rows = mapped(files[:1], ray_data.Score, folder, per_position=True, alphabet="acgt")
    args = ("--per-position", "--alphabet", "acgt", "--format", "jsonl")
    assert by_file(rows, files[0]) == command("score", folder, files[0], *args)


@pytest.mark.parametrize("pool", ["mean", None])
def test_vectors_are_those_of_the_command(
    folder: Path, files: list[Path], tmp_path: Path, pool: str | None
) -> None:
    """Also in the files that Ray writes, which have the types of ours."""
    import pyarrow.parquet as pq

    options = {"model": str(folder), "pool": pool, "layer": 0, "strand": "rc"}
    ray_data.read_fasta(files[:2]).map_batches(
        ray_data.Embed, fn_constructor_kwargs=options, concurrency=2, batch_size=3
    ).write_parquet(str(tmp_path / "ray"))
    ray_rows = pq.read_table(tmp_path / "ray")
    for path in files[:2]:
        out = tmp_path / f"{path.name}.parquet"
        args = ("--pool", pool or "none", "--layer", "0", "--strand", "rc", "-o", out)
        command("embed", folder, path, *args)
        ours = pq.read_table(out)
        theirs = ray_rows.filter(pc.field("file") == str(path)).drop_columns("file")
        assert dict(zip(theirs.schema.names, theirs.schema.types, strict=True)) == dict(
            zip(ours.schema.names, ours.schema.types, strict=True)
        )
        got, want = sorted_rows(theirs), sorted_rows(ours)
        assert [row[:-1] for row in got] == [row[:-1] for row in want]
        vectors = [np.array([row[-1] for row in rows], np.float32) for rows in (got, want)]
        assert np.array_equal(*vectors, equal_nan=True)


def sorted_rows(table: Any) -> list[tuple[Any, ...]]:
    """By record and position: files written in parallel have no order among them."""
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return sorted(rows, key=lambda row: (row[0], row[2]))


def test_records_of_one_file_go_to_both_workers(folder: Path, tmp_path: Path) -> None:
    path, meeting = tmp_path / "one.fa", tmp_path / "meeting"
    meeting.mkdir()
    path.write_text("".join(f">{i}\n{'ACGT' * 50}\n" for i in range(2000)))
    found = ray_data.read_fasta(path)
    assert found.context.target_max_block_size == ray_data.BLOCK_LETTERS
    found.context.target_max_block_size = 100_000
    rows = found.map_batches(
        together(meeting), fn_constructor_kwargs={"model": str(folder)}, concurrency=2
    ).take_all()
    assert len(list(meeting.iterdir())) == 2
    assert [row["index"] for row in rows] == list(range(2000))


def test_readers_hand_on_blocks(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_data, "BLOCK_LETTERS", 500)
    blocks = list(ray_data._read({"file": np.array([str(p) for p in files])}, strict=False))
    assert [len(b["id"]) for b in blocks] == [4, 2, 1, *[3] * 10]
    assert [str(i) for b in blocks for i in b["id"]][:5] == ["r0", "r1", "r2", "r3", "r0"]


def test_mistakes_are_said(folder: Path) -> None:
    with pytest.raises(ModelError, match="/absent"):
        ray_data.Score("/absent")
    with pytest.raises(InputError, match="layer is 7"):
        ray_data.Embed(folder, layer=7)
    with pytest.raises(InputError, match="window is 1"):
        ray_data.Score(folder, window=1)
    with pytest.raises(TypeError, match="widow"):
        ray_data.Score(folder, widow=1)
    with pytest.raises(InputError, match="has no column 'file'"):
        next(ray_data.Score(folder)({"id": np.array(["a"]), "sequence": np.array(["ACGT"])}))
