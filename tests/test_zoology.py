"""Zoology's models: outputs of the ORIGINAL code on random weights, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import model_files
import numpy as np
import pytest
from model_files import model, near
from safetensors.numpy import load_file, save_file

from hyena_cpu import config_json
from hyena_cpu.config import FilterConfig, HyenaConfig
from hyena_cpu.context import context
from hyena_cpu.errors import ModelError
from hyena_cpu.model import Model
from hyena_cpu.reference import model as reference
from hyena_cpu.weights import Weights, convert, load_files, load_folder
from hyena_cpu.weights.foreign import Keys
from hyena_cpu.weights.zoology_mixers import MIXERS, Place

GOLDEN = model_files.GOLDEN / "zoology"
MODELS = (
    "attention",
    "baseconv_short_explicit",
    "baseconv_short_implicit",
    "baseconv_useact",
    "hybrid_baseconv_attention",
    "hyena",
    "hyena_w10_emb5",
    "sliding_window",
    "based_taylor",
    "hybrid_baseconv_based",
)
LEAKS = {"baseconv_short_explicit"}  # sequences below l_max let the original see the future

golden = pytest.mark.parametrize("name", MODELS)


def load(name: str) -> Weights:
    return model_files.golden(f"zoology/{name}")


def arrays(name: str) -> dict[str, np.ndarray]:
    return model_files.arrays(f"zoology/{name}")


def mixer_output(m: Model, layer: int, ids: np.ndarray) -> np.ndarray:
    """What the mixer of a layer adds to the residual stream."""
    x = m.hidden(ids, layer)
    y = x.copy()
    block = m.blocks[layer]
    ctx = context([ids.astype(np.int32)], [0], 2)
    block.mixer.extend(None, y, block.norm1, ctx)
    return y - x


# ---- the original's outputs


@golden
def test_logits_and_hidden_states(name: str) -> None:
    compat = ["wrap_filter"] if name in LEAKS else []
    m, data = model(load(name), compat=compat), arrays(name)
    for part in "ab":
        for row, ids in enumerate(data[f"input_ids_{part}"]):
            near(m.logits(ids), data[f"logits_{part}"][row])
            near(m.hidden(ids), data[f"hidden_{part}"][row])


@pytest.mark.parametrize("name", LEAKS)
def test_without_the_leak_of_the_original(name: str) -> None:
    weights, data = load(name), arrays(name)
    m, ids = model(weights), data["input_ids_b"][0]
    got = m.logits(ids)
    near(got, reference.logits(weights.config, weights.tensors, ids))
    assert np.abs(got - data["logits_b"][0]).max() > 0.1
    near(m.logits(data["input_ids_a"][0]), data["logits_a"][0])  # of length l_max: nothing leaks


@golden
def test_outputs_of_every_mixer(name: str) -> None:
    m, data = model(load(name)), arrays(name)
    for i in range(len(m.config.layers)):
        for row, ids in enumerate(data["input_ids_a"]):
            near(mixer_output(m, i, ids), data[f"mixer{i}_out_a"][row])


@golden
def test_steps_equal_the_original_at_every_position(name: str) -> None:
    m, data = model(load(name)), arrays(name)
    for ids, want in zip(data["input_ids_a"], data["logits_a"], strict=True):
        state = m.new_state()
        for t, token in enumerate(ids):
            near(m.step(state, int(token)), want[t], 1e-4)


@golden
def test_float64_statement_equals_the_original(name: str) -> None:
    weights, data = load(name), arrays(name)
    ids = data["input_ids_a"][0]
    near(reference.logits(weights.config, weights.tensors, ids), data["logits_a"][0])


# ---- reading


def changed(name: str, edit: Any) -> dict[str, Any]:
    """The config of a fixture after `edit(config)`."""
    data = copy.deepcopy(config_json.read(GOLDEN / f"{name}.config.json"))
    edit(data)
    return data  # type: ignore[no-any-return]


def refused(tmp_path: Path, name: str, edit: Any, match: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(changed(name, edit)))
    with pytest.raises(ModelError, match=match):
        load_files(path, GOLDEN / f"{name}.safetensors")


def test_the_shell() -> None:
    config = load("attention").config
    assert (config.vocab_size, config.logits_width) == (30, 32)
    assert config.positions == config.max_length == 32
    assert config.tie_embeddings
    assert config.family == "zoology"
    assert [layer.mlp.kind for layer in config.layers if layer.mlp] == ["gelu_erf"] * 2
    identity = load("hyena").config.layers[0].mlp
    assert identity is not None
    assert (identity.kind, identity.width) == ("identity", 0)


@golden
def test_converted_from_pytorch(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    torch.save(load_torch(GOLDEN / f"{name}.safetensors"), tmp_path / "model.pt")
    config = GOLDEN / f"{name}.config.json"
    written = convert(tmp_path / "model.pt", tmp_path / "new", config=config)
    ids = arrays(name)["input_ids_b"][0]
    assert np.array_equal(model(written).logits(ids), model(load(name)).logits(ids))
    assert load_folder(tmp_path / "new").config.family == "zoology"


def test_a_class_that_is_not_known(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["sequence_mixer"]["name"] = "zoology.mixers.other.Other"

    refused(tmp_path, "attention", edit, r"sequence_mixer: .*other\.Other.*known: MHA, Hyena")


def test_options_that_are_refused(tmp_path: Path) -> None:
    def option(key: str, value: object) -> Any:
        return lambda data: data["sequence_mixer"]["kwargs"].update({key: value})

    refused(tmp_path, "attention", option("num_heads", 3), "d_model 16 is not divisible by heads 3")
    refused(tmp_path, "hyena", option("order", 3), "order is 3")
    refused(tmp_path, "hyena", option("bidirectional", True), "bidirectional is True")
    refused(tmp_path, "hyena", option("num_blocks", 2), "num_blocks is 2")
    refused(tmp_path, "hyena", option("l_max", 31), "l_max is 31 but the grid .* for 32")
    refused(tmp_path, "attention", lambda d: d.update(n_layers=3), "n_layers is 3 .* 2 layers")
    refused(tmp_path, "attention", lambda d: d.update(block_type="X"), "block_type")
    refused(
        tmp_path, "attention", lambda d: d["state_mixer"].update(name="z.GLU"), "z.GLU.*known: MLP"
    )
    refused(tmp_path, "attention", lambda d: d.update(sequence_mixer={}), "name must be")
    refused(tmp_path, "attention", option("bias", False), "bias is False")


def test_base_conv_options_that_are_refused(tmp_path: Path) -> None:
    def option(key: str, value: object) -> Any:
        return lambda data: data["sequence_mixer"]["kwargs"].update({key: value})

    implicit, explicit = "baseconv_useact", "baseconv_short_explicit"
    for value, match in (
        ([3], "kernel_size lists 1 layers, there is a layer 1"),
        ([-1, 0], "kernel_size of layer 1 is 0"),
        ("3", "kernel_size of layer 0 is '3'"),
        (3, r"missing tensors: .*sequence_mixer\.conv\.conv\.weight"),
    ):
        refused(tmp_path, implicit, option("kernel_size", value), match)
    refused(tmp_path, explicit, option("kernel_size", [4, -1]), r"\[16, 1, 3\] .* \[16, 1, 4\]")
    refused(tmp_path, explicit, option("l_max", 31), r"conv\.filter .*\[16, 32\] .* \[16, 31\]")
    refused(tmp_path, implicit, option("l_max", 31), r"conv\.pos_emb\.z .* \[1, 31, 3\]")
    refused(tmp_path, implicit, option("l_max", None), "l_max")


def test_hybrids_that_are_refused(tmp_path: Path) -> None:
    def configs(value: object) -> Any:
        return lambda data: data["sequence_mixer"]["kwargs"].update(configs=value)

    name = "hybrid_baseconv_attention"
    refused(tmp_path, name, configs([]), "configs must be a list of mixers")
    refused(tmp_path, name, configs(["MHA"]), r"configs\[0\]: must be an object")
    refused(tmp_path, name, configs([{"name": "a.B"}]), r"configs\[0\]: name is 'a.B'.*known: MHA")


def test_the_window_of_sliding_attention() -> None:
    mixer = load("sliding_window").config.layers[0].mixer
    assert (mixer.heads, mixer.window, mixer.blocked) == (1, 9, False)  # type: ignore[union-attr]


def test_an_embedding_that_is_not_learnt_is_not_the_head(tmp_path: Path) -> None:
    data = changed("attention", lambda d: d.update(learnable_word_embeddings=False))
    (tmp_path / "config.json").write_text(json.dumps(data))
    tensors = load_file(GOLDEN / "attention.safetensors")
    tensors["lm_head.weight"] = -2 * tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    ids = arrays("attention")["input_ids_b"][0]
    near(model(load_folder(tmp_path)).logits(ids), -2 * arrays("attention")["logits_b"][0])
    (tmp_path / "config.json").write_text((GOLDEN / "attention.config.json").read_text())
    with pytest.raises(ModelError, match=r"lm_head\.weight must equal"):
        load_folder(tmp_path)


def test_sequences_longer_than_l_max() -> None:
    assert load("hyena").config.max_length == 32
    assert load("baseconv_useact").config.max_length is None


def test_the_gates_of_hyena() -> None:
    """One channel worked by hand: x1, the first chunk, gates before the convolution, x2 after it.

    u is the unit matrix, so that column t of in_proj is what the chunks hold at time t.
    """
    rows = np.zeros((9, 3), np.float32)
    rows[::3] = [[1, 2, -1], [0.5, -1, 2], [2, 1, 3]]  # channel 0 of x1, x2 and v
    short = np.tile(np.float32([0, 0, 1]), (9, 1))[:, None]
    stored = {"in_proj.weight": rows, "short_filter.weight": short}
    found = MIXERS["Hyena"](Keys({"l_max": 3}, "here"), Place(0, 3, {}, None))
    native = {
        tensor.native: tensor.convert(stored[key])
        for tensor in found.tensors
        for key in tensor.keys
        if key in stored and tensor.convert is not None
    }
    config = HyenaConfig(FilterConfig("explicit", taps=3), bias=False, short_bias=False)
    unit = np.eye(3)
    tensors = native | {
        "out_proj.weight": unit,
        "skip": np.full((1, 3), 0.1),
        "filter.taps": np.tile([1, 0.5, 0.25], (3, 1)),
    }
    got = reference.hyena(config, tensors, unit)
    np.testing.assert_allclose(got[:, 0], [1.1, -3.2, -3.6], atol=1e-7)
