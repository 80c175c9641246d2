"""Loading as the case log wants it: C011, C013, C015, C020, C029, C036, C037, C067."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import CASES, folder, golden, hyena_layer, stored

import hyena_cpu
from hyena_cpu.errors import ModelError, NumericError
from hyena_cpu.model import Model
from hyena_cpu.weights import load_folder, native, safetensors, save_folder
from hyena_cpu.weights.naming import Tensor, clean, collect, is_training_leftover

IDS = [7, 8, 9, 10, 11, 7, 7, 1]


def logits(path: Path) -> np.ndarray:
    return hyena_cpu.load(path, threads=1).logits(IDS)


# ---- C011: more rows than the tokenizer has ids is padding, fewer is an error


def test_an_embedding_smaller_than_the_vocabulary(tmp_path: Path) -> None:
    case = json.loads((CASES / "C011/vocab.json").read_text())
    config, tensors = stored("hyenadna/hf_causal_lm")
    for name in ("hyena.backbone.embeddings.word_embeddings.weight", "lm_head.weight"):
        assert tensors[name].shape[0] == case["embedding_rows"]
        tensors[name] = tensors[name][: case["tokenizer_size"] - 1]
    with pytest.raises(ModelError, match="vocab_size is 12 but the embedding has 11 rows"):
        load_folder(folder(tmp_path, config, tensors))


# ---- C013: known prefixes off, grids rebuilt and told, anything else missing is listed


@pytest.mark.parametrize("prefix", ["", "model.", "hyena.", "model.hyena."])
def test_prefixes_are_taken_off(prefix: str, tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    renamed = {
        prefix + k.removeprefix("hyena.") if k.startswith("hyena.") else k: v
        for k, v in tensors.items()
    }
    path = folder(tmp_path, config, renamed)
    assert load_folder(path).fingerprint == golden("hyenadna/hf_causal_lm").fingerprint


def test_missing_and_misspelt_tensors_are_both_named(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    block = "hyena.backbone.layers.1."
    tensors[block + "mlp.fc_1.weight"] = tensors.pop(block + "mlp.fc1.weight")
    del tensors[block + "norm1.bias"]
    with pytest.raises(ModelError) as error:
        load_folder(folder(tmp_path, config, tensors))
    said = str(error.value)
    missing, _, unknown = said.partition("of no known name are")
    assert "layers.1.mlp.fc1.weight" in missing
    assert "layers.1.norm1.bias" in missing
    assert "layers.1.mlp.fc_1.weight" in unknown


@pytest.mark.parametrize("layout", ["hf_causal_lm", "orig_repo_lm_shift0"])
@pytest.mark.parametrize("longest", [65, 67, 1026])
def test_a_grid_of_another_length(layout: str, longest: int, tmp_path: Path) -> None:
    config, tensors = stored(f"hyenadna/{layout}")
    key, where = ("l_max", config["layer"]) if "layer" in config else ("max_seq_len", config)
    where[key] = longest
    with pytest.raises(ModelError, match=rf"{key} is {longest} but the grid .*z was made for 66"):
        load_folder(folder(tmp_path, config, tensors))


def test_window_shift_of_the_port_is_a_key(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    config.pop("modulation_shift", None)
    (default, zero) = (
        load_folder(folder(tmp_path, config | more, tensors))
        for more in ({}, {"modulation_shift": 0.0})
    )
    assert (hyena_layer(default).filter.shift, hyena_layer(zero).filter.shift) == (0.05, 0.0)
    assert any("window shift 0.05" in note for note in default.notes)
    a, b = (Model(w, None, threads=1).logits(IDS) for w in (default, zero))
    assert np.abs(a - b).max() > 1e-3


# ---- C015: a head that is not stored is the embedding or an error, never random


def test_tied_head_is_the_embedding_bit_for_bit(tmp_path: Path) -> None:
    weights = golden("hyenadna/hf_causal_lm")
    tensors = {k: v for k, v in weights.tensors.items() if k != "head.weight"}
    flags = {
        flag: json.loads((CASES / f"C015/config_{flag}.json").read_text())["tie_embeddings"]
        for flag in ("tied", "untied")
    }
    tied = replace(weights.config, tie_embeddings=flags["tied"])
    untied = replace(weights.config, tie_embeddings=flags["untied"])
    save_folder(tmp_path / "tied", tied, tensors)
    save_folder(tmp_path / "copy", untied, tensors | {"head.weight": tensors["embedding.weight"]})
    assert logits(tmp_path / "tied").tobytes() == logits(tmp_path / "copy").tobytes()
    (tmp_path / "copy/model.safetensors").write_bytes(
        (tmp_path / "tied/model.safetensors").read_bytes()
    )
    with pytest.raises(ModelError, match=r"missing tensors: head\.weight"):
        load_folder(tmp_path / "copy")


@pytest.mark.parametrize("flag", ["tied", "untied"])
def test_the_case_files_are_of_no_known_family(flag: str, tmp_path: Path) -> None:
    case = CASES / "C015"
    (tmp_path / "config.json").write_bytes((case / f"config_{flag}.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((case / "tied_no_head.safetensors").read_bytes())
    with pytest.raises(ModelError, match="cannot tell the model family"):
        load_folder(tmp_path)


# ---- C020, C029: keys of other engines are told; those that change numbers are a warning


@pytest.mark.parametrize("layout", ["hf_causal_lm", "orig_repo_lm_shift0"])
def test_other_number_formats_are_a_warning(
    layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, tensors = stored(f"hyenadna/{layout}")
    plain = logits(folder(tmp_path / "plain", config, tensors))
    config["use_fp8_input_projections"] = True
    path = folder(tmp_path / "fp8", config, tensors)
    with caplog.at_level(logging.WARNING, logger="hyena_cpu"):
        model = hyena_cpu.load(path, threads=1)
    assert "use_fp8_input_projections: computed in float32 all the same" in caplog.text
    assert any("use_fp8_input_projections" in note for note in model.notes)
    assert model.numerics["dtype"] == "float32"
    assert np.array_equal(model.logits(IDS), plain)


def test_switches_of_devices_are_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    switches = {"use_flash_attn": True, "prefill_style": "fft", "use_fp8_input_projections": False}
    weights = load_folder(folder(tmp_path, config | switches, tensors))
    (note,) = (n for n in weights.notes if "without effect" in n)
    assert all(switch in note for switch in switches)
    assert caplog.text == ""
    assert weights.fingerprint == golden("hyenadna/hf_causal_lm").fingerprint


@pytest.mark.parametrize("change", [{"n_layer": "2"}, {"max_seq_len": "66"}, {"d_model": [16]}])
def test_text_for_a_number_is_refused_by_name(change: dict[str, Any], tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    (key,) = change
    with pytest.raises(ModelError, match=f"{key} must be a whole number"):
        load_folder(folder(tmp_path, config | change, tensors))


# ---- C036: 16-bit taps are widened once


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_16_bit_filters_give_the_logits_of_their_widened_copy(dtype: str, tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    widened, raw = {}, {}
    for name, value in tensors.items():
        if dtype == "F16":
            raw[name] = value.astype(np.float16)
            widened[name] = raw[name].astype(np.float32)
        else:
            raw[name] = (value.view(np.uint32) >> 16).astype(np.uint16)
            widened[name] = (raw[name].astype(np.uint32) << 16).view(np.float32)
    short, long = tmp_path / "short", tmp_path / "long"
    folder(long, config, widened)
    folder(short, config, {})
    (short / "model.safetensors").write_bytes(file_of(raw, dtype))
    assert np.array_equal(logits(short), logits(long))


def file_of(tensors: dict[str, np.ndarray], dtype: str) -> bytes:
    """A safetensors file of 16-bit values."""
    header, at = {}, 0
    for name, value in tensors.items():
        ends = [at, at + value.nbytes]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": ends}
        at = ends[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for v in tensors.values())


# ---- C037: weights that are not finite are an error by name


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_named(bad: float, tmp_path: Path) -> None:
    weights = golden("hyenadna/hf_causal_lm")
    save_folder(tmp_path / "m", weights.config, weights.tensors)
    tensors = dict(weights.tensors)
    name = "layers.1.mixer.filter.linear.3.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][2, 3] = bad
    folder(tmp_path / "bad", json.loads((tmp_path / "m/config.json").read_text()), tensors)
    with pytest.raises(NumericError, match=rf"{name} holds 1 values that are NaN or infinite"):
        hyena_cpu.load(tmp_path / "bad")


def test_the_case_file_holds_values_that_are_not_finite() -> None:
    stored = safetensors.read(CASES / "C037/nan_inf_weights.safetensors", is_training_leftover)
    wanted = [Tensor(name, value.shape, (name,)) for name, value in stored.items()]
    with pytest.raises(NumericError, match="NaN or infinite"):
        collect(wanted, stored, "nan_inf_weights")


# ---- C067: names that do not match


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("prefix_model", None),
        ("one_key_missing", r"missing tensors: lm_head\.weight$"),
        (
            "one_key_extra",
            r"filter\.hh \(the nearest known name is blocks\.0\.filter\.h\)",
        ),
    ],
)
def test_keys_that_do_not_match(file: str, message: str | None) -> None:
    names = ("embedding.weight", "blocks.0.filter.h", "blocks.0.out.weight", "lm_head.weight")
    stored = safetensors.read(CASES / f"C067/{file}.safetensors", is_training_leftover)
    cleaned = clean(stored, ("model.",), file)
    wanted = [Tensor(name, (2,), (name,)) for name in names]
    if message is None:
        tensors, notes = collect(wanted, cleaned, file)
        assert (sorted(tensors), notes) == (sorted(names), [])
        for name, value in tensors.items():
            assert np.array_equal(value, stored[f"model.{name}"])
    else:
        with pytest.raises(ModelError, match=message):
            collect(wanted, cleaned, file)


# ---- how many parameters


def test_parameters_are_counted_as_their_authors_do() -> None:
    dna = golden("hyenadna/hf_causal_lm")
    grids = sum(v.size for k, v in dna.tensors.items() if k.endswith(("features", "times")))
    shared = 2 * len(dna.config.layers) * 64  # two further names of one frequency vector
    deltas = len(dna.config.layers) * 16
    everything = sum(np.prod(shape) for shape in native.shapes(dna.config).values())
    assert dna.num_parameters == everything - grids - shared - deltas
    safari = golden("safari/lm_order2_normalized")  # where z is trained
    z = sum(v.size for k, v in safari.tensors.items() if k.endswith("features"))
    as_dna = native.parameter_count(replace(safari.config, family="hyenadna"), safari.tensors)
    assert safari.num_parameters == as_dna + z
