"""The seven public HyenaDNA checkpoints in shape: random weights in both published layouts.

Written from the published descriptions and without the loader's own tables, so that the two can
disagree. Shapes: D width, M = 4 D, V = 16 rows of the embedding, L = l_max.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Tensors = dict[str, np.ndarray]
V, P, E = 16, 64, 5


@dataclass(frozen=True)
class Public:
    """A checkpoint: its sizes and what is known of its numbers."""

    D: int
    layers: int
    l_max: int
    parameters: int  # without the grids z, t and deltas; embedding and head counted once
    numbers_in_port: int  # of all tensors in the port's file
    alias: str


PUBLIC = {
    "tiny-1k-seqlen": Public(128, 2, 1_026, 436_096, 450_712, "hyenadna-tiny-1k"),
    "tiny-1k-seqlen-d256": Public(256, 2, 1_026, 1_641_088, 1_658_008, "hyenadna-tiny-1k-d256"),
    "tiny-16k-seqlen-d128": Public(128, 2, 16_386, 436_096, 635_032, "hyenadna-tiny-16k"),
    "small-32k-seqlen": Public(256, 4, 32_770, 3_277_568, 4_069_168, "hyenadna-small-32k"),
    "medium-160k-seqlen": Public(256, 8, 160_002, 6_550_528, 14_236_768, "hyenadna-medium-160k"),
    "medium-450k-seqlen": Public(256, 8, 450_002, 6_550_528, 28_156_768, "hyenadna-medium-450k"),
    "large-1m-seqlen": Public(256, 8, 1_000_002, 6_550_528, 54_556_768, "hyenadna-large-1m"),
}
GRIDS = ("pos_emb.z", "pos_emb.t", "modulation.deltas")


def backbone(model: Public, *, grids: bool = True, freq: tuple[int, ...] = (1,)) -> Tensors:
    """`backbone.*` with random weights; `freq` lists the names of the shared vector."""
    rng = np.random.default_rng(model.l_max + model.D)

    def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
        return scale * rng.standard_normal(shape, np.float32)

    D, L = model.D, model.l_max
    found = {"backbone.embeddings.word_embeddings.weight": normal(V, D)}
    for i in range(model.layers):
        own: Tensors = {}
        for norm in ("norm1", "norm2"):
            own |= {f"{norm}.weight": 1 + normal(D, scale=0.1), f"{norm}.bias": normal(D)}
        for name, rows, columns in (
            ("mixer.in_proj", 3 * D, D),
            ("mixer.out_proj", D, D),
            ("mlp.fc1", 4 * D, D),
            ("mlp.fc2", D, 4 * D),
        ):
            own[f"{name}.weight"] = normal(rows, columns, scale=columns**-0.5)
            own[f"{name}.bias"] = normal(rows, scale=0.1)
        own["mixer.short_filter.weight"] = normal(3 * D, 1, 3, scale=0.5)
        own["mixer.short_filter.bias"] = normal(3 * D, scale=0.1)
        mlp = "mixer.filter_fn.implicit_filter"
        for index, columns in ((0, E), (2, P), (4, P)):
            own[f"{mlp}.{index}.weight"] = normal(P, columns, scale=0.1 * columns**-0.5)
            own[f"{mlp}.{index}.bias"] = normal(P, scale=0.1)
        own[f"{mlp}.6.weight"] = normal(D, P, scale=P**-0.5)
        shared = 10 + normal(1, P)
        own |= {f"{mlp}.{k}.freq": shared for k in freq}
        own["mixer.filter_fn.bias"] = normal(D)
        if grids:
            own |= {f"mixer.filter_fn.{name}": value for name, value in grid(D, L).items()}
        found |= {f"backbone.layers.{i}.{name}": value for name, value in own.items()}
    return found | {"backbone.ln_f.weight": 1 + normal(D), "backbone.ln_f.bias": normal(D)}


def grid(D: int, L: int) -> Tensors:
    """z, t and deltas of l_max, as the published formulas give them in float64."""
    t = np.arange(L) / (L - 1)
    angle = np.array([1e-4, 1.0]) * (2 * np.pi * np.arange(L) / L)[:, None]
    z = np.concatenate([t[:, None], np.cos(angle), -np.sin(angle)], axis=1)
    deltas = np.linspace(np.log(0.01) / 1.5, np.log(0.01) / 0.3, D)
    values = (z[None], t[None, :, None], deltas[None, None])
    return {name: v.astype(np.float32) for name, v in zip(GRIDS, values, strict=True)}


def head(model: Public) -> np.ndarray:
    """A language head of its own, [V, D]."""
    rng = np.random.default_rng(7)
    return rng.standard_normal((V, model.D), np.float32) * np.float32(model.D**-0.5)


def port_config(model: Public) -> dict[str, Any]:
    return {
        "architectures": ["HyenaDNAForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_hyena.HyenaConfig"},
        "model_type": "hyenadna",
        "vocab_size": 12,
        "d_model": model.D,
        "d_inner": 4 * model.D,
        "use_bias": True,
        "train_freq": True,
        "max_seq_len": model.l_max,
        "emb_dim": E,
        "n_layer": model.layers,
        "num_inner_mlps": 2,
        "hyena_order": 2,
        "short_filter_order": 3,
        "filter_order": P,
        "activation_freq": 10,
        "embed_dropout": 0.1,
        "hyena_dropout": 0.0,
        "hyena_filter_dropout": 0.0,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "pad_vocab_size_multiple": 8,
        "pad_token_id": 4,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.35.0.dev0",
    }


def original_config(model: Public) -> dict[str, Any]:
    return {
        "d_model": model.D,
        "n_layer": model.layers,
        "d_inner": 4 * model.D,
        "vocab_size": 12,
        "resid_dropout": 0.0,
        "embed_dropout": 0.1,
        "fused_mlp": False,
        "fused_dropout_add_ln": True,
        "residual_in_fp32": True,
        "checkpoint_mixer": True,
        "checkpoint_mlp": True,
        "pad_vocab_size_multiple": 8,
        "return_hidden_state": True,
        "layer": {
            "_name_": "hyena",
            "emb_dim": E,
            "filter_order": P,
            "local_order": 3,
            "l_max": model.l_max,
            "modulate": True,
            "w": 10,
            "lr": 6e-4,
            "wd": 0.0,
            "lr_pos_emb": 0.0,
        },
    }


def write_port(path: Path, model: Public, *, grids: bool = True) -> Path:
    """The Hugging Face folder: prefix `hyena.`, one name of the frequencies, a head of its own."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(port_config(model)))
    tensors = {f"hyena.{k}": v for k, v in backbone(model, grids=grids).items()}
    save_file(tensors | {"lm_head.weight": head(model)}, path / "model.safetensors")
    return path


def write_original(path: Path, model: Public, *, grids: bool = True) -> Path:
    """The authors' folder: a training checkpoint with `model.`, `.layer` and a tied head."""
    import torch

    path.mkdir()
    (path / "config.json").write_text(json.dumps(original_config(model)))
    named = {
        "model." + k.replace(".mixer.", ".mixer.layer.").replace(".mlp.", ".mlp.layer."): v
        for k, v in backbone(model, grids=grids, freq=(1, 3, 5)).items()
    }
    named["model.lm_head.weight"] = named["model.backbone.embeddings.word_embeddings.weight"]
    state = {name: torch.from_numpy(value) for name, value in named.items()}
    state["train_torchmetrics.count"] = torch.tensor(12)  # a name the readers pass over
    moments = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3)}}
    checkpoint = {
        "epoch": 3,
        "global_step": 400,
        "state_dict": state,
        "optimizer_states": [{"state": moments, "param_groups": [{"lr": 6e-4}]}],
    }
    torch.save(checkpoint, path / "weights.ckpt")
    return path
