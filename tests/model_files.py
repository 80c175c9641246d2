"""Golden model files, as they are and rearranged into folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from hyena_cpu import config as c
from hyena_cpu.model import Model
from hyena_cpu.weights import Weights, load_files, safetensors

GOLDEN = Path(__file__).parent / "golden"
CASES = Path(__file__).parent / "cases"
HYENADNA = ("hf_causal_lm", "hf_seqcls", "orig_repo_lm_shift0", "orig_standalone_head")
SAFARI = (
    "lm_public150b_flavour",
    "lm_illconditioned_filter",
    "lm_order3_modulated",
    "lm_order2_normalized",
    "lm_hybrid_attention",
)
MODELS = [f"hyenadna/{n}" for n in HYENADNA] + [f"safari/{n}" for n in SAFARI]


def golden(name: str, family: str | None = None, **options: Any) -> Weights:
    config, weights = GOLDEN / f"{name}.config.json", GOLDEN / f"{name}.safetensors"
    return load_files(config, weights, family=family, **options)


def arrays(name: str) -> dict[str, np.ndarray]:
    """What the original made of its inputs, and those."""
    with np.load(GOLDEN / f"{name}.npz") as data:
        return dict(data)


def model(weights: Weights, **options: Any) -> Model:
    return Model(weights, None, threads=2, **options)


def near(got: np.ndarray, want: np.ndarray, bound: float = 2e-5) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= bound * max(1.0, np.abs(want).max())


def stored(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    config = json.loads((GOLDEN / f"{name}.config.json").read_text())
    return config, safetensors.read(GOLDEN / f"{name}.safetensors", lambda _: False)


def folder(path: Path, config: Any, tensors: dict[str, np.ndarray]) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path / "model.safetensors")
    return path


def hyena_layer(weights: Weights, layer: int = 0) -> c.HyenaConfig:
    mixer = weights.config.layers[layer].mixer
    assert isinstance(mixer, c.HyenaConfig)
    return mixer
