"""Foreign configurations: what is not implemented is refused by name, odd values likewise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_files import folder, stored

from hyena_cpu.errors import ModelError
from hyena_cpu.weights import detect_family, load_folder

# Keys as the published configurations have them.
EVO_1 = {
    "model_name": "evo-1-8k-base",
    "vocab_size": 512,
    "hidden_size": 4096,
    "num_filters": 4096,
    "num_layers": 32,
    "attn_layer_idxs": [8, 16, 24],
    "hyena_layer_idxs": [0, 1, 2],
    "state_size": 8,
    "max_seqlen": 8192,
}
EVO_2 = {
    "model_name": "evo2",
    "vocab_size": 512,
    "hidden_size": 4096,
    "attn_layer_idxs": [3],
    "hcl_layer_idxs": [2],
    "hcm_layer_idxs": [1],
    "hcs_layer_idxs": [0],
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_heads", 2),
        ("inner_factor", 2),
        ("num_blocks", 2),
        ("outer_mixing", True),
        ("post_order_ffn", True),
        ("activation", "gelu"),
        ("_name_", "long-conv"),
        ("emb_dim", 4),
        ("emb_dim", 1),
        ("l_max", 0),
        ("l_max", None),
        ("l_max", 10**12),
        ("order", 0),
        ("order", 1),
        ("num_inner_mlps", -1),
        ("num_inner_mlps", 10**9),
        ("modulate", "yes"),
        ("shift", "0.05"),
    ],
)
def test_safari_refuses(key: str, value: object, tmp_path: Path) -> None:
    config, tensors = stored("safari/lm_hybrid_attention")
    config["layer"][key] = value
    with pytest.raises(ModelError, match=f"{key}|taps|sine_layers"):
        load_folder(folder(tmp_path, config, tensors), family="safari")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attn_layer_idx": [3]}, "attn_layer_idx names layer 3, there are 3"),
        ({"attn_layer_idx": [-1]}, "names layer -1"),
        ({"attn_layer_idx": "1"}, "must be a list"),
        ({"attn_cfg": {}}, "num_heads"),
        ({"attn_cfg": {"num_heads": 5}}, "not divisible by heads 5"),
        ({"attn_cfg": {"num_heads": 4, "causal": False}}, "causal"),
        ({"attn_cfg": {"num_heads": 4, "dwconv": True}}, "dwconv"),
        ({"attn_cfg": {"num_heads": 4, "rotary_emb_dim": 4}}, "rotary_emb_dim"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"),
        ({"layer": [1]}, "layer: must be an object"),
        ({"d_model": "16"}, "d_model must be a whole number"),
        ({"d_model": 1e40}, "has shape"),
        ({"vocab_size": True}, "vocab_size must be a whole number"),
    ],
)
def test_hybrid_config_refuses(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    config, tensors = stored("safari/lm_hybrid_attention")
    with pytest.raises(ModelError, match=reason):
        load_folder(folder(tmp_path, config | change, tensors), family="safari")


@pytest.mark.parametrize(
    ("key", "value"), [("hyena_order", 3), ("short_filter_order", 4), ("layer_norm_epsilon", 1e-6)]
)
def test_port_refuses(key: str, value: object, tmp_path: Path) -> None:
    config, tensors = stored("hyenadna/hf_causal_lm")
    with pytest.raises(ModelError, match=key):
        load_folder(folder(tmp_path, config | {key: value}, tensors))


def test_hyenadna_of_order_3_is_ambiguous(tmp_path: Path) -> None:
    config, tensors = stored("safari/lm_order3_modulated")
    with pytest.raises(ModelError, match="order is 3"):
        load_folder(folder(tmp_path, config, tensors), family="hyenadna")


def test_family_detection() -> None:
    for data, family in (
        ({"model_type": "hyena-cpu"}, "native"),
        ({"model_type": "hyenadna"}, "hyenadna"),
        ({"layer": {"_name_": "hyena"}, "vocab_size": 12}, "hyenadna"),
        ({"layer": {"_name_": "hyena"}, "vocab_size": 50257}, "safari"),
        ({"sequence_mixer": {}}, "zoology"),
        ({"ssm_cfg": {}}, "h3"),
    ):
        assert detect_family(data, "x") == family
    for data, reason in (
        ({"model_type": "stripedhyena"}, "StripedHyena / Evo"),
        (EVO_1, "hyena_layer_idxs marks a model of StripedHyena / Evo"),
        (EVO_1 | {"model_type": "stripedhyena"}, "StripedHyena / Evo"),
        (EVO_2, "hcl_layer_idxs marks a model of StripedHyena / Evo"),
        ({"model_type": "gpt2"}, "gpt2"),
        ({"d_model": 8}, "cannot tell"),
        ({"layer": {"_name_": "s4"}}, "cannot tell"),
        ([], "JSON object"),
    ):
        with pytest.raises(ModelError, match=reason):
            detect_family(data, "x")
