"""The tokenizer that lies beside weights: `convert` takes it along if it can be used."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from model_files import folder, golden, stored

import hyena_cpu
from hyena_cpu import config as c
from hyena_cpu.cli import main
from hyena_cpu.errors import ModelError
from hyena_cpu.weights import convert, save_folder


def tokenizer_json(ids: int = 8, kind: str = "BPE") -> str:
    """A tokenizer of so many ids, all of one byte."""
    vocab = {chr(ord("A") + i): i for i in range(ids)}
    data = {
        "version": "1.0",
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": kind, "vocab": vocab, "merges": []},
    }
    return json.dumps(data)


UNREADABLE = [
    (tokenizer_json(kind="WordPiece"), "only byte-level BPE tokenizers are supported"),
    ("{}", "it has no `model` object"),
    ("[", "is not valid JSON"),
    (tokenizer_json(50), "the tokenizer has ids up to 49 but the model's vocabulary ends at 39"),
]


@pytest.mark.parametrize(("content", "reason"), UNREADABLE)
def test_a_tokenizer_that_cannot_be_read_is_refused_before_anything_is_written(
    content: str, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = folder(tmp_path / "text", *stored("safari/lm_hybrid_attention"))
    (text / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError) as refusal:
        convert(text, tmp_path / "new")
    assert reason in str(refusal.value)
    assert str(text) in str(refusal.value)
    assert "move tokenizer.json away to convert the model without a tokenizer" in str(refusal.value)
    capfd.readouterr()
    assert main(["convert", str(text), str(tmp_path / "new")]) == ModelError.exit_code
    assert capfd.readouterr().err == f"hyena-cpu: error: {refusal.value}\n"
    assert [p.name for p in tmp_path.iterdir()] == ["text"]
    (text / "tokenizer.json").unlink()
    assert convert(text, tmp_path / "new").config.tokenizer is None
    # The letters of DNA need no file, so one that lies there stands in no way.
    dna = folder(tmp_path / "dna", *stored("hyenadna/hf_causal_lm"))
    (dna / "tokenizer.json").write_text(content)
    assert convert(dna, tmp_path / "again").config.tokenizer == c.TokenizerConfig("dna")


def test_the_tokenizer_goes_along_under_its_name(tmp_path: Path) -> None:
    weights = golden("safari/lm_hybrid_attention")
    for name in ("tokenizer.json", "letters.json"):
        config = dataclasses.replace(weights.config, tokenizer=c.TokenizerConfig("hf", name))
        extra = {name: tokenizer_json().encode()}
        save_folder(tmp_path / name, config, weights.tensors, extra_files=extra)
        convert(tmp_path / name, tmp_path / f"new-{name}")
        model = hyena_cpu.load(tmp_path / f"new-{name}")
        assert model.tokenizer.encode("CAB").tolist() == [2, 0, 1]
        (tmp_path / name / name).write_text("{}")
        with pytest.raises(ModelError, match=r"it has no `model` object$"):
            convert(tmp_path / name, tmp_path / "other")
    assert not (tmp_path / "other").exists()
