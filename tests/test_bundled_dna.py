"""tiny-dna: the figures its card promises, recomputed by this engine.

The protocol is the one in the model's reference.json: windows of the begin token and 1,023 letters,
every letter scored, softmax over all rows in float64.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from conftest import shared_path

import hyena_cpu
from hyena_cpu.cli import main
from hyena_cpu.sequences import reverse_complement
from hyena_cpu.verify import verify

FOLDER = hyena_cpu.BUNDLED["tiny-dna"]
REFERENCE = json.loads((FOLDER / "reference.json").read_text())
WINDOW = REFERENCE["window"]
GATE = 1.94  # bits a base, held out; equal frequencies are 2


@pytest.fixture(scope="module")
def model() -> hyena_cpu.Model:
    return hyena_cpu.load("tiny-dna", threads=1)


@pytest.fixture(scope="module")
def held_out() -> str:
    """The letters of E. coli that the model was not trained on: the last 5 %."""
    return genome(REFERENCE["held_out"])[REFERENCE["held_out"]["split"] :]


def genome(entry: dict) -> str:
    """The letters of a file named in reference.json, its hash checked."""
    raw = shared_path("data", entry["file"]).read_bytes()
    assert hashlib.sha256(raw).hexdigest() == entry["sha256"]
    text = gzip.decompress(raw) if entry["file"].endswith(".gz") else raw
    return "".join(text.decode().splitlines()[1:])


def bits_per_base(model: hyena_cpu.Model, letters: str) -> float:
    (score,) = model.score(letters, bos=True, window=WINDOW)
    assert score.n_scored == len(letters)
    return -score.logprob_sum / math.log(2) / len(letters)


def test_held_out_genome(model: hyena_cpu.Model, held_out: str) -> None:
    want = REFERENCE["held_out"]
    assert len(held_out) == want["bases"]
    letters = held_out[: want["slice"]["bases"]]
    got = bits_per_base(model, letters)
    assert got == pytest.approx(want["slice"]["bits_per_base"], abs=1e-4)
    assert got <= GATE
    assert want["bits_per_base"] <= GATE


def test_both_strands(model: hyena_cpu.Model, held_out: str) -> None:
    letters = held_out[: 10 * (WINDOW - 1)]
    there, back = bits_per_base(model, letters), bits_per_base(model, reverse_complement(letters))
    assert max(there, back) < 1.97
    assert abs(there - back) < 0.02


def test_logits_equal_those_of_the_training_framework(model: hyena_cpu.Model) -> None:
    want = REFERENCE["logits"]
    last = model.logits(want["ids"])[-1]
    assert np.abs(last[want["last_top_ids"]] - want["last_top_logits"]).max() <= 1e-4
    assert all(check.ok is not False for check in verify(model)), "hyena-cpu verify tiny-dna"


def test_step_equals_whole(model: hyena_cpu.Model) -> None:
    ids = np.concatenate([[2], np.random.default_rng(1).integers(7, 11, 1500)])
    whole = model.logits(ids)
    state = model.prefill(ids[:700])
    rows = [model.step(state, int(token)) for token in ids[700:]]
    assert np.abs(np.stack(rows) - whole[700:]).max() <= 1e-4


def test_its_state_does_not_grow(model: hyena_cpu.Model) -> None:
    assert {layer.mixer.kind for layer in model.config.layers} == {"hyena"}
    assert model.max_length is None
    ids = np.random.default_rng(2).integers(7, 11, 20_000)
    sizes = []
    for length in (2_000, 20_000):
        state = model.prefill(ids[:length])
        for token in ids[:2_200]:  # until it has taken as many as its filters reach back
            model.step(state, int(token))
        sizes.append(state.nbytes)
        during = set()
        for token in ids[:1_100]:
            model.step(state, int(token))
            during.add(state.nbytes)
        assert max(during) <= sizes[-1]
    assert sizes[1] <= sizes[0] < 32e6


def test_n_is_read_as_a_gap(model: hyena_cpu.Model) -> None:
    letters = "ATGAAACGCATTAGCACCACCATTACC" * 4
    before = model.token_logprobs(model.tokenizer.encode(letters))
    after = model.token_logprobs(model.tokenizer.encode(letters + "N" * 300 + letters))
    assert np.isfinite(after).all()
    assert after[-len(letters) + 20 :].mean() > before.mean() - 0.2
    assert after[len(letters) + 50 : len(letters) + 299].mean() > math.log(0.5)


def test_commands(
    model: hyena_cpu.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fasta = tmp_path / "two.fa"
    fasta.write_text(">a\nACGTACGTACGTTTGACA\n>b\nacgtn\n")
    assert main(["score", "-m", "tiny-dna", "--fasta", str(fasta), "--bos"]) == 0
    header, *rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[header.index("n_scored")] for row in rows] == ["18", "5"]
    want = model.score("ACGTACGTACGTTTGACA", bos=True)[0].logprob_sum
    assert float(rows[0][header.index("logprob_sum")]) == pytest.approx(want, rel=1e-8)
    assert main(["generate", "-m", "tiny-dna", "ACGTACGT", "-n", "50", "--seed", "1"]) == 0
    out = capsys.readouterr().out.strip().removeprefix("ACGTACGT")
    assert len(out) == 50
    assert set(out) <= set("ACGT")
    assert main(["info", "-m", "tiny-dna"]) == 0
    assert "tiny-dna" in capsys.readouterr().out
