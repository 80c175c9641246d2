"""Recurrent layers: two float64 forms of each, the layers themselves, and their states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from test_state import same_bits, steps
from toy import CAUSAL, VOCAB, layer, model, tokens, weights

from hyena_cpu import config_json
from hyena_cpu.config import MixerConfig, MlpConfig, ModelConfig
from hyena_cpu.config_recurrent import (
    BasedConfig,
    MambaConfig,
    RetNetConfig,
    RwkvChannelConfig,
    RwkvTimeConfig,
)
from hyena_cpu.context import context
from hyena_cpu.errors import InputError, ModelError
from hyena_cpu.model import Model
from hyena_cpu.reference import model as whole_reference
from hyena_cpu.reference import recurrent as reference
from hyena_cpu.scan_state import MARK_STEP, ScanState, scan_bytes
from hyena_cpu.weights import Weights, load_folder

MIXERS: dict[str, MixerConfig] = {
    "based": BasedConfig(2, 4),
    "retnet": RetNetConfig(2, 24, 1e-5),
    "rwkv_time": RwkvTimeConfig(),
    "rwkv_channel": RwkvChannelConfig(48),
    "mamba": MambaConfig(40, rank=2),
}
each = pytest.mark.parametrize("name", MIXERS)
NAMES = ("based", "retnet", "rwkv", "mamba")  # whole models in CAUSAL


def one_layer(name: str, **changes: object) -> ModelConfig:
    return replace(CAUSAL["based"], layers=(layer(MIXERS[name], None),), **changes)  # type: ignore[arg-type]


def close(got: np.ndarray, want: np.ndarray, bound: float) -> None:
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= bound * max(1.0, np.abs(want).max())


# ---- the float64 forms


def heads(rng: np.random.Generator, T: int) -> tuple[np.ndarray, ...]:
    """q, k [T, 3, 4], v [T, 3, 5], decay [3]."""
    q, k, v = (rng.standard_normal((T, 3, n)) for n in (4, 4, 5))
    return q, k, v, 1 - 2.0 ** (-5 - np.arange(3))


def test_taylor_features(rng: np.random.Generator) -> None:
    q, k = rng.standard_normal((2, 7, 6))
    s = (q * k).sum(axis=1) / np.sqrt(6)
    close((reference.taylor(q) * reference.taylor(k)).sum(axis=1), 1 + s + s * s / 2, 1e-12)


def test_two_forms_of_based(rng: np.random.Generator) -> None:
    q, k, v, _ = heads(rng, 120)
    features = reference.taylor(q), reference.taylor(k)
    got, _ = reference.linear_scan(*features, v, np.ones(3), np.zeros((3, 21, 6)), 1e-12)
    close(got, reference.based_parallel(q, k, v, 1e-12), 1e-10)


@pytest.mark.parametrize("size", [1, 7, 40, 120, 1000])
def test_three_forms_of_retention(rng: np.random.Generator, size: int) -> None:
    q, k, v, decay = heads(rng, 120)
    want = reference.retention_parallel(q, k, v, decay)
    got, _ = reference.linear_scan(q, k, v, decay, np.zeros((3, 4, 5)))
    close(got, want, 1e-10)
    close(reference.retention_chunked(q, k, v, decay, size), want, 1e-10)


@pytest.mark.parametrize("size", [1, 20, 500])
def test_two_forms_of_wkv(rng: np.random.Generator, size: float) -> None:
    k, v = size * rng.standard_normal((120, 6)), rng.standard_normal((120, 6))
    w, u = -np.exp(rng.standard_normal(6) - 2), rng.standard_normal(6)
    start = np.stack([np.zeros(6), np.zeros(6), np.full(6, -np.inf)])
    got, _ = reference.wkv_scan(k, v, w, u, start)
    close(got, reference.wkv_parallel(k, v, w, u), 1e-10)


def test_two_forms_of_the_selective_scan(rng: np.random.Generator) -> None:
    x, dt, b, c = (rng.standard_normal((120, n)) for n in (6, 6, 4, 4))
    args = x, dt, b, c, -np.exp(rng.standard_normal((6, 4))), rng.standard_normal(6)
    got, _ = reference.selective_scan(*args, np.zeros((6, 4)))
    close(got, reference.selective_parallel(*args), 1e-10)


# ---- the layers


def own_output(m: Model, ids: np.ndarray) -> np.ndarray:
    """What the mixer of a model of one layer adds to the residual stream."""
    x = m.hidden(ids, 0)
    y = x.copy()
    m.blocks[0].mixer.extend(None, y, m.blocks[0].norm1, context([ids], [0], 2))
    return y - x


@each
def test_a_layer_equals_its_float64_statement(name: str) -> None:
    config, ids = one_layer(name), tokens(500)
    t = {n: a.astype(np.float64) for n, a in weights(config).tensors.items()}
    own = whole_reference.under(t, "layers.0.")
    h = whole_reference.norm(config.norm, own, "norm1", t["embedding.weight"][ids])
    want = reference.mixer(MIXERS[name], whole_reference.under(own, "mixer."), h)  # type: ignore[arg-type]
    close(own_output(model(config), ids), want, 2e-5)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_split_has_the_same_bits(name: str, data: st.DataObject) -> None:
    """And leaves the same state, marks included."""
    m, ids = model(CAUSAL[name]), tokens(700, seed=data.draw(st.integers(0, 9)))
    cuts = sorted(data.draw(st.sets(st.integers(1, 699), max_size=6)))
    state, whole = m.new_state(), m.new_state()
    rows = [m.extend(state, part) for part in np.split(ids, cuts)]
    same_bits(np.concatenate(rows), m.extend(whole, ids))
    same_bits(np.concatenate(rows), m.logits(ids))
    for one, other in zip(state.layers, whole.layers, strict=True):
        assert isinstance(one, ScanState)
        assert isinstance(other, ScanState)
        assert (one.first, one.position) == (other.first, other.position)
        same_bits(np.stack([one.now, *one.marks]), np.stack([other.now, *other.marks]))  # type: ignore[list-item]


def test_positions_count_for_retention() -> None:
    """Its angles go on through chunks: the same tokens mean something else elsewhere."""
    m = model(one_layer("retnet"))
    a, b = m.prefill([1, 2, 3]), m.prefill([4, 1, 2, 3])
    assert np.abs(a.logits - b.logits).max() > 1e-3


# ---- states


def test_marks_are_two_and_lie_at_fixed_positions() -> None:
    m = model(CAUSAL["based"])
    for length, first, marks in [
        (1, 0, 1),
        (MARK_STEP - 1, 0, 1),
        (MARK_STEP, 0, 2),
        (2 * MARK_STEP - 1, 0, 2),
        (2 * MARK_STEP, MARK_STEP, 2),
        (10 * MARK_STEP + 5, 9 * MARK_STEP, 2),
    ]:
        for calls in ([length], [length // 2, length - length // 2], [1] * length):
            state = m.new_state()
            for n in filter(None, calls):
                m.extend(state, tokens(n))
            for one in state.layers:
                assert isinstance(one, ScanState)
                assert (one.first, len(one.marks)) == (first, marks)
                assert one.nbytes <= scan_bytes(len(one.marks[0]), m.config.d_model)


@pytest.mark.parametrize("name", NAMES)
def test_rewinds_at_every_distance(name: str) -> None:
    m, ids = model(CAUSAL[name]), tokens(600)
    straight = m.new_state()
    forks = {}
    for t, token in enumerate(ids):
        forks[t] = straight.fork()
        m.step(straight, int(token))
    assert straight.oldest == 3 * MARK_STEP
    for t in (599, 550, 513, 512, 511, 400, 385, 384):
        state = straight.fork()
        state.rewind(t)
        same_bits(steps(m, state, 200), steps(m, forks[t].fork(), 200))
        state.rewind(t + 90)  # and once more, from what was made anew
        m.extend(state, ids[:50])
        again = forks[t].fork()
        steps(m, again, 90)
        same_bits(m.extend(again, ids[:50])[-1], state.logits)


def test_memory_does_not_grow() -> None:
    m = model(CAUSAL["mamba"])
    state = m.prefill(tokens(300))
    held = state.nbytes
    m.prefill(tokens(5000), state)
    assert state.nbytes == held
    declared = sum(block.mixer.state_bytes(1) for block in m.blocks)
    assert state.nbytes <= declared + state.logits.nbytes
    assert m.blocks[0].mixer.state_bytes(1) == m.blocks[0].mixer.state_bytes(10**6)


def test_a_damaged_state_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    m = model(one_layer("based"))
    honest = ScanState.parts
    for change, match in [
        ({"position": 200}, "has 2 marks and 150 rows at position 200"),
        ({"marks": []}, "has 0 marks and 150 rows"),
        ({"rows": np.zeros((2, 20), np.float32)}, "has 2 marks and 2 rows at position 150"),
        ({"now": np.zeros(3, np.float32)}, r"now is float32 of shape \[3\]"),
    ]:
        monkeypatch.setattr(ScanState, "parts", lambda self, c=change: honest(self) | c)
        m.prefill(tokens(150)).save(tmp_path / "s")
        with pytest.raises(InputError, match=match):
            m.load_state(tmp_path / "s")


# ---- numbers at the edges


@each
def test_large_weights_stay_finite(name: str) -> None:
    """Activations of about 1,000: keys, exponents and steps far beyond e^88."""
    made = weights(one_layer(name))
    scaled = dict(made.tensors)
    for tensor in scaled:
        if tensor.endswith(("k_proj.weight", "q_proj.weight", "dt_proj.weight", "in_proj.weight")):
            scaled[tensor] = 300 * scaled[tensor]
    loud = Weights(made.config, scaled, made.folder, {}, (), made.fingerprint)
    m, ids = Model(loud, None, threads=1), tokens(300)
    got = m.logits(ids)
    assert np.isfinite(got).all()
    close(got, whole_reference.logits(loud.config, loud.tensors, ids), 1e-3)
    state = m.new_state()
    same_bits(np.stack([m.step(state, int(token)) for token in ids]), got)


@pytest.mark.parametrize("value", [-200.0, 200.0])
@pytest.mark.parametrize(("name", "tensor"), [("rwkv_time", "time_decay"), ("mamba", "A_log")])
def test_rates_beyond_the_range_of_float32(name: str, tensor: str, value: float) -> None:
    """e^200 is an infinity there: all is forgotten at once, as it would be by a number."""
    made = weights(one_layer(name))
    tensors = dict(made.tensors)
    key = f"layers.0.mixer.{tensor}"
    tensors[key] = np.full_like(tensors[key], value)
    m = Model(Weights(made.config, tensors, made.folder, {}, (), "x"), None, threads=1)
    ids = tokens(200)
    close(m.logits(ids), whole_reference.logits(made.config, tensors, ids), 2e-5)


# ---- configs and files


@pytest.mark.parametrize(
    ("mixer", "reason"),
    [
        (BasedConfig(3, 4), "d_model 20 is not divisible by heads 3"),
        (BasedConfig(2, 0), r"feature_width is 0, must be in 1\.\.128"),
        (BasedConfig(2, 129), "feature_width is 129"),
        (BasedConfig(2, 4, eps=0.0), "eps is 0.0, must be positive"),
        (BasedConfig(0, 4), "heads is 0, must be positive"),
        (RetNetConfig(2, 25, 1e-5), "value_width 25 is not divisible by heads 2"),
        (RetNetConfig(4, 40, 1e-5), "rotary positions need an even head width"),
        (RetNetConfig(21, 42, 1e-5), r"heads is 21, must be in 1\.\.20"),
        (RetNetConfig(2, 24, 1e-5, base=0.0), "base is 0.0"),
        (RwkvChannelConfig(0), "width is 0"),
        (MambaConfig(0, 1), "inner is 0"),
        (MambaConfig(8, 0), "rank is 0"),
        (MambaConfig(8, 1, state=257), r"state is 257, must be in 1\.\.256"),
        (MambaConfig(8, 1, conv_taps=0), r"conv_taps is 0, must be in 1\.\.64"),
    ],
)
def test_what_a_config_may_say(mixer: MixerConfig, reason: str) -> None:
    config = replace(CAUSAL["based"], layers=(layer(mixer),))
    with pytest.raises(ModelError, match=rf"layers\[0\]\.mixer: .*{reason}"):
        config_json.parse(config_json.to_json(config))


def zoology_folder(path: Path, name: str, kwargs: dict[str, Any], names: dict[str, str]) -> Weights:
    """A Zoology model of random weights; names: by native name, the stored one."""
    config = one_layer(name, max_length=None)
    identity = MlpConfig("identity", 0, bias=False)
    config = replace(config, layers=(replace(config.layers[0], mlp=identity),))
    made = weights(config)
    stored = {}
    for tensor, value in made.tensors.items():
        part = tensor.removeprefix("layers.0.mixer.")
        if part == tensor:
            new = "backbone." + tensor.replace("norm.", "ln_f.")
            new = new.replace("backbone.embedding.", "backbone.embeddings.word_embeddings.")
        else:
            stem, _, last = part.rpartition(".")
            new = names.get(part) or f"{names.get(stem, stem)}.{last}"
            new = f"backbone.layers.0.sequence_mixer.{new}"
        axes = (1, 1) if "time_mix" in new else (len(value), 1) if "conv1d.weight" in new else ()
        stored[new] = value.reshape(*axes, value.shape[-1]) if axes else value
    stored["lm_head.weight"] = made.tensors["embedding.weight"]
    data = {
        "d_model": config.d_model,
        "n_layers": 1,
        "vocab_size": VOCAB,
        "pad_vocab_size_multiple": 32,
        "max_position_embeddings": 0,
        "sequence_mixer": {"name": name, "kwargs": kwargs},
        "state_mixer": {"name": "torch.nn.Identity", "kwargs": {}},
    }
    data["sequence_mixer"]["name"] = {"mamba": "Mamba", "rwkv_time": "RWKVTimeMixer"}[name]
    path.mkdir()
    (path / "config.json").write_text(json.dumps(data))
    save_file(stored, path / "model.safetensors")
    return made


@pytest.mark.parametrize(
    ("name", "kwargs", "names"),
    [
        ("mamba", {"l_max": 64}, {"short_conv": "conv1d", "skip": "D", "A_log": "A_log"}),
        (
            "rwkv_time",
            {"l_max": 64},
            {
                **{f"mix_{n}": f"time_mix_{n}" for n in "kvr"},
                "time_decay": "time_decay",
                "time_first": "time_first",
                "k_proj": "key",
                "v_proj": "value",
                "r_proj": "receptance",
                "out_proj": "output",
            },
        ),
    ],
)
def test_zoology_keys(
    tmp_path: Path, name: str, kwargs: dict[str, Any], names: dict[str, str]
) -> None:
    made = zoology_folder(tmp_path / "z", name, kwargs, names)
    found = load_folder(tmp_path / "z")
    assert found.config.layers == made.config.layers
    ids = tokens(100)
    same_bits(Model(found, None, threads=1).logits(ids), Model(made, None, threads=1).logits(ids))
