"""Model folders: families, names, order of channels, and an error for everything that is off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_files import CASES, GOLDEN, MODELS, folder, golden, hyena_layer, stored

from hyena_cpu import config as c
from hyena_cpu.errors import ModelError, NumericError
from hyena_cpu.reference import filters as reference
from hyena_cpu.weights import backbone, load_files, load_folder, load_operator, native

BACKBONE, MIXER = "hyena.backbone.", "hyena.backbone.layers.0.mixer."


# ---- what the golden files become ----


@pytest.mark.parametrize("name", MODELS)
def test_golden_model(name: str) -> None:
    weights = golden(name)
    assert weights.config.family == name.partition("/")[0]
    shapes = native.shapes(weights.config)
    assert {k: v.shape for k, v in weights.tensors.items()} == shapes
    for value in weights.tensors.values():
        assert value.dtype == np.float32
        assert value.flags.c_contiguous
    assert weights.config.norm == c.NormConfig("layernorm", 1e-5)


def test_port() -> None:
    weights = golden("hyenadna/hf_causal_lm")
    config = weights.config
    assert (config.d_model, config.vocab_size, config.logits_width) == (16, 12, 16)
    assert (config.max_length, config.tie_embeddings, len(config.layers)) == (66, False, 2)
    assert config.tokenizer == c.TokenizerConfig("dna")
    assert (config.special_tokens.eos, config.special_tokens.pad) == (1, 4)
    assert config.layers[0].mlp == c.MlpConfig("gelu_tanh", 64)
    filter = hyena_layer(weights).filter
    assert filter == c.FilterConfig("implicit", 66, 64, bands=2, sine_layers=3, shift=0.05)
    _, tensors = stored("hyenadna/hf_causal_lm")
    pairs = {
        "embedding.weight": BACKBONE + "embeddings.word_embeddings.weight",
        "head.weight": "lm_head.weight",
        "norm.bias": BACKBONE + "ln_f.bias",
        "layers.0.mlp.up.weight": BACKBONE + "layers.0.mlp.fc1.weight",
        "layers.1.mlp.down.bias": BACKBONE + "layers.1.mlp.fc2.bias",
        "layers.0.mixer.skip": MIXER + "filter_fn.bias",
        "layers.0.mixer.short_conv.weight": MIXER + "short_filter.weight",
        "layers.0.mixer.filter.features": MIXER + "filter_fn.pos_emb.z",
        "layers.0.mixer.filter.linear.3.weight": MIXER + "filter_fn.implicit_filter.6.weight",
        "layers.0.mixer.filter.freq.2": MIXER + "filter_fn.implicit_filter.1.freq",
        "layers.0.mixer.filter.deltas": MIXER + "filter_fn.modulation.deltas",
    }
    for ours, theirs in pairs.items():
        np.testing.assert_array_equal(weights.tensors[ours].ravel(), tensors[theirs].ravel())


def test_classifiers() -> None:
    port = golden("hyenadna/hf_seqcls").config
    assert port.classifier == c.ClassifierConfig(3, "pad_last", bias=False)
    assert not port.tie_embeddings
    original = golden("hyenadna/orig_standalone_head").config
    assert original.classifier == c.ClassifierConfig(3, "mean", bias=True)


def test_shift_by_family_file_and_argument() -> None:
    for name, shift in (
        ("hyenadna/hf_causal_lm", 0.05),
        ("hyenadna/orig_standalone_head", 0.05),
        ("hyenadna/orig_repo_lm_shift0", 0.0),
        ("safari/lm_order3_modulated", 0.02),
        ("safari/lm_hybrid_attention", 0.0),
    ):
        assert hyena_layer(golden(name)).filter.shift == shift
        assert hyena_layer(golden(name, modulation_shift=0.5)).filter.shift == 0.5
    with pytest.raises(ModelError, match="no window to shift"):
        golden("safari/lm_public150b_flavour", modulation_shift=0.5)


def test_shift_of_the_layer_wins(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/orig_repo_lm_shift0")
    config["layer"]["shift"] = 0.25
    assert hyena_layer(load_folder(folder(tmp_path, config, tensors))).filter.shift == 0.25


def test_hybrid() -> None:
    weights = golden("safari/lm_hybrid_attention")
    kinds = [layer.mixer.kind for layer in weights.config.layers]
    assert kinds == ["hyena", "attention", "hyena"]
    assert weights.config.layers[1].mixer == c.AttentionConfig(heads=4)
    assert weights.tensors["positions.weight"].shape == (40, 16)
    assert weights.config.tie_embeddings


def test_interleaved_channels_become_step_major() -> None:
    weights = golden("safari/lm_order3_modulated")
    _, tensors = stored("safari/lm_order3_modulated")
    mixer, filter = "model.backbone.layers.0.mixer.", "layers.0.mixer.filter."
    last = tensors[mixer + "filter_fn.implicit_filter.6.weight"]
    deltas = tensors[mixer + "filter_fn.modulation.deltas"].ravel()
    skip = tensors[mixer + "filter_fn.bias"]
    D = 12
    for o in range(2):
        for d in range(D):
            ours, theirs = o * D + d, d * 2 + o
            np.testing.assert_array_equal(
                weights.tensors[filter + "linear.3.weight"][ours], last[theirs]
            )
            assert weights.tensors[filter + "deltas"][ours] == deltas[theirs]
            assert weights.tensors["layers.0.mixer.skip"][o, d] == skip[theirs]


def test_public_flavour() -> None:
    weights = golden("safari/lm_public150b_flavour")
    filter = hyena_layer(weights).filter
    assert (filter.modulate, filter.bands, filter.normalize) == (False, 16, "none")
    assert (weights.config.vocab_size, weights.config.logits_width) == (61, 64)
    assert any("modulation.deltas" in note for note in weights.notes)
    assert any("fused_mlp" in note for note in weights.notes)
    normalized = hyena_layer(golden("safari/lm_order2_normalized")).filter
    assert normalized.normalize == "channel_l1"


def test_operators() -> None:
    for name, kind in (
        ("hyenadna/op_bidirectional_L12", "hyena"),
        ("hyenadna/op_bidirectional_L13", "hyena"),
        ("safari/op_longconv", "long_conv"),
        ("safari/op_h3conv", "h3_conv"),
    ):
        mixer, tensors = load_operator(
            GOLDEN / f"{name}.config.json", GOLDEN / f"{name}.safetensors"
        )
        assert mixer.kind == kind
        assert {k: v.shape for k, v in tensors.items()} == native.mixer_shapes(mixer, 8)
        if isinstance(mixer, c.HyenaConfig):
            assert mixer.bidirectional
        else:
            assert mixer.filter.threshold == 0.003


# ---- names ----


def test_tied_copies_must_be_equal(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/orig_repo_lm_shift0")
    assert load_folder(folder(tmp_path, config, tensors)).config.tie_embeddings
    del tensors["model.lm_head.weight"]
    weights = load_folder(folder(tmp_path, config, tensors))
    assert "head.weight" not in weights.tensors
    tensors["model.lm_head.weight"] = tensors[
        "model.backbone.embeddings.word_embeddings.weight"
    ].copy()
    tensors["model.lm_head.weight"][3, 3] *= 1.001
    with pytest.raises(ModelError, match=r"lm_head\.weight must equal"):
        load_folder(folder(tmp_path, config, tensors))


def test_head_is_tied_only_when_the_config_says_so(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    del tensors["lm_head.weight"]
    with pytest.raises(ModelError, match=r"missing tensors: lm_head\.weight"):
        load_folder(folder(tmp_path, config, tensors))
    for tied in (True, None):
        config["tie_word_embeddings"] = tied
        assert load_folder(folder(tmp_path, config, tensors)).config.tie_embeddings


def test_shared_frequencies_must_be_equal(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_seqcls")
    tensors[MIXER + "filter_fn.implicit_filter.3.freq"][0, 1] += 1
    with pytest.raises(ModelError, match=r"3\.freq must equal .*1\.freq"):
        load_folder(folder(tmp_path, config, tensors))
    del tensors[MIXER + "filter_fn.implicit_filter.3.freq"]
    load_folder(folder(tmp_path, config, tensors))


def test_prefixes_and_checkpointing_names(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/orig_repo_lm_shift0")
    plain = load_folder(folder(tmp_path, config, tensors)).fingerprint
    bare = {k.removeprefix("model."): v for k, v in tensors.items()}
    assert load_folder(folder(tmp_path, config, bare)).fingerprint == plain
    wrapped = {
        k.replace(".mixer.", ".mixer.layer.").replace(".mlp.", ".mlp.layer."): v
        for k, v in tensors.items()
    }
    wrapped["model.torchmetrics.count"] = np.array([7])
    assert load_folder(folder(tmp_path, config, wrapped)).fingerprint == plain
    both = tensors | {"backbone.ln_f.bias": tensors["model.backbone.ln_f.bias"]}
    with pytest.raises(ModelError, match="are the same tensor"):
        load_folder(folder(tmp_path, config, both))


def test_every_tensor_is_used_or_named(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    for name in tensors:
        if "pos_emb" in name or name.endswith("deltas"):
            continue
        less = {k: v for k, v in tensors.items() if k != name}
        with pytest.raises(ModelError, match=r"missing|layers") as error:
            load_folder(folder(tmp_path, config, less))
        assert name.removeprefix("hyena.") in str(error.value)
    extra = tensors | {"hyena.backbone.ln_f.weights": np.zeros(2, np.float32)}
    with pytest.raises(ModelError, match=r"ln_f\.weights .*nearest known name is .*ln_f\.weight\)"):
        load_folder(folder(tmp_path, config, extra))


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    for name, value in tensors.items():
        changed = tensors | {name: np.zeros((*value.shape[:-1], value.shape[-1] + 1), np.float32)}
        with pytest.raises(ModelError, match=r"has shape \[.*\] but needs \[.*\]|embedding"):
            load_folder(folder(tmp_path, config, changed))
    for key, value in (("d_model", 8), ("filter_order", 32), ("d_inner", 16)):
        with pytest.raises(ModelError, match="has shape"):
            load_folder(folder(tmp_path, config | {key: value}, tensors))


@pytest.mark.parametrize("layers", [0, -1, 1, 3, 1_000_000, 10**30, None, "2", 2.5])
def test_depth_must_match_the_file(layers: object, tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    with pytest.raises(ModelError, match="n_layer"):
        load_folder(folder(tmp_path, config | {"n_layer": layers}, tensors))
    with pytest.raises(ModelError, match="n_layer"):
        load_folder(folder(tmp_path, config | {"n_layer": layers}, {}))


def test_embedding_may_be_padded_but_not_short(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    with pytest.raises(ModelError, match="vocab_size is 17 but the embedding has 16 rows"):
        load_folder(folder(tmp_path, config | {"vocab_size": 17}, tensors))
    weights = load_folder(folder(tmp_path, config | {"pad_vocab_size_multiple": 1}, tensors))
    assert weights.config.logits_width == 16
    assert any("12 embedding rows expected, the file has 16" in note for note in weights.notes)


def test_nonfinite_weights(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    tensors["lm_head.weight"][0, :2] = np.nan, np.inf
    path = folder(tmp_path, config, tensors)
    with pytest.raises(NumericError, match=r"lm_head\.weight holds 2 values"):
        load_folder(path)
    assert np.isnan(load_folder(path, allow_nonfinite=True).tensors["head.weight"][0, 0])


def test_16_bit_weights_equal_their_widened_copies(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    half = {k: v.astype(np.float16) for k, v in tensors.items()}
    widened = {k: v.astype(np.float32) for k, v in half.items()}
    prints = [
        load_folder(folder(tmp_path, config, values)).fingerprint for values in (half, widened)
    ]
    assert prints[0] == prints[1]


# ---- substitutes ----


def test_absent_grids_are_rebuilt_and_noted(tmp_path: Path) -> None:
    for name in ("hyenadna/orig_repo_lm_shift0", "hyenadna/orig_standalone_head"):
        config, tensors = stored(name)
        grids = [k for k in tensors if "pos_emb" in k or k.endswith("deltas")]
        rest = {k: v for k, v in tensors.items() if k not in grids}
        weights = load_folder(folder(tmp_path, config, rest))
        exact = golden(name).tensors
        filter = "layers.0.mixer.filter."
        np.testing.assert_array_equal(weights.tensors[filter + "times"], exact[filter + "times"])
        for part, bound in (("features", 6e-8), ("deltas", 1e-6)):
            error = np.abs(weights.tensors[filter + part] - exact[filter + part]).max()
            assert error <= bound
        assert any("rebuilt" in note and grids[0][-9:] in note for note in weights.notes)


@pytest.mark.parametrize(("L", "E", "bound"), [(1026, 5, 7e-7), (2048, 33, 1e-5)])
def test_rebuilt_features_are_near_the_exact_ones(L: int, E: int, bound: float) -> None:
    exact = reference.positional_features(L, E)
    assert np.abs(backbone.positional_features(L, E) - exact).max() <= bound


def test_trained_features_are_never_rebuilt(tmp_path: Path) -> None:
    config, tensors = stored("safari/lm_hybrid_attention")
    del tensors["backbone.layers.0.mixer.filter_fn.pos_emb.z"]
    with pytest.raises(ModelError, match=r"missing tensors: .*layers\.0.*pos_emb\.z"):
        load_folder(folder(tmp_path, config, tensors))


def test_case_without_grids_lists_what_else_is_missing() -> None:
    path = CASES / "C013/no_pos_emb.safetensors"
    with pytest.raises(ModelError, match=r"missing tensors: .*layers\.0\.norm1") as error:
        load_files(GOLDEN / "hyenadna/hf_seqcls.config.json", path)
    assert "pos_emb.z" not in str(error.value)


def test_community_layout_is_refused(tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/orig_repo_lm_shift0")
    renamed = {k.replace("ln_f", "final_layer_norm"): v for k, v in tensors.items()}
    with pytest.raises(ModelError, match="community re-packaging"):
        load_folder(folder(tmp_path, config, renamed))


def test_renamings_of_the_authors_loader(tmp_path: Path) -> None:
    """A file as their loader rewrites it: old prefix, old norm order, separate q, k and v."""
    config, tensors = stored("safari/lm_hybrid_attention")
    expected = load_folder(folder(tmp_path, config, tensors)).fingerprint
    old = {}
    for key, value in tensors.items():
        name = key.replace("backbone.embeddings.word_embeddings.", "embedding.")
        for layer in range(3):
            before = f"backbone.layers.{layer - 1}.norm2." if layer else "backbone.norm."
            name = name.replace(f"backbone.layers.{layer}.norm2.", f"@{layer}.norm1.")
            name = name.replace(f"backbone.layers.{layer}.norm1.", "@" + before[9:])
        name = name.replace("backbone.ln_f.", "@layers.2.norm2.")
        name = name.replace("@layers", "backbone.layers").replace("@norm", "backbone.norm")
        for layer in range(3):
            name = name.replace(f"@{layer}.", f"backbone.layers.{layer}.")
        name = name.replace("mixer.out_proj", "mixer.output_linear")
        if "Wqkv" in name:
            for part, rows in zip("qkv", np.split(value, 3), strict=True):
                old[name.replace("Wqkv", f"{part}_proj")] = rows
        else:
            old[name] = value
    old = {k.replace("backbone.layers", "s4seq.encoder.layers"): v for k, v in old.items()}
    assert "backbone.norm.weight" in old
    assert "s4seq.encoder.layers.2.norm2.weight" in old
    assert load_folder(folder(tmp_path, config, old)).fingerprint == expected
    old["backbone.embeddings.word_embeddings.weight"] = old["embedding.weight"]
    with pytest.raises(ModelError, match="are the same tensor"):
        load_folder(folder(tmp_path, config, old))
