"""`verify`: every check passes on sound models, and each fails on what it is there to find."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyenadna_files import PUBLIC, write_port
from in_process import run_cli
from model_files import CASES, MODELS, folder, golden, stored
from toy import BIDIRECTIONAL, CAUSAL, weights

import hyena_cpu
from hyena_cpu import ModelError
from hyena_cpu.model import Model
from hyena_cpu.verify import Check, _stored, finite, verify
from hyena_cpu.weights import Weights, load_folder, save_folder

STEPS = ("token by token", "bits of steps")


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def failed(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if check.ok is False]


# ---- sound models


@pytest.mark.parametrize("name", MODELS)
def test_golden_models(name: str, tmp_path: Path) -> None:
    made = golden(name)
    save_folder(tmp_path / "m", made.config, made.tensors)
    checks = verify(hyena_cpu.load(tmp_path / "m", threads=1))
    assert failed(checks) == []
    names = " ".join(by_name(checks))
    assert ("hidden states, float64" in names) == (made.config.classifier is not None)
    assert ("classifier, float64" in names) == (made.config.classifier is not None)
    assert "filter of layers.0, float64" in names
    skipped = {check.name for check in checks if check.ok is None}
    steps = {name for name in by_name(checks) if name.startswith(STEPS)}
    assert len(steps) == 2
    assert skipped - {"logits of the original"} == (steps if made.config.classifier else set())
    for check in checks:
        assert check.value is None or check.bound is None or check.value <= check.bound


@pytest.mark.parametrize("name", CAUSAL)
def test_every_kind_of_layer(name: str) -> None:
    made = weights(CAUSAL[name])
    checks = verify(Model(made, None, threads=2), made)
    assert failed(checks) == []
    assert by_name(checks)["logits, float64"].ok
    assert by_name(checks)["bits with 2 and with 1 threads"].ok


def test_a_model_that_is_not_causal_has_no_steps() -> None:
    made = weights(BIDIRECTIONAL)
    checks = verify(Model(made, None, threads=1), made)
    assert failed(checks) == []
    for name, check in by_name(checks).items():
        if name.startswith(STEPS):
            assert (check.ok, check.value) == (None, None)
            assert "not causal" in check.note
    assert by_name(checks)["logits, float64"].ok


@pytest.mark.parametrize("name", ["tiny-1k-seqlen", "large-1m-seqlen"])
def test_public_shapes_in_bounded_memory(name: str, tmp_path: Path) -> None:
    path = write_port(tmp_path / "m", PUBLIC[name], grids=PUBLIC[name].l_max < 100_000)
    made = load_folder(path)
    m = Model(made, None, threads=1)
    tracemalloc.start()
    checks = verify(m, made)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert failed(checks) == []
    assert len([c for c in checks if c.name.startswith("filter of")]) == PUBLIC[name].layers
    assert peak < 200 << 20  # a filter of a million taps alone has a gigabyte


def test_choices_made_at_loading_are_made_again(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", *stored("hyenadna/orig_repo_lm_shift0"))
    assert failed(verify(hyena_cpu.load(path, modulation_shift=0.3, threads=1))) == []
    assert failed(verify(hyena_cpu.load(path, family="safari", threads=1))) == []


# ---- what each check finds


def with_tensor(made: Weights, name: str, factor: float) -> Weights:
    """The same model with one value of one tensor changed."""
    changed = made.tensors[name].copy()
    changed.flat[changed.size // 2] *= factor
    return replace(made, tensors=made.tensors | {name: changed})


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (
            "layers.1.mixer.filter.linear.0.weight",
            ["filter of layers.1, float64", "logits, float64"],
        ),
        ("layers.0.mixer.filter.times", ["filter of layers.0, float64"]),
        ("layers.0.mixer.skip", ["logits, float64"]),
        ("layers.1.mlp.up.bias", ["logits, float64"]),
    ],
)
def test_numbers_that_are_not_those_of_the_weights(tensor: str, found: list[str]) -> None:
    made = golden("hyenadna/hf_causal_lm")
    other = Model(with_tensor(made, tensor, 1.01), None, threads=1)
    checks = verify(other, made)
    assert set(found) <= set(failed(checks))


def test_steps_that_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made = golden("hyenadna/hf_causal_lm")
    step = Model.step
    monkeypatch.setattr(Model, "step", lambda self, *args: step(self, *args) + np.float32(0.01))
    checks = verify(Model(made, None, threads=1), made)
    assert failed(checks) == ["token by token against the whole"]


def test_bits_that_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made = golden("hyenadna/hf_causal_lm")
    hidden = Model.hidden

    def off(self: Model, *args: Any) -> np.ndarray:
        rows = hidden(self, *args)
        rows[3, 2] += np.float32(self.threads * 1e-3)
        return rows

    monkeypatch.setattr(Model, "hidden", off)
    checks = verify(Model(made, None, threads=2), made)
    assert by_name(checks)["bits with 2 and with 1 threads"].value == 1


def test_bits_that_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = golden("hyenadna/hf_causal_lm")
    step = Model.step

    def off(self: Model, states: Any, tokens: Any) -> np.ndarray:
        rows = step(self, states, tokens)
        return np.nextafter(rows, np.float32(9)) if isinstance(states, list) else rows

    monkeypatch.setattr(Model, "step", off)
    monkeypatch.setattr(
        Model, "hidden_each", lambda self, pieces: [self.hidden(p[::-1]) for p in pieces]
    )
    checks = verify(Model(made, None, threads=1), made)
    assert failed(checks) == ["bits alone and in a batch", "bits of steps alone and in a batch"]


def test_outputs_that_are_not_finite_are_no_agreement() -> None:
    made = golden("hyenadna/hf_causal_lm")
    broken = with_tensor(made, "layers.0.mixer.skip", np.nan)
    checks = by_name(verify(Model(broken, None, threads=1), made))
    assert checks["logits, float64"] == Check("logits, float64", None, 2e-5, False, "66 tokens")


def test_a_folder_that_has_changed(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", *stored("hyenadna/hf_causal_lm"))
    m = hyena_cpu.load(path, threads=1)
    config, tensors = stored("hyenadna/hf_causal_lm")
    tensors["lm_head.weight"][0, 0] += 1
    folder(path, config, tensors)
    with pytest.raises(ModelError, match="no longer holds the model"):
        verify(m)


def test_tensors_that_are_not_finite_are_all_named() -> None:
    made = golden("hyenadna/hf_causal_lm")
    made = with_tensor(made, "head.weight", np.inf)
    made = with_tensor(made, "layers.1.mixer.skip", np.nan)
    checks = finite(made)
    rows = {(check.note, check.value, check.ok) for check in checks}
    assert rows == {("layers.1.mixer.skip", 1, False), ("head.weight", 1, False)}
    assert verify(Model(made, None, threads=1), made) == checks


# ---- reference values of the folder, and the program


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """A copy of the bundled model, whose folder ships reference values."""
    path = tmp_path / "tiny-en"
    shutil.copytree(hyena_cpu.BUNDLED["tiny-en"], path)
    return path


def program(*args: str) -> tuple[int, str, str]:
    """Exit code, output and messages of `verify`."""
    run = run_cli("verify", "-t", "1", *args)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def test_the_bundled_model() -> None:
    code, out, err = program("--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["model"], found["ok"]) == ("tiny-en", True)
    assert found["numerics"]["dtype"] == "float32"
    assert {check["ok"] for check in found["checks"]} == {True}
    (stored,) = (c for c in found["checks"] if c["name"] == "logits of the original")
    assert 0 < stored["value"] <= stored["bound"]


def test_drift_from_the_reference_values(bundled: Path) -> None:
    """Case C020: nothing else is wrong with the model, it is only another one."""
    reference = json.loads((bundled / "reference.json").read_text())
    reference["logits"]["last_top_logits"][0] += 0.01
    (bundled / "reference.json").write_text(json.dumps(reference))
    code, out, err = program(str(bundled))
    assert code == 5
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0] == ["check", "value", "bound", "ok", "note"]
    assert [row[0] for row in rows[1:] if row[3] != "yes"] == ["logits of the original"]
    assert err == "hyena-cpu: error: tiny-en fails this check: logits of the original\n"


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (None, "logits must be an object"),
        ({"ids": []}, "ids must be a list of numbers"),
        ({"ids": [1], "last_top_ids": [True]}, "last_top_ids must be a list of numbers"),
        ({"ids": [1], "last_top_ids": [1], "last_top_logits": [1, 2]}, "do not belong together"),
        ({"ids": [1], "last_top_ids": [5000], "last_top_logits": [1]}, "the head has 2053 rows"),
    ],
)
def test_reference_values_that_cannot_be(bundled: Path, logits: object, message: str) -> None:
    (bundled / "reference.json").write_text(json.dumps({"logits": logits}))
    with pytest.raises(ModelError, match=f"reference.json: .*{message}"):
        _stored(hyena_cpu.load(bundled, threads=1))


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    """Case C037: the tensors by name, in the table; exit code 5."""
    config, tensors = stored("hyenadna/hf_causal_lm")
    tensors["lm_head.weight"][0, :2] = np.nan, np.inf
    tensors["hyena.backbone.ln_f.bias"][3] = -np.inf
    code, out, err = program("-m", str(folder(tmp_path / "m", config, tensors)))
    assert code == 5
    rows = [line.split("\t") for line in out.splitlines()[1:]]
    assert {(row[1], row[3], row[4]) for row in rows} == {
        ("2", "no", "head.weight"),
        ("1", "no", "norm.bias"),
    }
    assert "fails this check: values that are not finite and 1 more" in err


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    for args, code, message in (
        (["-m", str(tmp_path / "absent")], 3, "absent: no such folder"),
        (["-m", str(CASES / "C037")], 3, "config.json: no such file"),
        (["a", "-m", "b"], 2, "give the model once"),
        (["--max-memory", "1G"], 2, "unrecognized arguments"),
    ):
        found, out, err = program(*args)
        assert (found, out) == (code, "")
        assert message in err
        assert err.count("\n") == 1
