"""Native folders: written whole or not at all, and made from PyTorch files without running them."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import GOLDEN, MODELS, folder, golden, stored
from test_config import EVERYTHING

from hyena_cpu import config as c
from hyena_cpu.errors import ModelError, NumericError
from hyena_cpu.weights import convert, load_files, load_folder, load_operator, native, save_folder


def random_tensors(config: c.ModelConfig) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = native.shapes(config).items()
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes}


# ---- native folders ----


@pytest.mark.parametrize("name", MODELS)
def test_native_copy_is_the_same_model(name: str, tmp_path: Path) -> None:
    weights = golden(name)
    save_folder(tmp_path / "copy", weights.config, weights.tensors)
    copy = load_folder(tmp_path / "copy")
    assert copy.config == weights.config
    assert copy.fingerprint == weights.fingerprint
    for key, value in weights.tensors.items():
        np.testing.assert_array_equal(copy.tensors[key], value)


def test_every_part_of_the_native_format(tmp_path: Path) -> None:
    config = dataclasses.replace(EVERYTHING, classifier=None)
    tensors = random_tensors(config)
    extra = {"tokenizer.json": b"{}", "generation_config.json": b'{"top_k": 4}'}
    save_folder(tmp_path / "m", config, tensors, extra_files=extra)
    weights = load_folder(tmp_path / "m")
    assert weights.config == config
    assert weights.generation == {"top_k": 4}
    assert weights.notes == ()
    assert weights.tensors["head.weight"].shape == (24, 12)
    assert weights.tensors["layers.0.mixer.skip"].shape == (2, 12)
    assert weights.tensors["layers.0.mixer.filter.log_rate"].shape == (24,)


def test_float16_rounds_all_but_filters(tmp_path: Path) -> None:
    config = dataclasses.replace(EVERYTHING, classifier=None)
    tensors = random_tensors(config)
    save_folder(tmp_path / "m", config, tensors, dtype="float16")
    loaded = load_folder(tmp_path / "m").tensors
    for name, value in tensors.items():
        exact = "filter." in name and not name.endswith("taps")
        expected = value if exact else value.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(loaded[name], expected)
    tensors["embedding.weight"][0, 0] = 70_000
    with pytest.raises(NumericError, match=r"embedding\.weight: 7e\+04 does not fit float16"):
        save_folder(tmp_path / "n", config, tensors, dtype="float16")


def test_the_fingerprint_sees_every_bit() -> None:
    weights = golden("hyenadna/hf_causal_lm")
    assert golden("hyenadna/hf_causal_lm").fingerprint == weights.fingerprint
    shifted = golden("hyenadna/hf_causal_lm", modulation_shift=0.0)
    assert shifted.fingerprint != weights.fingerprint


def test_saving_refuses(tmp_path: Path) -> None:
    weights = golden("hyenadna/hf_causal_lm")
    (tmp_path / "there").mkdir()
    with pytest.raises(ModelError, match="exists already"):
        save_folder(tmp_path / "there", weights.config, weights.tensors)
    less = {k: v for k, v in weights.tensors.items() if k != "head.weight"}
    with pytest.raises(ModelError, match=r"missing tensors: head\.weight"):
        save_folder(tmp_path / "new", weights.config, less)
    broken = weights.tensors | {"head.weight": np.full((16, 16), np.nan, np.float32)}
    with pytest.raises(NumericError, match=r"head\.weight"):
        save_folder(tmp_path / "new", weights.config, broken)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be written"):
        save_folder(tmp_path / "file" / "new", weights.config, weights.tensors)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "there"]


def test_an_interrupted_save_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = golden("hyenadna/hf_causal_lm")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ModelError, match="No space left"):
            save_folder(tmp_path / "m", weights.config, weights.tensors)
    assert list(tmp_path.iterdir()) == []


def test_native_tensors_are_checked(tmp_path: Path) -> None:
    weights = golden("hyenadna/hf_causal_lm")
    save_folder(tmp_path / "m", weights.config, weights.tensors)
    config = json.loads((tmp_path / "m/config.json").read_text())
    for change, reason in (
        ({"logits_width": 24}, r"embedding\.weight has shape \[16, 16\] but needs \[24, 16\]"),
        ({"tie_embeddings": True}, r"belong to no part of the model: head\.weight"),
        ({"positions": 66}, r"missing tensors: positions\.weight"),
    ):
        (tmp_path / "m/config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=reason):
            load_folder(tmp_path / "m")


def test_shift_of_a_native_folder_can_be_replaced(tmp_path: Path) -> None:
    weights = golden("hyenadna/hf_causal_lm")
    save_folder(tmp_path / "m", weights.config, weights.tensors)
    shifted = load_folder(tmp_path / "m", modulation_shift=0.0)
    expected = golden("hyenadna/hf_causal_lm", modulation_shift=0.0)
    assert shifted.config.layers == expected.config.layers


def test_paths_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = golden("hyenadna/hf_seqcls")
    target = tmp_path / "модель é 1"
    save_folder(target, weights.config, weights.tensors)
    (tmp_path / "link").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = [target, str(target) + "/", os.fsencode(target), "link", f"~/{target.name}"]
    assert {load_folder(path).fingerprint for path in paths} == {weights.fingerprint}
    with pytest.raises(ModelError, match="модель é 2: no such folder"):
        load_folder(tmp_path / "модель é 2")


# ---- convert ----


def test_convert_a_foreign_folder(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    origin = folder(tmp_path / "origin", config, tensors)
    (origin / "generation_config.json").write_text('{"temperature": 0.5}')
    weights = convert(origin, tmp_path / "native", modulation_shift=0.0)
    assert weights.folder == tmp_path / "native"
    assert weights.generation == {"temperature": 0.5}
    assert any("read as hyenadna" in note for note in weights.notes)
    expected = golden("hyenadna/hf_causal_lm", modulation_shift=0.0)
    assert weights.fingerprint == expected.fingerprint
    with pytest.raises(ModelError, match="exists already"):
        convert(origin, tmp_path / "native")


@pytest.mark.parametrize("shift", [float("nan"), float("inf"), -float("inf")])
def test_convert_takes_finite_shifts_only(shift: float, tmp_path: Path) -> None:
    origin = folder(tmp_path / "origin", *stored("hyenadna/hf_causal_lm"))
    with pytest.raises(ModelError, match="modulation_shift must be a finite number"):
        convert(origin, tmp_path / "native", modulation_shift=shift)
    assert not (tmp_path / "native").exists()


def test_no_nan_reaches_config_json(tmp_path: Path) -> None:
    weights = golden("hyenadna/hf_causal_lm")
    norm = dataclasses.replace(weights.config.norm, eps=float("nan"))
    config = dataclasses.replace(weights.config, norm=norm)
    with pytest.raises(ModelError, match=r"eps|config\.json: holds NaN"):
        save_folder(tmp_path / "m", config, weights.tensors)
    mixer = weights.config.layers[0].mixer
    assert isinstance(mixer, c.HyenaConfig)
    odd = dataclasses.replace(mixer, filter=dataclasses.replace(mixer.filter, shift=float("nan")))
    layers = tuple(dataclasses.replace(layer, mixer=odd) for layer in weights.config.layers)
    config = dataclasses.replace(weights.config, layers=layers)
    with pytest.raises(ModelError, match=r"shift|config\.json: holds NaN"):
        save_folder(tmp_path / "m", config, weights.tensors)
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_cannot_be_read_again_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = folder(tmp_path / "origin", *stored("hyenadna/hf_causal_lm"))

    def damaged(path: Path, *_: Any, **options: Any) -> None:
        save_folder(path, *_, **options)
        (path / "model.safetensors").write_bytes(b"")

    monkeypatch.setattr("hyena_cpu.weights.save_folder", damaged)
    with pytest.raises(ModelError, match="truncated"):
        convert(origin, tmp_path / "native")
    assert not (tmp_path / "native").exists()


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch files need PyTorch")


@pytest.mark.usefixtures("torch")
def test_lightning_checkpoint(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "hyenadna/orig_lightning.ckpt", tmp_path / "weights.ckpt")
    shutil.copy(GOLDEN / "hyenadna/orig_standalone_head.config.json", tmp_path / "config.json")
    weights = convert(tmp_path, tmp_path / "native")
    assert weights.config.tie_embeddings
    assert weights.config.classifier is None
    same = golden("hyenadna/orig_standalone_head")
    for name in weights.tensors:
        np.testing.assert_array_equal(weights.tensors[name], same.tensors[name])


@pytest.mark.usefixtures("torch")
def test_flat_state_dict(tmp_path: Path) -> None:
    name = "safari/lm_public150b_flavour"
    weights = convert(
        GOLDEN / f"{name}.pt", tmp_path / "native", config=GOLDEN / f"{name}.config.json"
    )
    assert weights.fingerprint == golden(name).fingerprint


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_bin_in_every_precision(torch: Any, dtype: str, tmp_path: Path) -> None:
    _, tensors = stored("hyenadna/hf_causal_lm")
    cast = {k: torch.from_numpy(v).to(getattr(torch, dtype)) for k, v in tensors.items()}
    cast["torchmetrics.seen"] = torch.tensor(3)
    torch.save(cast, tmp_path / "pytorch_model.bin")
    config = GOLDEN / "hyenadna/hf_causal_lm.config.json"
    weights = convert(tmp_path / "pytorch_model.bin", tmp_path / "native", config=config)
    expected = cast["lm_head.weight"].to(torch.float32).numpy()
    np.testing.assert_array_equal(weights.tensors["head.weight"], expected)


class Trap:
    """Unpickling this makes a folder; a reader that runs code would leave a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickles_are_never_executed(torch: Any, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trap = {"a": torch.zeros(2), "state_dict": {"b": Trap(trace)}}
    torch.save(trap, tmp_path / "zip.ckpt")
    torch.save(trap, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.bin").write_bytes(pickle.dumps(Trap(trace)))
    with zipfile.ZipFile(tmp_path / "fake.bin", "w") as archive:
        archive.writestr("fake/data.pkl", pickle.dumps(Trap(trace)))
        archive.writestr("fake/version", "3\n")
    config = GOLDEN / "hyenadna/hf_causal_lm.config.json"
    for name in ("zip.ckpt", "old.pt", "bare.bin", "fake.bin"):
        with pytest.raises(ModelError, match=f"{name}: not a PyTorch file of plain t") as error:
            convert(tmp_path / name, tmp_path / "native", config=config)
        assert "only tensors are read" in str(error.value)
        named = name in ("zip.ckpt", "old.pt")  # the others fail before the call is reached
        refused = "mkdir, which was refused" if named else "which were refused"
        assert refused in str(error.value)
        assert "weights_only" not in str(error.value)
        assert not trace.exists()
    pickle.loads(pickle.dumps(Trap(trace)))  # the trap does work
    assert trace.exists()


def test_a_file_that_finds_no_memory_is_not_called_damaged(
    torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise MemoryError

    torch.save({"a": torch.zeros(2)}, tmp_path / "x.pt")
    monkeypatch.setattr(torch, "load", fails)
    config = GOLDEN / "hyenadna/hf_causal_lm.config.json"
    with pytest.raises(MemoryError):
        convert(tmp_path / "x.pt", tmp_path / "native", config=config)


def test_other_content_is_refused(torch: Any, tmp_path: Path) -> None:
    config = GOLDEN / "hyenadna/hf_causal_lm.config.json"
    path = tmp_path / "x.pt"
    for content, reason in (
        ([torch.zeros(2)], "holds a list, not a state dictionary"),
        ({"a": 3}, "tensor a: is a int, not a tensor"),
        ({"a": torch.zeros(2, dtype=torch.int64)}, "int64"),
        ({"a": torch.eye(2).to_sparse()}, "sparse"),
        ({"a": torch.zeros(2, dtype=torch.float8_e4m3fn)}, "float8"),
    ):
        torch.save(content, path)
        with pytest.raises(ModelError, match=reason):
            convert(path, tmp_path / "native", config=config)
    for damage in (path.read_bytes()[:200], b"", b"hello"):
        path.write_bytes(damage)
        with pytest.raises(ModelError, match=r"x\.pt: not a PyTorch file"):
            convert(path, tmp_path / "native", config=config)
    with pytest.raises(ModelError, match="no such file"):
        convert(tmp_path / "absent.pt", tmp_path / "native", config=config)


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".pth", ".bin"])
def test_only_convert_opens_pytorch_files(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    shutil.copy(GOLDEN / "hyenadna/orig_lightning.ckpt", path)
    config = GOLDEN / "hyenadna/orig_standalone_head.config.json"
    for load in (load_files, load_operator):
        with pytest.raises(ModelError, match="make a safe copy first: hyena-cpu convert"):
            load(config, path)


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="absent: no such file or folder"):
        convert(tmp_path / "absent", tmp_path / "native")
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="file: a file, not a folder: hyena-cpu convert"):
        load_folder(tmp_path / "file")


def test_names_that_no_file_can_have(tmp_path: Path) -> None:
    long, model = tmp_path / ("a" * 300), folder(tmp_path, *stored("hyenadna/hf_causal_lm"))
    for args in ((long, tmp_path / "new"), (model, long)):
        with pytest.raises(ModelError, match=f"{long}: File name too long"):
            convert(*args)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ModelError, match="loop: exists already"):
        convert(model, tmp_path / "loop")


def test_convert_uses_the_config_it_is_given(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    origin = folder(tmp_path / "origin", {"model_type": "gpt2"}, tensors)
    (tmp_path / "other.json").write_text(json.dumps(config))
    weights = convert(origin, tmp_path / "native", config=tmp_path / "other.json")
    assert weights.fingerprint == golden("hyenadna/hf_causal_lm").fingerprint


def test_the_new_folder_names_the_model(tmp_path: Path) -> None:
    origin = folder(tmp_path / "origin", *stored("hyenadna/hf_causal_lm"))
    assert convert(origin, tmp_path / "new").config.name == "new"
    assert json.loads((tmp_path / "new/config.json").read_text())["name"] == "new"
    config = dataclasses.replace(load_folder(origin).config, name="Anna")
    save_folder(tmp_path / "native", config, load_folder(origin).tensors)
    assert convert(tmp_path / "native", tmp_path / "again").config.name == "Anna"


@pytest.mark.parametrize("content", ["[]", "3", "null", '"x"', "{"])
def test_generation_settings_are_an_object(content: str, tmp_path: Path) -> None:
    origin = folder(tmp_path / "origin", *stored("hyenadna/hf_causal_lm"))
    (origin / "generation_config.json").write_text(content)
    with pytest.raises(ModelError, match=r"origin/generation_config\.json: (must be|not valid)"):
        load_folder(origin)
    with pytest.raises(ModelError, match=r"origin/generation_config\.json: (must be|not valid)"):
        convert(origin, tmp_path / "native")


def test_convert_needs_one_file(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "hyenadna/hf_causal_lm.config.json", tmp_path / "config.json")
    with pytest.raises(ModelError, match="holds 0 PyTorch files"):
        convert(tmp_path, tmp_path / "native")
    for name in ("a.bin", "b.pt"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match="holds 2 PyTorch files"):
        convert(tmp_path, tmp_path / "native")


def test_without_pytorch_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    config = GOLDEN / "hyenadna/hf_causal_lm.config.json"
    (tmp_path / "x.ckpt").write_bytes(b"")
    with pytest.raises(ModelError, match=r"pip install 'hyena-cpu\[convert\]'"):
        convert(tmp_path / "x.ckpt", tmp_path / "native", config=config)
