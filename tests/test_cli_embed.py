"""`hyena-cpu embed` with a HyenaDNA-shaped model: C005, C019, C025, S-cases."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE_HOME, shared_path
from in_process import run_cli
from test_cli import assert_one_line, environment, started
from toy import dna_folder

import hyena_cpu
from hyena_cpu.model import Model
from hyena_cpu.sequences import reverse_complement

CASES = Path(__file__).parent / "cases"
VARIABLE = CASES / "C025" / "variable_lengths.fa"  # ACGTACGT, AC, ACGT x 4
LONGEST = 9_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights: two Hyena layers, 12 ids of 16 rows, at most 9,000 tokens."""
    return dna_folder(tmp_path_factory.mktemp("models") / "dna-toy", LONGEST)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return hyena_cpu.load(folder, threads=1)


def embed(
    folder: Path, *args: object, code: int = 0, threads: int = 1
) -> subprocess.CompletedProcess[bytes]:
    run = run_cli("embed", "-m", folder, "-t", threads, *args)
    assert run.returncode == code, run.stderr.decode()
    return run


def fasta(path: Path, *sequences: str) -> Path:
    path.write_text("".join(f">r{i} text\n{s}\n" for i, s in enumerate(sequences)))
    return path


def bases(n: int, seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list("ACGT"), n))


def table(output: bytes) -> tuple[list[list[str]], np.ndarray]:
    """index, id, length and status of each row, and the vectors float32 [R, D]."""
    head, *lines = [line.split("\t") for line in output.decode().splitlines()]
    assert head == ["index", "id", "length", "status", *(f"v{d}" for d in range(20))]
    numbers = [[x.replace("NA", "nan") for x in line[4:]] for line in lines]
    return [line[:4] for line in lines], np.array(numbers, np.float32)


def test_a_table_on_standard_output(folder: Path, model: Model) -> None:
    about, vectors = table(embed(folder, "--fasta", VARIABLE).stdout)
    assert about == [["0", "a", "8", "ok"], ["1", "b", "2", "ok"], ["2", "c", "16", "ok"]]
    assert np.array_equal(vectors, model.embed(["ACGTACGT", "AC", "ACGT" * 4]))
    _, one = table(embed(folder, "ACGTACGT").stdout)
    assert np.array_equal(one, vectors[:1])


@pytest.mark.parametrize("pool", ["mean", "last"])
@pytest.mark.parametrize("layer", [0, 1, -1])
def test_files_hold_the_vectors_of_the_model(
    folder: Path, model: Model, tmp_path: Path, pool: str, layer: int
) -> None:
    sequences = ["ACGTACGT", "AC", "ACGT" * 4]
    want = model.embed(sequences, layer, pool)  # type: ignore[arg-type]
    hidden = [model.hidden(model.tokenizer.encode(s), layer) for s in sequences]
    if pool == "last":
        assert np.array_equal(want, [h[-1] for h in hidden])
    args = ("--fasta", VARIABLE, "--layer", layer, "--pool", pool)
    run = embed(folder, *args, "-o", tmp_path / "v.npy")
    assert (run.stdout, run.stderr) == (b"", b"")
    assert np.array_equal(np.load(tmp_path / "v.npy"), want)
    ids = (tmp_path / "v.ids.tsv").read_text()
    assert ids == "index\tid\tlength\tstatus\n0\ta\t8\tok\n1\tb\t2\tok\n2\tc\t16\tok\n"
    embed(folder, *args, "-o", tmp_path / "v.npz")
    with np.load(tmp_path / "v.npz") as z:
        assert np.array_equal(z["vectors"], want)
        assert z["ids"].tolist() == ["a", "b", "c"]


def test_every_position(folder: Path, model: Model, tmp_path: Path) -> None:
    """A record longer than a block, and files of each format."""
    long = bases(LONGEST - 1)
    records = fasta(tmp_path / "x.fa", "ACGTN", long, "")
    want = [model.hidden(model.tokenizer.encode(s)) for s in ("ACGTN", long)]
    args = ("--pool", "none", "--fasta", records)
    run = embed(folder, *args, "-o", tmp_path / "p.npz", code=4)
    assert b"record 3 ('r2'): the sequence is empty" in run.stderr
    with np.load(tmp_path / "p.npz") as z:
        assert sorted(z.files) == ["0", "1", "ids", "lengths", "status"]
        assert np.array_equal(z["0"], want[0])
        assert np.array_equal(z["1"], want[1])
        assert z["lengths"].tolist() == [5, LONGEST - 1, 0]
    embed(folder, "--pool", "none", long, "-o", tmp_path / "p.npy")
    assert np.array_equal(np.load(tmp_path / "p.npy"), want[1])
    assert not (tmp_path / "p.ids.tsv").exists()
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    embed(folder, *args, "-o", tmp_path / "p.parquet", code=4)
    rows = pq.read_table(tmp_path / "p.parquet")
    assert rows["index"].to_pylist() == [0] * 5 + [1] * (LONGEST - 1)
    assert rows["position"].to_pylist() == [*range(5), *range(LONGEST - 1)]
    flat = rows["vector"].combine_chunks().flatten().to_numpy()
    assert np.array_equal(flat.reshape(-1, 20), np.concatenate(want))
    embed(folder, "--fasta", records, "-o", tmp_path / "v.parquet", code=4)
    pooled = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert list(pooled) == ["index", "id", "length", "status", "vector"]
    vectors = np.array(pooled["vector"], np.float32)
    assert np.array_equal(vectors[:2], model.embed(["ACGTN", long]))
    assert np.isnan(vectors[2]).all()


def test_mates_order_and_threads_change_no_digit(folder: Path, tmp_path: Path) -> None:
    """Case C005, and records of 200 bases among long ones."""
    path = shared_path("cases", "files", "C005", "batch_pad.fa")
    text = path.read_text() + "".join(f">x{i}\n{bases(7 + 400 * i, i)}\n" for i in range(8))
    records = [record.split("\n", 1) for record in text.split(">")[1:]]
    alone = []
    for name, sequence in records:
        one = tmp_path / "one.fa"
        one.write_text(f">{name}\n{sequence}")
        alone.append(embed(folder, "--fasta", one).stdout.splitlines()[1].split(b"\t")[1:])
    order = np.random.default_rng(1).permutation(len(records))
    mixed = tmp_path / "mixed.fa"
    mixed.write_text("".join(f">{records[i][0]}\n{records[i][1]}" for i in order))
    together = embed(folder, "--fasta", mixed, threads=3).stdout.splitlines()[1:]
    assert [line.split(b"\t")[1:] for line in together] == [alone[i] for i in order]


def test_strand_case_codes_and_special_tokens(folder: Path, model: Model, tmp_path: Path) -> None:
    sequence = "AACGTTTRYacgun"
    path = fasta(tmp_path / "x.fa", sequence)
    clean = "AACGTTTNNACGTN"
    tokens = model.tokenizer.encode
    for options, ids in (
        ((), tokens(clean)),
        (("--strand", "rc"), tokens(reverse_complement(clean))),
        (("--special", "hf"), [*tokens(clean), 1]),
        (("--special", "cls-sep"), [0, *tokens(clean), 1]),
        (("--case", "keep"), tokens("AACGTTTNNacgtn")),
        (("--ambiguous", "keep", "--rna", "keep"), tokens("AACGTTTRYACGUN")),
    ):
        _, vectors = table(embed(folder, "--fasta", path, *options).stdout)
        assert np.array_equal(vectors, model.embed([ids])), options
    run = embed(folder, "--fasta", path, "--rna", "error", code=4)
    about, vectors = table(run.stdout)
    assert about == [["0", "r0", "14", "error: 'u' at position 13 is an RNA letter"]]
    assert np.isnan(vectors).all()


def test_a_record_that_fails_keeps_its_place(folder: Path, model: Model, tmp_path: Path) -> None:
    sequences = ["ACGT", "", "AC-GT", bases(LONGEST + 1), "GG"]
    path = fasta(tmp_path / "x.fa", *sequences)
    run = embed(folder, "--fasta", path, "-o", tmp_path / "v.npy", code=4)
    vectors = np.load(tmp_path / "v.npy")
    assert np.array_equal(vectors[[0, 4]], model.embed(["ACGT", "GG"]))
    assert np.isnan(vectors[1:4]).all()
    lines = run.stderr.decode().splitlines()
    assert [line[:35] for line in lines[:3]] == [
        f"hyena-cpu: warning: record {i} ('r{i - 1}')" for i in (2, 3, 4)
    ]
    assert lines[3] == "hyena-cpu: error: 3 of the records could not be embedded"
    ids = (tmp_path / "v.ids.tsv").read_text().splitlines()
    assert ids[2] == "1\tr1\t0\terror: the sequence is empty: at least one token is needed"
    assert "error: the sequence has 9001 tokens but dna-toy takes at most 9000" in ids[4]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["ACGT", "--layer", "3"], 2, "--layer is 3, must be in 0..2, or -1 for the last norm"),
        (["ACGT", "--layer", "x"], 2, "argument --layer: invalid int value: 'x'"),
        (["ACGT", "--pool", "max"], 2, "argument --pool: invalid choice: 'max'"),
        (["ACGT", "--strand", "both"], 2, "argument --strand: invalid choice: 'both'"),
        (["ACGT", "-o", "x.bin"], 2, "x.bin: the suffix names none of tsv, csv, npy, npz, parquet"),
        (["ACGT", "-o", "x"], 2, "--output x: the suffix names none of"),
        (["ACGT", "--pool", "none"], 2, "--pool none writes a vector per position: give -o FILE"),
        (["ACGT", "--pool", "none", "-o", "x.tsv"], 2, "--pool none writes a vector per position"),
        (["ACGT", "--format", "npy"], 2, "npy cannot be written to standard output: give -o FILE"),
        (["ACGT", "--format", "json"], 2, "invalid choice: 'json'"),
        (["ACGT", "--resume"], 2, "standard output cannot be resumed"),
        (["ACGT", "--resume", "--dry-run"], 2, "--dry-run writes nothing, so --resume"),
        (["ACGT", "--strict"], 2, "--strict acts on FASTA only"),
        (["ACGT", "--fasta", "x"], 2, "exactly one input"),
        (["--fasta", str(VARIABLE), "--pool", "none", "-o", "x.npy"], 2, "holds one record"),
        (["--fasta", "/absent.fa"], 4, "/absent.fa: cannot be opened"),
        (["AC-GT"], 4, "'-' at position 3 is no nucleotide code"),
        (["-f", str(CASES / "C092" / "empty_mid.fa")], 4, "is FASTA, not a plain sequence"),
        (["A" * (LONGEST + 1)], 6, "9001 tokens but dna-toy takes at most 9000"),
        (["ACGT" * 900, "--max-memory", "1M"], 6, "but max-memory is 1.0 MiB"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, args: list[str], code: int, message: str) -> None:
    assert_one_line(run_cli("embed", "-m", folder, *args), code, message)
    assert not list(PACKAGE_HOME.glob("x.*"))


def test_text_models(tmp_path: Path) -> None:
    """Bytes as they are; options for DNA cannot act."""
    text = tmp_path / "a.txt"
    text.write_bytes(b"The sea was calm.\r\n")
    run = run_cli("embed", "-f", text, "-t", "1", "-o", tmp_path / "t.npz")
    assert run.returncode == 0, run.stderr.decode()
    bundled = hyena_cpu.load(threads=1)
    with np.load(tmp_path / "t.npz") as z:
        assert np.array_equal(z["vectors"], bundled.embed([text.read_bytes()]))
        assert (z["ids"].tolist(), z["lengths"].tolist()) == ([str(text)], [19])
    assert_one_line(run_cli("embed", "a", "--strand", "rc"), 2, "--strand acts on DNA only")
    assert_one_line(run_cli("embed", "-p", "", "-t", "1"), 4, "the sequence is empty")


def test_dry_run_prints_the_largest_call(folder: Path, tmp_path: Path) -> None:
    path = fasta(tmp_path / "x.fa", bases(500), bases(8_000), "AC-GT")
    run = embed(folder, "--fasta", path, "-o", tmp_path / "v.npy", "--dry-run", code=4)
    rows = dict(line.rsplit(None, 1) for line in run.stdout.decode().splitlines())
    # Both are computed together.
    model = hyena_cpu.load(folder, threads=1)
    plan = hyena_cpu.plan(model, 8_000, batch=2, state=False, hidden_rows=8_500)
    assert rows["total"] == f"{plan.total:,}"
    assert {name: rows[name] for name, _ in plan.rows} == {n: f"{size:,}" for n, size in plan.rows}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.fa"]
    alone = embed(folder, "--dry-run", bases(8_000)).stdout.decode()
    plan = hyena_cpu.plan(model, 8_000, state=False, hidden_rows=4096)
    assert f"{plan.total:,}\n" in alone


def test_memory_allowed_bounds_what_is_computed_together(
    folder: Path, model: Model, tmp_path: Path
) -> None:
    path = fasta(tmp_path / "x.fa", *(bases(1000, i) for i in range(9)), bases(9_000))
    enough = hyena_cpu.plan(model, 4_000, state=False, hidden_rows=4_000).needed
    run = embed(folder, "--fasta", path, "--max-memory", enough, code=4)
    about, vectors = table(run.stdout)
    assert [row[3] for row in about[:9]] == ["ok"] * 9
    assert "max-memory" in about[9][3]
    assert np.array_equal(vectors[:9], model.embed([bases(1000, i) for i in range(9)]))


@pytest.mark.parametrize(
    "form", ["npy", "npz", "parquet", "tsv", "csv", "none.npz", "none.parquet"]
)
def test_ctrl_c_leaves_a_part_that_resume_completes(
    folder: Path, tmp_path: Path, form: str
) -> None:
    if "parquet" in form:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    records = [bases(300, i) for i in range(200)]
    data = "".join(f">r{i}\n{s}\n" for i, s in enumerate(records)).encode()
    pool, _, suffix = form.rpartition(".")
    args = ["embed", "-m", str(folder), "-t", "1", "--pool", pool or "mean", "--fasta", "-"]
    whole, part = tmp_path / f"whole.{suffix}", tmp_path / f"v.{suffix}.part"
    run_cli(*args, "-o", whole, data=data)
    args += ["-o", str(tmp_path / f"v.{suffix}")]
    logged = ("--log-file", str(tmp_path / "log"), "-v")
    with started(*args, *logged, stdin=subprocess.PIPE, env=environment(NO_COLOR="1")) as run:
        assert run.stdin is not None
        run.stdin.write(data[: len(data) // 2])  # and then it waits for more
        run.stdin.flush()
        wait_until_idle(run.pid)
        run.send_signal(signal.SIGINT)
        assert run.stderr is not None
        said = run.stderr.read().decode()
        run.wait(timeout=60)
    assert run.returncode == 130, said
    assert "Traceback" not in said
    held = json.loads(Path(f"{part}.json").read_text())["records"]
    assert f"{part} holds the first {held} records" in said
    assert 0 < held < len(records)
    resumed = run_cli(*args, "--resume", data=data)
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert not part.exists()
    assert same_file(tmp_path / f"v.{suffix}", whole)


def wait_until_idle(pid: int) -> None:
    """Until a process has slept, not only waited for its turn, for a while."""
    used, since = -1.0, time.monotonic()
    while time.monotonic() - since < 0.25:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        now = float(fields[11]) + float(fields[12])
        if now != used or fields[0] != "S":
            used, since = now, time.monotonic()
        time.sleep(0.02)


def same_file(got: Path, want: Path) -> bool:
    if got.suffix != ".parquet":  # its row groups tell where the runs met
        return got.read_bytes() == want.read_bytes()
    import pyarrow.parquet as pq

    return bool(pq.read_table(got).equals(pq.read_table(want)))


def test_a_damaged_file_keeps_what_came_before(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.fa.gz"
    path.write_bytes(gzip.compress(b">a\nACGT\n" * 5_000)[:-4])
    run = embed(folder, "--fasta", path, "-o", tmp_path / "v.npy", code=4)
    assert b"cannot be read to its end" in run.stderr
    kept = len(np.load(tmp_path / "v.npy.part"))
    assert kept > 4_000
    assert f"holds the first {kept} records".encode() in run.stderr
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize("options", [(), ("--strand", "rc", "--special", "cls-sep")])
def test_positions_are_those_of_score(folder: Path, tmp_path: Path, options: tuple) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = fasta(tmp_path / "x.fa", bases(30), "ACGTN")
    common = ("-m", str(folder), "-t", "1", "--fasta", str(path), *options)
    for name, more in (("score", ("--per-position",)), ("embed", ("--pool", "none"))):
        run = run_cli(name, *common, *more, "-o", tmp_path / f"{name}.parquet")
        assert run.returncode == 0, run.stderr.decode()
    score, vectors = (pq.read_table(tmp_path / f"{n}.parquet") for n in ("score", "embed"))
    for column in ("index", "id", "position"):
        assert score[column].to_pylist() == vectors[column].to_pylist()
