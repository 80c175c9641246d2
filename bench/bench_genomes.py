"""Genomes through the command line: what it adds to the bare model, short records, shared prefixes.

    pytest bench/bench_genomes.py --benchmark-only

The shape is HyenaDNA-small with random weights, 2 threads. The genome is made up, 1 Mb long; with
HYENA_CPU_GENOME=genome.fa.gz it is that one. Whole commands are timed in processes of their own,
loading and reading included; the bare model takes the same tokens in, loaded already. One round
each: these runs are long.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from shapes import hyenadna

import hyena_cpu
from hyena_cpu.config import TokenizerConfig
from hyena_cpu.genome import Genome
from hyena_cpu.sequences import Record, read_fasta
from hyena_cpu.variant_files import Variant
from hyena_cpu.variants import Setup, score_variants
from hyena_cpu.weights import save_folder

THREADS = 2
WINDOW = 32_770  # tokens; the context of HyenaDNA-small
RECORDS, SHORT = 5000, 200
SITES = 4  # of three alleles each

# A command in a fresh process, and the most it held; not getrusage, whose maximum begins with that
# of the process that started this one.
CHILD = """
import sys
from hyena_cpu.cli import main
code = main(sys.argv[1:])
with open("/proc/self/status") as file:
    print(*(line.split()[1] for line in file if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model on disk."""
    weights = hyenadna("small", WINDOW)
    path = tmp_path_factory.mktemp("models") / "small"
    config = replace(weights.config, family="native", tokenizer=TokenizerConfig("dna"))
    save_folder(path, config, weights.tensors)
    return path


@pytest.fixture(scope="module")
def genome(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One long record."""
    given = os.environ.get("HYENA_CPU_GENOME")
    return Path(given) if given else fasta(tmp_path_factory.mktemp("genome"), 1, 1 << 20)


def fasta(where: Path, records: int, length: int) -> Path:
    letters = np.random.default_rng(0).choice(list(b"ACGT"), (records, length)).astype(np.uint8)
    path = where / f"{records}x{length}.fa"
    path.write_bytes(b"".join(b">r%d\n%s\n" % (i, row.tobytes()) for i, row in enumerate(letters)))
    return path


def command(*arguments: object) -> Callable[[], int]:
    """Runs hyena-cpu; returns the bytes held at most."""

    def run() -> int:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stderr.split()[-1]) << 10

    return run


def ids_of(path: Path, model: hyena_cpu.Model) -> list[np.ndarray]:
    return [model.tokenizer.encode(record.sequence.upper()) for record in read_fasta(path)]


@pytest.mark.parametrize("peer", ["bare model", "hyena-cpu score"])
def test_long_records(benchmark: BenchmarkFixture, peer: str, folder: Path, genome: Path) -> None:
    benchmark.group = "a genome in windows of 32,770 tokens"
    benchmark.extra_info["peer"] = peer
    if peer == "bare model":
        benchmark.extra_info["ours"] = True  # the ratio is what the command line adds
        model = hyena_cpu.load(folder, threads=THREADS)
        (ids,) = ids_of(genome, model)
        model.token_logprobs(ids[:WINDOW])

        def run() -> int:
            for begin in range(0, len(ids) - 1, WINDOW - 1):
                model.token_logprobs(ids[begin : begin + WINDOW])
            return 0
    else:
        run = command("score", "-m", folder, "-t", THREADS, "--fasta", genome)
    peak = benchmark.pedantic(run, rounds=1)
    if peak:
        benchmark.extra_info["peak MB"] = peak / 1e6


@pytest.mark.parametrize("peer", ["one long record", "short records"])
def test_short_records(
    benchmark: BenchmarkFixture, peer: str, folder: Path, tmp_path: Path
) -> None:
    benchmark.group = f"{RECORDS} records of {SHORT} bases, and one record of as many"
    benchmark.extra_info["peer"] = peer
    records = RECORDS if peer == "short records" else 1
    path = fasta(tmp_path, records, RECORDS * SHORT // records)
    if records == 1:
        benchmark.extra_info["ours"] = True
    run = command("score", "-m", folder, "-t", THREADS, "--fasta", path, "-o", tmp_path / "out.tsv")
    benchmark.pedantic(run, rounds=1)


@pytest.mark.parametrize("peer", ["shared prefixes", "every allele whole"])
def test_variants(benchmark: BenchmarkFixture, peer: str, folder: Path) -> None:
    benchmark.group = f"{3 * SITES} variants in windows of 8,192 bases"
    benchmark.extra_info["peer"] = peer
    share = peer == "shared prefixes"
    if share:
        benchmark.extra_info["ours"] = True
    model = hyena_cpu.load(folder, threads=THREADS)
    letters = "".join(np.random.default_rng(1).choice(list("ACGT"), 20_000))
    variants = [
        Variant(3 * i + k, None, "r", at + 1, letters[at], alt)
        for i, at in enumerate(range(8000, 8000 + 40 * SITES, 40))
        for k, alt in enumerate(sorted(set("ACGT") - {letters[at]}))
    ]
    with Genome([Record(0, "r", letters)]) as reference:
        rows = benchmark.pedantic(
            lambda: list(score_variants(model, reference, variants, Setup(share=share))),
            rounds=3,
            warmup_rounds=1,
        )
    deltas = [row.delta.difference / row.delta.n for row in rows if row.delta is not None]
    assert len(deltas) == len(variants)
    benchmark.extra_info["mean delta of means"] = float(np.abs(deltas).mean())
