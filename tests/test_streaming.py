"""Files larger than memory: records come one at a time, and tables leave row by row (C019)."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from read_tables import read_table
from test_cli import HERE, environment

from hyena_cpu.score import COLUMNS
from hyena_cpu.sequences import Meter, read_fasta

STATM = Path("/proc/self/statm")
needs_proc = pytest.mark.skipif(not STATM.exists(), reason="/proc tells what memory is in use")

# `score` with a model that knows nothing and takes no time. Prints the MiB in use while the model
# works and rows are written, over those before the first of it.
GROWTH = """
import os, sys
import numpy as np
import hyena_cpu
from fake_model import FakeModel
from hyena_cpu.cli import main
from hyena_cpu.tables import TableWriter

samples = []
def sample():
    with open("/proc/self/statm") as file:
        samples.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20))

class Blank(FakeModel):
    def __init__(self):
        super().__init__("dna", vocab_size=12, logits_width=16, max_length=50_000)
    def token_logprobs(self, ids):
        sample()
        return np.full(len(ids) - 1, -1.5)
    def logprob_blocks(self, ids):
        for t in range(0, len(ids), 4096):
            sample()
            yield t, np.full((min(4096, len(ids) - t), 16), -np.log(16.0))

write = TableWriter.write
def noted(self, *args, **options):
    write(self, *args, **options)
    sample()
TableWriter.write = noted
hyena_cpu.load = lambda *_, **__: Blank()
code = main(sys.argv[1:])
print(len(samples), max(samples) - samples[0], file=sys.stderr)
sys.exit(code)
"""


def score(*args: str, source: Path | None = None) -> float:
    """Runs `score`; MiB that memory grew by."""
    with (source or Path("/dev/null")).open("rb") as stream:
        run = subprocess.run(
            [sys.executable, "-c", GROWTH, "score", *args],
            stdin=stream,
            capture_output=True,
            cwd=PACKAGE_HOME,
            env=environment(PYTHONPATH=f"{PACKAGE_HOME}:{HERE}"),
            timeout=300,
        )
    assert run.returncode == 0, run.stderr.decode()
    samples, growth = run.stderr.decode().splitlines()[-1].split()
    assert int(samples) > 100
    return float(growth)


def line(bases: int) -> str:
    return "".join(np.random.default_rng(bases).choice(list("ACGT"), bases))


@needs_proc
@pytest.mark.parametrize("packed", [False, True])
def test_many_records(tmp_path: Path, packed: bool) -> None:
    """60 MB in 3,000 records of 20,000 bases, from a file or unpacked from standard input."""
    path, out = tmp_path / "big.fa", tmp_path / "out.tsv"
    body = "\n".join([line(80)] * 250)
    with gzip.open(path, "wt", 1) if packed else path.open("w") as file:
        for i in range(3000):
            file.write(f">r{i}\n{body}\n")
    if packed:
        assert score("--fasta", "-", "-o", str(out), source=path) < 30
    else:
        assert score("--fasta", str(path), "-o", str(out)) < 30
    rows = read_table(out, "tsv", COLUMNS)
    assert len(rows) == 3000
    assert {row[3] for row in rows} == {19_999}


@needs_proc
@pytest.mark.parametrize("form", ["tsv", "npz"])
def test_positions_of_a_long_record(tmp_path: Path, form: str) -> None:
    """A million rows, of one record on one line: far more than the record itself."""
    path, out = tmp_path / "long.fa", tmp_path / f"out.{form}"
    path.write_text(f">r\n{line(1_000_000)}\n")
    assert score("--fasta", str(path), "--per-position", "-o", str(out)) < 30
    assert out.stat().st_size > 40_000_000


@needs_proc
def test_ten_million_bases_in_windows(tmp_path: Path) -> None:
    """Neither ids nor scores of a long record are held: about a byte a base and strand is."""
    path = tmp_path / "long.fa"
    path.write_text(f">r\n{line(10_000_000)}\n")
    assert score("--fasta", str(path), "--strand", "both", "-o", str(tmp_path / "t")) < 30


def test_the_meter_tells_how_much_has_been_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "x.fa", tmp_path / "x.fa.gz"
    text = "".join(f">r{i}\n{line(997 + i)}\n" for i in range(200))
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    for path in (plain, packed):
        meter = Meter()
        shares = [meter.share for _ in read_fasta(path, meter=meter)]
        assert shares == sorted(shares)  # type: ignore[type-var]
        assert len(set(shares)) > 5
        assert 0 < shares[0] < 0.2  # type: ignore[operator]
        assert shares[-1] == 1.0
    with plain.open("rb") as stream:
        meter = Meter()
        assert [meter.share is not None for _ in read_fasta(stream, meter=meter)] == [True] * 200


def test_a_pipe_has_no_known_end() -> None:
    code = (
        "import sys; from hyena_cpu.sequences import Meter, read_fasta; meter = Meter()\n"
        "print([(r.id, meter.share) for r in read_fasta(sys.stdin.buffer, meter=meter)])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        input=b">a\nACGT\n",
        capture_output=True,
        cwd=PACKAGE_HOME,
        env=environment(),
        timeout=60,
    )
    assert run.stdout == b"[('a', None)]\n", run.stderr
