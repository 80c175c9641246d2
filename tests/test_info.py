"""What `info` says of a model's head, lengths and filters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import toy
from in_process import run_cli
from model_files import folder, golden, stored

from hyena_cpu.cli import main
from hyena_cpu.config import TokenizerConfig
from hyena_cpu.config_selection import SelectionConfig
from hyena_cpu.weights import save_folder


def info(*args: str) -> str:
    run = run_cli("info", *args)
    assert (run.returncode, run.stderr) == (0, b"")
    return run.stdout.decode()


@pytest.mark.parametrize(
    ("name", "head", "length", "shift"),
    [
        ("hf_causal_lm", {"kind": "language model", "tied": False}, 66, 0.05),
        ("hf_seqcls", {"kind": "classifier", "labels": 3, "pool": "pad_last"}, 34, 0.05),
        ("orig_standalone_head", {"kind": "classifier", "labels": 3, "pool": "mean"}, 66, 0.05),
        ("orig_repo_lm_shift0", {"kind": "language model", "tied": True}, 66, 0.0),
    ],
)
def test_heads_lengths_and_shifts(
    name: str, head: dict[str, object], length: int, shift: float, tmp_path: Path
) -> None:
    path = folder(tmp_path / name, *stored(f"hyenadna/{name}"))
    found = json.loads(info("-m", str(path), "--json"))
    made = golden(f"hyenadna/{name}")
    assert (found["model"], found["folder"]) == (name, str(path))
    assert (found["head"], found["max_length"]) == (head, length)
    layers = list(range(len(made.config.layers)))
    (filters,) = found["filters"]
    expected = {"kind": "implicit", "taps": length, "modulation_shift": shift}
    assert filters == {"layers": layers, **expected}
    assert found["parameters"] == made.num_parameters
    assert found["fingerprint"] == made.fingerprint
    lines = dict(line.split(maxsplit=1) for line in info("-m", str(path)).splitlines())
    assert lines["filters"] == f"implicit of {length} taps, modulation shift {shift}"
    assert lines["head"].startswith(f"kind {head['kind']}")


def test_layers_without_filters_are_left_out() -> None:
    found = json.loads(info("--json"))
    assert found["filters"] == [
        {"layers": [0, 1, 3], "kind": "sine_window", "taps": 1024, "modulation_shift": None}
    ]
    assert "filters         sine_window of 1024 taps\n" in info()


def test_rebuilt_grids_are_told(tmp_path: Path) -> None:
    """Case C013: in the notes of the table, and in the log with -v."""
    config, tensors = stored("hyenadna/hf_causal_lm")
    rest = {k: v for k, v in tensors.items() if "pos_emb" not in k}
    path = folder(tmp_path / "m", config, rest)
    assert "absent and rebuilt from the configuration: backbone.layers.0" in info("-m", str(path))
    said = run_cli("info", "-v", "-m", path).stderr.decode()
    (line,) = (line for line in said.splitlines() if "absent and rebuilt" in line)
    for grid in ("pos_emb.z", "pos_emb.t"):
        for layer in range(2):
            assert f"backbone.layers.{layer}.mixer.filter_fn.{grid}" in line


def test_a_model_that_looks_ahead_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = toy._model(
        toy.layer(SelectionConfig(2, "sigmoid_top")),
        vocab_size=256,
        logits_width=256,
        tokenizer=TokenizerConfig("bytes"),
        name="ahead",
    )
    save_folder(tmp_path / "m", config, toy.weights(config).tensors)
    model = ["-m", str(tmp_path / "m")]
    assert json.loads(info(*model, "--json"))["causal"] is False
    assert json.loads(info("--json"))["causal"] is True
    (tmp_path / "text").write_bytes(b"so and so and so")
    rows = ["--length", "8", "--pairs", "1", "--num-examples", "2"]
    for args in (["score", "so"], ["recall", str(tmp_path / "text")], ["mqar", "eval", *rows]):
        assert main([*args, *model, "-t", "1"]) == 0
        assert "warning: ahead has a layer that reads the whole" in capfd.readouterr().err
