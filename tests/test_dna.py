"""A HyenaDNA-shaped model on real genomes, through the command line (cases C005, C012, C025)."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from conftest import shared_path
from in_process import run_cli
from toy import dna_folder

import hyena_cpu

CASES = Path(__file__).parent / "cases"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dna_folder(tmp_path_factory.mktemp("models") / "dna-toy")


def score(folder: Path, *args: str) -> list[dict[str, str]]:
    run = run_cli("score", "-m", folder, *args)
    assert run.returncode == 0, run.stderr
    return list(csv.DictReader(io.StringIO(run.stdout.decode()), delimiter="\t"))


@pytest.mark.parametrize(
    ("file", "length"),
    [("dna_phix174/NC_001422_1.fna", 5_386), ("dna_lambda/lambda.fa", 48_502)],
)
def test_whole_genomes(folder: Path, file: str, length: int) -> None:
    path = shared_path("data", *file.split("/"))
    (row,) = score(folder, "--fasta", str(path))
    assert (int(row["length"]), int(row["n_scored"]), row["status"]) == (length, length - 1, "ok")
    bases = "".join(path.read_text().split("\n")[1:]).upper()
    model = hyena_cpu.load(folder)
    want = model.token_logprobs(model.tokenizer.encode(bases))
    assert float(row["logprob_sum"]) == pytest.approx(want.sum(), rel=1e-9)
    assert float(row["logprob_mean"]) == pytest.approx(want.mean(), rel=1e-9)


def test_a_record_has_the_same_digits_in_any_company(folder: Path, tmp_path: Path) -> None:
    records = ["ACGTTGCA" * 20, "GATTACA", "CCGG" * 90]
    alone = []
    for i, bases in enumerate(records):
        one = tmp_path / f"{i}.fa"
        one.write_text(f">r{i}\n{bases}\n")
        alone += score(folder, "--fasta", str(one), "-t", "1")
    together = tmp_path / "all.fa"
    order = (2, 0, 1)
    together.write_text("".join(f">r{i}\n{records[i]}\n" for i in order))
    for row, i in zip(score(folder, "--fasta", str(together), "-t", "3"), order, strict=True):
        assert {**row, "index": "0"} == alone[i]
    # The case file: unequal lengths, as they come.
    rows = score(folder, "--fasta", str(CASES / "C025" / "variable_lengths.fa"))
    assert [int(row["n_scored"]) for row in rows] == [max(0, int(r["length"]) - 1) for r in rows]


def test_generation_feeds_the_prompt_and_nothing_else(folder: Path) -> None:
    model = hyena_cpu.load(folder)
    ids = model.tokenizer.encode("AGCTACATTGGCC")
    assert ids.tolist() == [7, 9, 8, 10, 7, 8, 7, 10, 10, 9, 9, 8, 8]
    result = model.generate("AGCTACATTGGCC", max_new_tokens=200, temperature=5.0, seed=1)
    assert result.prompt_tokens == 13
    assert max(result.tokens) < 12  # the padded rows 12 .. 15 are never drawn (C011)
    state = model.prefill(ids)
    assert np.array_equal(state.logits, model.prefill(ids).logits)
