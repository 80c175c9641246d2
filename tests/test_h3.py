"""H3 models: outputs of the ORIGINAL code on random weights, reading, and what is refused."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import GOLDEN, arrays, model, near
from model_files import golden as load
from safetensors.numpy import load_file, save_file

from hyena_cpu import config_json
from hyena_cpu.config import (
    AttentionConfig,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    RotaryConfig,
)
from hyena_cpu.config_ssm import H3Config
from hyena_cpu.context import context
from hyena_cpu.errors import ModelError
from hyena_cpu.reference import model as reference
from hyena_cpu.weights import Weights, convert, load_folder
from hyena_cpu.weights.native import shapes

MODELS = ("h3/h3_lm_attn1", "h3/h3_lm_headdim4")
ZOOLOGY = ("zoology/h3_headdim2", "zoology/h3_headdim1_dstate16")

models = pytest.mark.parametrize("name", MODELS)
everyone = pytest.mark.parametrize("name", MODELS + ZOOLOGY)


# ---- the original's outputs


@everyone
def test_logits(name: str) -> None:
    m, data = model(load(name)), arrays(name)
    for part in "ab":
        for ids, want in zip(data[f"input_ids_{part}"], data[f"logits_{part}"], strict=True):
            near(m.logits(ids), want)


@everyone
def test_recurrent_logits(name: str) -> None:
    """A prompt with a state, and token by token."""
    m, data = model(load(name)), arrays(name)
    for ids, want in zip(data["input_ids_a"], data["logits_a"], strict=True):
        near(m.extend(m.new_state(), ids), want)
        state = m.new_state()
        for t, token in enumerate(ids):
            near(m.step(state, int(token)), want[t])


@everyone
def test_float64_statement_equals_the_original(name: str) -> None:
    weights, data = load(name), arrays(name)
    ids = data["input_ids_a"][0]
    near(reference.logits(weights.config, weights.tensors, ids), data["logits_a"][0])


@pytest.mark.parametrize("name", ZOOLOGY)
def test_hidden_states_and_outputs_of_every_mixer(name: str) -> None:
    m, data = model(load(name)), arrays(name)
    for row, ids in enumerate(data["input_ids_a"].astype(np.int32)):
        near(m.hidden(ids), data["hidden_a"][row])
        for i, block in enumerate(m.blocks):
            x = m.hidden(ids, i)
            y = x.copy()
            block.mixer.extend(None, y, block.norm1, context([ids], [0], 2))
            near(y - x, data[f"mixer{i}_out_a"][row])


@models
def test_kernels(name: str) -> None:
    m, data = model(load(name)), arrays(name)
    mixer, config = m.blocks[0].mixer, m.config.layers[0].mixer
    assert isinstance(config, H3Config)
    D, length, d = m.config.d_model, 40, config.head_dim
    diagonal = mixer.taps[-1].bank.source.block(0, D // d, 0, length)
    near(diagonal, data["diag_kernel_layer0"], 1e-6)
    ours = mixer.taps[0].bank.source.block(0, D, 0, length)
    shift = np.empty_like(ours)
    for i in range(d):  # channel h d + i of the original
        shift[i::d] = ours[i * (D // d) : (i + 1) * (D // d)]
    near(shift, data["shift_kernel_layer0"], 1e-6)


# ---- reading


def changed(tmp_path: Path, edit: Any, tensors: Any = None, name: str = MODELS[0]) -> Weights:
    """A fixture after edit(config) and tensors(stored tensors)."""
    data = copy.deepcopy(config_json.read(GOLDEN / f"{name}.config.json"))
    edit(data)
    (tmp_path / "config.json").write_text(json.dumps(data))
    stored = load_file(GOLDEN / f"{name}.safetensors")
    if tensors is not None:
        stored = tensors(stored)
    save_file(stored, tmp_path / "model.safetensors")
    return load_folder(tmp_path)


def nothing(_: dict[str, Any]) -> None:
    pass


def test_the_configuration() -> None:
    config = load(MODELS[1]).config
    assert (config.vocab_size, config.logits_width, config.max_length) == (61, 64, None)
    assert (config.family, config.tie_embeddings, config.norm.eps) == ("h3", True, 1e-5)
    first, second, third = (layer.mixer for layer in config.layers)
    assert first == third == H3Config(16, head_dim=4)
    assert second == AttentionConfig(heads=2)


def test_limits_and_discretization(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        data["ssm_cfg"] |= {"l_max": 30, "disc": "zoh", "dt_min": 0.1, "odd": 1}

    weights = changed(tmp_path, edit)
    assert weights.config.max_length == 30
    assert weights.config.layers[0].mixer == H3Config(16, discretization="zoh")
    assert any("ssm_cfg: keys without effect here: odd" in note for note in weights.notes)


def test_rotary_positions(tmp_path: Path) -> None:
    """On some dimensions of a head; the rates that a file may hold are computed anew."""

    def tensors(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        stored["backbone.layers.1.mixer.rotary_emb.inv_freq"] = np.ones(2, np.float32)
        return stored

    edit = lambda data: data["attn_cfg"].update(rotary_emb_dim=4)  # noqa: E731
    weights = changed(tmp_path, edit, tensors)
    attention = weights.config.layers[1].mixer
    assert attention == AttentionConfig(heads=2, rotary=RotaryConfig(dims=4))
    ids = arrays(MODELS[0])["input_ids_a"][0]
    got = model(weights).logits(ids)
    near(got, reference.logits(weights.config, weights.tensors, ids))
    assert np.abs(got - arrays(MODELS[0])["logits_a"][0]).max() > 1e-3


def test_half_precision_and_names_of_a_training_run(tmp_path: Path) -> None:
    """Linear layers, norms and embeddings may be half numbers; the rest is float32."""

    def tensors(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        small = {n: a.astype(np.float16) for n, a in stored.items() if n.endswith(".weight")}
        return {f"model.{n}": a for n, a in (stored | small).items()}

    got = model(changed(tmp_path, nothing, tensors)).logits(arrays(MODELS[0])["input_ids_b"][0])
    want = arrays(MODELS[0])["logits_b"][0]
    assert 1e-4 < np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_older_names_and_norm_order(tmp_path: Path) -> None:
    def tensors(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        older = {}
        for name, value in stored.items():
            for new, old in (
                ("backbone.layers.0.norm1.", "backbone.norm."),
                ("backbone.ln_f.", "backbone.layers.2.norm2."),
                ("backbone.layers.1.norm1.", "backbone.layers.0.norm2."),
                ("backbone.layers.2.norm1.", "backbone.layers.1.norm2."),
                ("backbone.layers.0.norm2.", "backbone.layers.0.norm1."),
                ("backbone.layers.1.norm2.", "backbone.layers.1.norm1."),
                ("backbone.layers.2.norm2.", "backbone.layers.2.norm1."),
                ("backbone.embeddings.word_embeddings.", "embedding."),
            ):
                if name.startswith(new):
                    name = name.replace(new, old)
                    break
            older[name.replace("backbone.", "s4seq.encoder.")] = value
        return older

    weights = changed(tmp_path, nothing, tensors)
    assert weights.fingerprint == load(MODELS[0]).fingerprint


def test_heads_that_share_a_state_space(tmp_path: Path) -> None:
    """Of n rows of A and B, row r is that of heads r, r + n, ..."""
    names = ("B", "inv_A_real", "A_imag")

    def tensors(rows: int, repeated: bool) -> Any:
        def edit(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            for layer in (0, 2):
                for part in names:
                    key = f"backbone.layers.{layer}.mixer.kernel.kernel.{part}"
                    few = stored[key][:rows]
                    copies = np.concatenate([few] * (len(stored[key]) // rows)) if repeated else few
                    stored[key] = np.ascontiguousarray(copies)
            return stored

        return edit

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    tied = changed(tmp_path / "a", nothing, tensors(4, repeated=False))
    assert tied.fingerprint == changed(tmp_path / "b", nothing, tensors(4, True)).fingerprint
    with pytest.raises(ModelError, match=r"kernel\.B has shape \[3, 8, 2\] but needs \[16, 8, 2\]"):
        changed(tmp_path, nothing, tensors(3, repeated=False))


@everyone
def test_converted_from_pytorch(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    state = {f"model.{n}": t for n, t in load_file(GOLDEN / f"{name}.safetensors").items()}
    if name in ZOOLOGY:
        state = load_file(GOLDEN / f"{name}.safetensors")
    content = {"state_dict": state, "pytorch-lightning_version": "1.8.6"}
    torch.save(content, tmp_path / "model.pt")
    config = GOLDEN / f"{name}.config.json"
    written = convert(tmp_path / "model.pt", tmp_path / "new", config=config)
    ids = arrays(name)["input_ids_b"][0]
    assert np.array_equal(model(written).logits(ids), model(load(name)).logits(ids))


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("ssm_cfg", "mode", "nplr", "ssm_cfg: mode is 'nplr', only 'diag' works"),
        ("ssm_cfg", "disc", "dss", "ssm_cfg: disc is 'dss', only 'bilinear' works: zoh is the"),
        ("ssm_cfg", "real_type", "relu", "real_type is 'relu'"),
        ("ssm_cfg", "bandlimit", 0.5, "bandlimit is 0.5"),
        ("ssm_cfg", "force_real", True, "force_real is True"),
        ("ssm_cfg", "head_dim", 3, "d_model 16 is not divisible by head_dim 3"),
        ("ssm_cfg", "d_state", 15, "d_state is 15, must be even"),
        ("ssm_cfg", "d_state", 32, r"has shape .* but needs"),
        ("attn_cfg", "rotary_emb_dim", 10, "rotary.dims is 10, must be even and at most .* 8"),
        ("attn_cfg", "rotary_emb_dim", -2, "rotary.dims is -2"),
        ("attn_cfg", "rotary_emb_interleaved", True, "rotary_emb_interleaved is True"),
        ("attn_cfg", "rotary_emb_scale_base", 512, "rotary_emb_scale_base is 512"),
        ("attn_cfg", "num_heads", 3, "not divisible by heads 3"),
    ],
)
def test_what_is_refused(
    section: str, key: str, value: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        changed(tmp_path, lambda data: data[section].update({key: value}))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    def tensors(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        del stored["backbone.layers.2.mixer.ssm_k_D"]
        return stored

    with pytest.raises(ModelError, match=r"missing tensors: backbone\.layers\.2\.mixer\.ssm_k_D"):
        changed(tmp_path, nothing, tensors)


@pytest.mark.parametrize(
    ("width", "layers", "heads", "at", "parameters"),
    [
        (768, 12, 12, [6], 126_387_456),
        (1024, 24, 16, [8, 16], 361_058_304),
        (2048, 24, 16, [8, 16], 1_326_096_384),
        (2560, 32, 20, [8, 16, 24], 2_670_307_840),
        (2560, 32, 20, [10, 21], 2_671_134_720),
    ],
)
def test_sizes_of_the_public_models(
    width: int, layers: int, heads: int, at: list[int], parameters: int
) -> None:
    """Computed from their configurations: the files themselves could not be tried."""
    mlp = MlpConfig("gelu_tanh", 4 * width)
    mixers = [AttentionConfig(heads) if i in at else H3Config(64) for i in range(layers)]
    config = ModelConfig(
        d_model=width,
        vocab_size=50257,
        logits_width=50264,
        max_length=None,
        tie_embeddings=True,
        norm=NormConfig("layernorm", 1e-5),
        layers=tuple(LayerConfig(mixer, mlp) for mixer in mixers),
    )
    assert sum(math.prod(shape) for shape in shapes(config).values()) == parameters
