"""All seven public HyenaDNA checkpoints, in shape and in both layouts (hub ids: test_hub.py)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hyenadna_files import GRIDS, PUBLIC, V, backbone, head, write_original, write_port
from model_files import hyena_layer
from test_golden_models import NoNorm

import hyena_cpu
from hyena_cpu import LimitError
from hyena_cpu.config import (
    FilterConfig,
    HyenaConfig,
    MlpConfig,
    SpecialTokens,
    TokenizerConfig,
)
from hyena_cpu.context import context
from hyena_cpu.mixers import build_mixer
from hyena_cpu.online_taps import Convolutions
from hyena_cpu.reference import model as reference
from hyena_cpu.weights import Weights, convert, load_folder

every = pytest.mark.parametrize("name", PUBLIC)
# A folder of one of the long ones has 57 to 218 MB of grids, which can be rebuilt.
stores_grids = {name: PUBLIC[name].l_max < 100_000 for name in PUBLIC}


def check_config(weights: Weights, name: str) -> None:
    model, config = PUBLIC[name], weights.config
    assert (config.d_model, config.vocab_size, config.logits_width) == (model.D, 12, V)
    assert config.max_length == model.l_max
    assert len(config.layers) == model.layers
    assert set(config.layers) == {config.layers[0]}
    assert config.layers[0].mlp == MlpConfig("gelu_tanh", 4 * model.D)
    mixer = hyena_layer(weights)
    assert (mixer.order, mixer.short_taps, mixer.bidirectional) == (2, 3, False)
    assert mixer.filter == FilterConfig(
        "implicit", taps=model.l_max, width=64, bands=2, sine_layers=3, shift=0.05
    )
    assert config.tokenizer == TokenizerConfig("dna")
    assert config.special_tokens == SpecialTokens(bos=2, eos=1, pad=4)
    assert config.family == "hyenadna"


@every
def test_the_ports_folder(name: str, tmp_path: Path) -> None:
    model = PUBLIC[name]
    weights = load_folder(write_port(tmp_path / name, model, grids=stores_grids[name]))
    check_config(weights, name)
    assert not weights.config.tie_embeddings
    assert weights.num_parameters == model.parameters + V * model.D
    assert weights.config.name == name
    rebuilt = [note for note in weights.notes if "rebuilt from the configuration" in note]
    assert len(rebuilt) == (not stores_grids[name])
    assert all(grid in note for note in rebuilt for grid in GRIDS)
    np.testing.assert_array_equal(weights.tensors["head.weight"], head(model))
    for layer in range(model.layers):
        freqs = [weights.tensors[f"layers.{layer}.mixer.filter.freq.{k}"] for k in range(3)]
        assert freqs[0].shape == (64,)
        assert freqs[0].tobytes() == freqs[1].tobytes() == freqs[2].tobytes()
        assert weights.tensors[f"layers.{layer}.mixer.filter.features"].shape == (model.l_max, 5)


@every
def test_the_authors_checkpoint(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch files need PyTorch")
    model = PUBLIC[name]
    origin = write_original(tmp_path / "origin", model, grids=stores_grids[name])
    weights = convert(origin, tmp_path / name)
    check_config(weights, name)
    assert weights.config.tie_embeddings
    assert weights.num_parameters == model.parameters
    assert "head.weight" not in weights.tensors
    stored = backbone(model, grids=False)
    for layer in range(model.layers):
        for ours, theirs in (
            ("mixer.in_proj.weight", "mixer.in_proj.weight"),
            ("mixer.filter.linear.2.bias", "mixer.filter_fn.implicit_filter.4.bias"),
            ("mlp.down.weight", "mlp.fc2.weight"),
        ):
            got = weights.tensors[f"layers.{layer}.{ours}"]
            np.testing.assert_array_equal(got, stored[f"backbone.layers.{layer}.{theirs}"])


@every
def test_sizes_of_the_ports_files(name: str) -> None:
    """The table itself: what the loader is tested with has as many numbers as the public files."""
    model = PUBLIC[name]
    numbers = sum(value.size for value in backbone(model, grids=False).values())
    assert numbers == model.parameters
    grids = model.layers * (6 * model.l_max + model.D)
    assert numbers + V * model.D + grids == model.numbers_in_port


@every
def test_longest_sequence(name: str, tmp_path: Path) -> None:
    model = hyena_cpu.load(write_port(tmp_path / name, PUBLIC[name], grids=False), threads=1)
    longest = PUBLIC[name].l_max
    assert model.max_length == longest
    ids = np.full(longest + 1, 7)
    message = f"{longest + 1} tokens but {name} takes at most {longest}"
    for call in (model.logits, model.hidden, model.token_logprobs, model.prefill):
        tracemalloc.start()
        with pytest.raises(LimitError, match=message):
            call(ids)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20  # refused before any of the work
        tracemalloc.stop()


def test_padded_rows_of_the_vocabulary_are_never_sampled(tmp_path: Path) -> None:
    """Case C011: 12 ids, 16 rows of the head; those of no meaning are out of reach."""
    folder = write_port(tmp_path / "m", PUBLIC["tiny-1k-seqlen"])
    model = hyena_cpu.load(folder, threads=1)
    logits = model.logits(model.tokenizer.encode("ACGTACGT"))
    assert logits.shape == (8, 16)
    drawn = model.generate(
        "ACGTACGT", max_new_tokens=800, temperature=50.0, seed=1, ignore_eos=True
    ).tokens
    assert set(drawn) == set(range(12))


def test_order_of_the_gates() -> None:
    """One channel worked by hand: the second chunk gates before the convolution, the first after.

    u is the unit matrix, so that column t of in_proj is what the chunks hold at time t.
    """
    chunks = {"x_0": [1, 2, -1], "x_1": [0.5, -1, 2], "v": [2, 1, 3]}
    config = HyenaConfig(FilterConfig("explicit", taps=3), bias=False, short_bias=False)
    unit = np.eye(3, dtype=np.float32)
    rows = np.zeros((9, 3), np.float32)
    rows[::3] = list(chunks.values())  # channel 0 of each chunk
    tensors = {
        "in_proj.weight": rows,
        "out_proj.weight": unit,
        "short_conv.weight": np.tile(np.float32([0, 0, 1]), (9, 1)),
        "skip": np.full((1, 3), 0.1, np.float32),
        "filter.taps": np.tile(np.float32([1, 0.5, 0.25]), (3, 1)),
    }
    want = [1.1, -1.2, -6.35]
    exact = reference.hyena(config, {k: v.astype(float) for k, v in tensors.items()}, unit)
    np.testing.assert_allclose(exact[:, 0], want, atol=1e-7)
    mixer = build_mixer(config, tensors, 3, Convolutions(1 << 20))
    y = unit.copy()
    mixer.extend(None, y, NoNorm(), context([np.zeros(3, np.int32)], [0], 1))
    np.testing.assert_allclose((y - unit)[:, 0], want, atol=1e-6)
