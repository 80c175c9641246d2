"""tiny-recall: the accuracies its card promises, recomputed by this engine.

The protocol is the one in the models' reference.json.
"""

from __future__ import annotations

import hashlib
import json
import re

import numpy as np
import pytest

import hyena_cpu
from hyena_cpu.cli import main
from hyena_cpu.mqar import Setting, accuracy, generate
from hyena_cpu.verify import verify

NAMES = [name for name in hyena_cpu.BUNDLED if name.startswith("tiny-recall/")]
SOLVED = {"tiny-recall/attention", "tiny-recall/hybrid"}
CARD = (hyena_cpu.BUNDLED[NAMES[0]].parent / "MODEL_CARD.md").read_text()
ROWS = 400


def reference(name: str) -> dict:
    found: dict = json.loads((hyena_cpu.BUNDLED[name] / "reference.json").read_text())
    return found


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> hyena_cpu.Model:
    return hyena_cpu.load(request.param, threads=1)


def test_accuracy(model: hyena_cpu.Model) -> None:
    want = reference(model.name)
    kind = Setting(want["vocab_size"], want["length"], want["pairs"])
    found = accuracy(model, *generate(kind, want["rows"], want["seed"]))
    # An argmax among equals may fall either way, now and then.
    assert found == pytest.approx(want["accuracy"], abs=0.001)
    if model.name in SOLVED:
        assert found > 0.99
    else:
        assert found == pytest.approx(want["chance"], abs=0.03)


def test_logits_equal_those_of_the_training_framework(model: hyena_cpu.Model) -> None:
    want = reference(model.name)["logits"]
    last = model.logits(want["ids"])[-1]
    assert np.abs(last[want["last_top_ids"]] - want["last_top_logits"]).max() <= 1e-4
    assert all(check.ok is not False for check in verify(model))


def test_step_equals_whole(model: hyena_cpu.Model) -> None:
    ids = generate(Setting(256, 128, 8), 1, seed=5)[0][0]
    whole = model.logits(ids)
    state = model.prefill(ids[:50])
    rows = [model.step(state, int(token)) for token in ids[50:]]
    assert np.abs(np.stack(rows) - whole[50:]).max() <= 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_what_the_card_says(name: str) -> None:
    row = re.search(rf"^\| `{name}` \| .* \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", CARD, re.M)
    assert row is not None
    weights = (hyena_cpu.BUNDLED[name] / "model.safetensors").read_bytes()
    tensors = hyena_cpu.read_weights(name).tensors
    # The features of a ReLU filter are stored, not trained.
    trained = sum(value.size for key, value in tensors.items() if not key.endswith("features"))
    assert int(row[1].replace(",", "")) == trained
    assert int(row[2].replace(",", "")) == len(weights)
    assert float(row[3]) == pytest.approx(reference(name)["accuracy"], abs=5e-5)
    assert f"{name.partition('/')[2]}/model.safetensors` | `{sha256(weights)}`" in CARD


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_mqar_eval_of_the_bundled_models(capsys: pytest.CaptureFixture[str]) -> None:
    others = [word for name in NAMES[1:] for word in ("--also", name)]
    assert main(["mqar", "eval", "-m", NAMES[0], *others, "--num-examples", str(ROWS)]) == 0
    head, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    assert [row["model"] for row in rows] == NAMES
    assert [row["mixers"] for row in rows] == [
        "attention",
        "base_conv, attention",
        "base_conv",
        "hyena",
    ]
    assert {row["model"] for row in rows if float(row["accuracy"]) > 0.98} == SOLVED
