"""Outputs of the original HyenaDNA code, reproduced through the command line.

Fixtures: tests/golden/hyenadna/README.md. Sequences of the letters A C G T N alone can be written
as FASTA; the others hold pads or special tokens, which no FASTA file has.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_cli
from model_files import GOLDEN, folder, stored

from hyena_cpu.tokenizers.dna import SPECIAL, DnaTokenizer

NAMES = ["hyenadna/hf_causal_lm", "hyenadna/orig_repo_lm_shift0"]
LETTERS = range(len(SPECIAL), len(SPECIAL) + 5)
FOUR = [7, 8, 9, 10]


def sequences(name: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(letters, ids [T], log-probabilities [T, V] in float64) of what can be written as letters."""
    found = []
    with np.load(GOLDEN / f"{name}.npz") as data:
        for key in data:
            if not key.startswith("input_ids"):
                continue
            for ids, logits in zip(
                data[key], data[key.replace("input_ids", "logits")], strict=True
            ):
                if set(ids.tolist()) <= set(LETTERS):
                    wide = logits.astype(np.float64)
                    said = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
                    found.append((DnaTokenizer().decode(ids), ids, said))
    return found


def score(model: Path, fasta: Path, *args: str) -> list[dict[str, Any]]:
    command = ["score", "-m", str(model), "--fasta", str(fasta), "--format", "jsonl", *args]
    run = run_cli(*command, HYENA_CPU_THREADS="1")
    assert run.returncode == 0, run.stderr.decode()
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module", params=NAMES)
def case(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model folder, FASTA file, sequences)."""
    home = tmp_path_factory.mktemp("golden")
    known = sequences(request.param)
    fasta = home / "in.fa"
    fasta.write_text("".join(f">s{i}\n{text}\n" for i, (text, _, _) in enumerate(known)))
    return folder(home / "model", *stored(request.param)), fasta, known


def test_the_fixtures_hold_sequences_of_letters() -> None:
    assert [len(text) for text, _, _ in sequences(NAMES[0])] == [66, 37, 1]


def test_sums_and_means(case: Any) -> None:
    model, fasta, known = case
    for (text, ids, said), row in zip(known, score(model, fasta), strict=True):
        assert (row["length"], row["n_scored"], row["status"]) == (len(text), len(ids) - 1, "ok")
        if len(ids) == 1:
            assert row["logprob_sum"] is None
            continue
        want = said[np.arange(len(ids) - 1), ids[1:]]
        assert row["logprob_mean"] == pytest.approx(want.mean(), abs=2e-5)
        assert row["logprob_sum"] == pytest.approx(want.sum(), abs=2e-5 * len(want))
        assert row["perplexity"] == pytest.approx(np.exp(-want.mean()), rel=2e-5)


def test_every_position(case: Any) -> None:
    model, fasta, known = case
    rows = score(model, fasta, "--per-position")
    for index, (text, ids, said) in enumerate(known):
        mine = [row for row in rows if row["index"] == index]
        assert "".join(row["base"] for row in mine) == text
        assert mine[0]["logprob"] is None
        for t, row in enumerate(mine[1:]):
            bound = 4e-5 * max(1.0, np.abs(said).max())  # of a logit, and of the others' sum
            assert abs(row["logprob"] - said[t, ids[t + 1]]) <= bound
            shares = np.exp(said[t, FOUR])
            got = [row[f"p_{base}"] for base in "ACGT"]
            np.testing.assert_allclose(got, shares, rtol=bound)
            among = shares / shares.sum()
            entropy = -(among * np.log2(among)).sum()
            assert row["entropy"] == pytest.approx(entropy, abs=bound)


def test_the_four_bases_alone(case: Any) -> None:
    model, fasta, known = case
    for (_, ids, said), row in zip(known, score(model, fasta, "--alphabet", "acgt"), strict=True):
        bases = [t for t in range(1, len(ids)) if ids[t] in FOUR]
        assert row["n_scored"] == len(bases)
        among = said[:, FOUR] - np.logaddexp.reduce(said[:, FOUR], axis=1, keepdims=True)
        want = sum(among[t - 1, FOUR.index(ids[t])] for t in bases)
        assert (row["logprob_sum"] or 0.0) == pytest.approx(want, abs=4e-5 * max(len(bases), 1))


def test_both_strands(case: Any) -> None:
    model, fasta, _ = case
    forward, reverse, both = (score(model, fasta, "--strand", s) for s in ("fwd", "rc", "both"))
    for f, r, b in zip(forward, reverse, both, strict=True):
        if f["n_scored"]:
            assert b["logprob_sum"] == (f["logprob_sum"] + r["logprob_sum"]) / 2
            assert f["logprob_sum"] != r["logprob_sum"]
