"""Faults seen in other programs that concern DNA, each with the right value.

Tested elsewhere: C011 (padded rows are never drawn: test_generate, test_dna), C012 (no token added
to a prompt: test_tokenizers, test_dna), C019 (memory: test_streaming, test_planner), C024 and C051
(prompts byte for byte: test_cli, test_tokenizers), C103 (nothing to score: test_score, test_cli),
S02 (scores are not shifted twice: test_score).
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from fake_model import FakeModel
from in_process import run_fake
from test_cli import environment
from toy import dna_folder

import hyena_cpu
from hyena_cpu import kernels
from hyena_cpu.errors import LimitError, ModelError
from hyena_cpu.score import Setup, score_fasta
from hyena_cpu.score.windows import windows
from hyena_cpu.sequences import DnaPolicy, Record, read_fasta
from hyena_cpu.tokenizers.dna import DnaTokenizer

CASES = Path(__file__).parent / "cases"
DNA = {"kind": "dna", "vocab_size": 12, "logits_width": 16}
LIMIT = 300


@pytest.fixture(scope="module")
def dna_model(tmp_path_factory: pytest.TempPathFactory) -> hyena_cpu.Model:
    folder = tmp_path_factory.mktemp("models") / "dna-toy"
    return hyena_cpu.load(dna_folder(folder, LIMIT), threads=1)


def table(name: str, *args: str, code: int = 0) -> list[dict[str, str]]:
    """What `score --fasta` prints for a case file."""
    run = run_fake(DNA, "score", "--fasta", str(CASES / name), *args)
    assert run.returncode == code, run.stderr.decode()
    return list(csv.DictReader(io.StringIO(run.stdout.decode()), delimiter="\t"))


def test_c005_batch_mates_change_nothing(dna_model: hyena_cpu.Model) -> None:
    records = list(read_fasta(CASES / "C005/batch_pad.fa"))
    assert [record.sequence for record in records] == ["ACGTAC", "ACGT" * 4]
    records += [Record(2, "x", "GATTACA" * 30), Record(3, "y", ""), Record(4, "z", "T")]
    alone = {
        r.id: next(score_fasta(dna_model, [Record(0, r.id, r.sequence)], Setup(), DnaPolicy()))
        for r in records
    }
    for order in list(permutations(records))[::17]:
        batch = [Record(i, r.id, r.sequence) for i, r in enumerate(order)]
        for row in score_fasta(dna_model, batch, Setup(), DnaPolicy()):
            assert row.score == alone[row.id].score  # to the last digit
    texts = [r.sequence for r in records[:3]]
    together = dna_model.embed(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_array_equal(dna_model.embed(text)[0], vector)
        mean = dna_model.hidden(dna_model.tokenizer.encode(text)).astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(vector, mean, atol=1e-6)  # no pad is part of it


def test_c007_the_convolution_does_not_wrap_around() -> None:
    case = json.loads((CASES / "C007/conv.json").read_text())
    conv = hyena_cpu.LongConv(np.array([case["h"]], np.float32))
    got = conv(np.array([case["v"]], np.float32))
    np.testing.assert_allclose(got[0], case["linear_causal"], atol=1e-6)
    assert np.abs(got[0] - case["wrong_circular_length4"]).max() > 0.5


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, LIMIT - 1, LIMIT])
def test_c008_every_length_up_to_the_limit(dna_model: hyena_cpu.Model, length: int) -> None:
    ids = np.random.default_rng(length).integers(7, 12, length)
    logits = dna_model.logits(ids)
    assert logits.shape == (length, 16)
    state = dna_model.prefill(ids[:1])
    rows = (
        [state.logits.copy()] if length == 1 else [state.logits, *dna_model.extend(state, ids[1:])]
    )
    np.testing.assert_allclose(np.stack(rows), logits, atol=1e-4)


@pytest.mark.parametrize("length", [LIMIT + 1, 10 * LIMIT])
@pytest.mark.parametrize("verb", ["logits", "hidden", "prefill", "token_logprobs"])
def test_c008_c021_beyond_the_limit_is_one_error(
    dna_model: hyena_cpu.Model, verb: str, length: int
) -> None:
    with pytest.raises(LimitError) as caught:
        getattr(dna_model, verb)(np.full(length, 7))
    sentence = str(caught.value)
    assert f"{length} tokens" in sentence
    assert f"at most {LIMIT}" in sentence
    assert "shorten it or cut it into windows" in sentence


def test_c021_scores_of_longer_sequences_go_by_windows(dna_model: hyena_cpu.Model) -> None:
    for length in (LIMIT - 1, LIMIT, LIMIT + 1, 10 * LIMIT):
        (row,) = score_fasta(dna_model, [Record(0, "a", "A" * length)], Setup(), DnaPolicy())
        assert (row.status, row.score.n_scored) == ("ok", length - 1)


def test_c018_sizes_beyond_32_bits(dna_model: hyena_cpu.Model) -> None:
    for length in (1 << 20, 1_000_000_007, 1 << 30):
        plan = hyena_cpu.plan(dna_model, length, logits_rows=length, state=False)
        rows = dict(plan.rows)
        assert rows["residual stream"] == 4 * dna_model.config.d_model * length
        assert plan.total > rows["residual stream"] + 4 * dna_model.config.logits_width * length
    assert kernels.tile_plan((1 << 31) + 11, 1 << 40)[0] == 1 << 32
    with pytest.raises(ValueError, match=r"0 \+ 2147483659 tokens .* above the largest"):
        kernels.conv_plan((1 << 31) + 11, 0, (1 << 31) + 11)
    assert kernels.conv_plan(1 << 30, 0, 1 << 30) == 1 << 31
    places = list(windows(FakeModel(max_length=1 << 20), 5_000_000_000, Setup()))  # type: ignore
    assert (places[-1].end, places[-1].begin > 1 << 32) == (5_000_000_000, True)
    assert sum(place.end - place.begin for place in places) == 5_000_000_000 - 1


def test_c022_count_sum_and_mean_are_all_there() -> None:
    rows = table("C022/indel_pair.fa")
    assert [(row["id"], row["n_scored"]) for row in rows] == [("ref", "19"), ("alt_del4", "15")]
    for row in rows:
        mean = float(row["logprob_sum"]) / int(row["n_scored"])
        assert float(row["logprob_mean"]) == pytest.approx(mean, rel=1e-8)
        assert float(row["perplexity"]) == pytest.approx(np.exp(-mean), rel=1e-8)


# file -> (id, length, n_scored, n_case_folded, n_ambiguous) of every row
RIGHT: dict[str, list[tuple[Any, ...]]] = {
    "C005/batch_pad.fa": [("short", 6, 5, 0, 0), ("long", 16, 15, 0, 0)],
    "C025/variable_lengths.fa": [("a", 8, 7, 0, 0), ("b", 2, 1, 0, 0), ("c", 16, 15, 0, 0)],
    "C090/lower.fa": [("s1", 10, 9, 10, 0), ("s2", 16, 15, 6, 4)],
    "C092/empty_last.fa": [("seq0", 4, 3, 0, 0), ("seq1", 0, 0, 0, 0)],
    "C092/empty_mid.fa": [("seq0", 4, 3, 0, 0), ("seq1", 0, 0, 0, 0), ("seq2", 4, 3, 0, 0)],
    "C095/crlf.fa": [("s1", 8, 7, 0, 0), ("s2", 4, 3, 0, 0)],
    "C096/blank_lines.fa": [("seq1", 6, 5, 0, 0), ("seq2", 4, 3, 0, 0)],
    "C097/two_members.fa.gz": [("s1", 4, 3, 0, 0), ("s2", 4, 3, 0, 0)],
    "C097/bgzf_eof_in_middle.fa.gz": [("s1", 4, 3, 0, 0), ("s2", 4, 3, 0, 0)],
    "C097/gz_without_suffix.fa": [("s1", 4, 3, 0, 0)],
    "C101/ragged_lines.fa": [("s1", 27, 26, 0, 0)],
    "C101/one_long_line.fa": [("s1", 40_000, 39_999, 0, 0)],
    "C102/dup_ids.fa": [("s1", 4, 3, 0, 0), ("s1", 4, 3, 0, 0), ("s2", 4, 3, 0, 0)],
}


@pytest.mark.parametrize("name", RIGHT)
def test_c025_c090_to_c102_a_row_for_every_record(name: str) -> None:
    records = read_fasta(CASES / name)
    rows = list(score_fasta(FakeModel(**DNA), records, Setup(), DnaPolicy()))  # type: ignore
    assert [
        (row.id, row.length, row.score.n_scored, row.n_case_folded, row.n_ambiguous) for row in rows
    ] == RIGHT[name]
    assert [row.index for row in rows] == list(range(len(rows)))
    assert {row.status for row in rows} == {"ok"}
    empty = [row for row in rows if not row.length]
    assert all(row.score.logprob_mean is None for row in empty)


def test_c090_the_case_of_letters_can_be_kept() -> None:
    folded, kept = table("C090/lower.fa"), table("C090/lower.fa", "--case", "keep")
    assert [row["n_case_folded"] for row in kept] == ["0", "0"]
    assert folded[0]["logprob_sum"] != kept[0]["logprob_sum"]  # lower case is [UNK]


def test_c092_strict_refuses_empty_records() -> None:
    run = run_fake(DNA, "score", "--fasta", str(CASES / "C092/empty_mid.fa"), "--strict")
    assert run.returncode == 4
    assert b"record 2 ('seq1') is empty" in run.stderr
    assert len(run.stdout.splitlines()) == 2  # the record before it has its row


def test_c096_c099_letters_that_are_none() -> None:
    (digits,) = table("C096/inner_space.fa", code=4)
    assert digits["status"] == "error: '1' at position 11 is no nucleotide code"
    assert (digits["n_scored"], digits["logprob_mean"]) == ("0", "NA")
    first, second, gap = table("C099/iupac.fa", code=4)
    assert (first["length"], first["n_scored"], first["n_ambiguous"]) == ("15", "14", "11")
    assert (second["n_case_folded"], second["status"]) == ("7", "ok")
    assert gap["status"] == "error: '-' at position 5 is no nucleotide code"
    refused = table("C099/iupac.fa", "--ambiguous", "error", code=4)
    assert refused[0]["status"] == "error: 'R' at position 5 is an ambiguity code"
    assert table("C099/iupac.fa", "--ambiguous", "keep", code=4)[0]["status"] == "ok"


def test_c099_protein_is_called_protein() -> None:
    (row,) = table("C099/protein.faa", code=4)
    assert row["status"] == (
        "error: 'I' at position 6 is no nucleotide code: the sequence looks like protein"
    )


def test_c102_repeated_ids_are_said_or_refused() -> None:
    run = run_fake(DNA, "score", "--fasta", str(CASES / "C102/dup_ids.fa"))
    assert run.returncode == 0
    assert b"record 2 ('s1') repeats the id of an earlier record; both are kept" in run.stderr
    run = run_fake(DNA, "score", "--fasta", str(CASES / "C102/dup_ids.fa"), "--strict")
    assert run.returncode == 4


def test_s10_the_tokenizer_is_our_own() -> None:
    assert DnaTokenizer().encode("ACGTN").tolist() == [7, 8, 9, 10, 11]
    code = (
        "import sys; from hyena_cpu.tokenizers.dna import DnaTokenizer\n"
        "DnaTokenizer().encode('ACGTN')\n"
        "sys.exit(', '.join({'transformers', 'torch', 'tokenizers'} & set(sys.modules)) or 0)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=PACKAGE_HOME,
        env=environment(),
        timeout=60,
    )
    assert (run.returncode, run.stderr) == (0, b"")


@pytest.mark.parametrize("name", ["x; touch pwned", "$(touch pwned)", "a b", "`touch pwned`"])
def test_s12_no_shell_sees_the_name_of_a_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError):
        hyena_cpu.load(name)
    assert list(tmp_path.iterdir()) == []
    dna_folder(tmp_path / name, LIMIT)
    assert hyena_cpu.load(name).max_length == LIMIT
    assert [path.name for path in tmp_path.iterdir()] == [name]
