"""config.json: strict JSON, typed keys, rules over several keys, and back again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import CASES, folder, stored

from hyena_cpu import config as c
from hyena_cpu import config_json
from hyena_cpu.config_ssm import H3Config, S4DConfig
from hyena_cpu.errors import ModelError
from hyena_cpu.weights import load_folder

FILTER = c.FilterConfig("sine_window", 64, width=8, bands=4, sine_layers=2, normalize="time_l2")
EVERYTHING = c.ModelConfig(
    d_model=12,
    vocab_size=20,
    logits_width=24,
    max_length=64,
    tie_embeddings=False,
    norm=c.NormConfig("rmsnorm", 2.0**-23),
    layers=(
        c.LayerConfig(c.HyenaConfig(FILTER, order=3), c.MlpConfig("swiglu", 32, bias=False)),
        c.LayerConfig(c.AttentionConfig(3, window=64, rotary=c.RotaryConfig()), None),
        c.LayerConfig(c.LongConvConfig(c.FilterConfig("explicit", 8, threshold=0.1)), None),
        c.LayerConfig(c.H3ConvConfig(c.FilterConfig("explicit", 8)), None),
        c.LayerConfig(c.HyenaConfig(c.FilterConfig("modal", 8, modes=2)), None),
        c.LayerConfig(c.BaseConvConfig(short_taps=3), c.MlpConfig("identity", 0)),
        c.LayerConfig(c.BaseConvConfig(c.FilterConfig("relu_mlp", 8, width=4, bands=1)), None),
        c.LayerConfig(H3Config(8, head_dim=3, discretization="zoh"), None),
        c.LayerConfig(S4DConfig(6, discretization="bilinear"), None),
    ),
    positions=64,
    classifier=c.ClassifierConfig(2, "mean", bias=True),
    tokenizer=c.TokenizerConfig("hf", "tokenizer.json"),
    special_tokens=c.SpecialTokens(bos=0, eos=1, styles={"play": 3}),
    name="toy",
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """JSON of EVERYTHING with one place replaced; path as in "layers.0.mixer.order"."""
    data = config_json.to_json(EVERYTHING)
    *steps, last = [int(x) if x.isdigit() else x for x in path.split(".")]
    place: Any = data
    for step in steps:
        place = place[step]
    place[last] = value
    return data


def test_there_and_back() -> None:
    text = json.dumps(config_json.to_json(EVERYTHING))
    assert config_json.parse(json.loads(text)) == EVERYTHING


def test_eps_and_other_required_keys_have_no_default() -> None:
    for path in ("norm.eps", "d_model", "max_length", "tie_embeddings", "layers.0.mixer.filter"):
        data = changed(path, None)
        *steps, last = path.split(".")
        place: Any = data
        for step in steps:
            place = place[int(step) if step.isdigit() else step]
        del place[last]
        with pytest.raises(ModelError, match=f"key '{last}' is missing"):
            config_json.parse(data)


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("format_version", 2, "format_version is 2; this release reads version 1"),
        ("format_version", None, "format_version is None"),
        ("model_type", "gpt2", "model_type is 'gpt2'"),
        ("d_model", 0, "d_model is 0"),
        ("d_model", 12.0, "d_model: must be int"),
        ("d_model", "12", "d_model: must be int"),
        ("d_model", True, "d_model: must be int"),
        ("vocab_size", -1, "vocab_size is -1"),
        ("logits_width", 19, "logits_width 19 is smaller than vocab_size 20"),
        ("max_length", 0, "max_length is 0"),
        ("positions", 0, "positions is 0"),
        ("max_length", 65, "max_length is 65, must be at most the 64 positions"),
        ("max_length", None, "must be at most the 64 positions"),
        ("norm.eps", 0, "norm.eps is 0"),
        ("norm.eps", "1e-5", "eps: must be float"),
        ("norm.eps", 10**400, "finite"),
        ("norm.kind", "batchnorm", "'batchnorm' is not one of layernorm, rmsnorm"),
        ("norm", [], "norm: must be an object"),
        ("layers", [], "layers is empty"),
        ("layers", {}, "layers: must be a list"),
        ("layers.0.mixer.kind", "lstm", "kind is 'lstm'; known: hyena, attention"),
        ("layers.0.mixer.kind", [], r"kind is \[\]"),
        ("layers.0.mixer", None, "kind is None"),
        ("layers.0.mixer.order", 0, "order is 0, must be at least 1"),
        ("layers.0.mixer.short_taps", 0, "short_taps is 0"),
        ("layers.0.mixer.filter.taps", 0, "taps is 0"),
        ("layers.0.mixer.filter.taps", 1 << 27, "taps is 134217728, the limit"),
        ("layers.0.mixer.filter.width", 0, "width is 0"),
        ("layers.0.mixer.filter.bands", 0, "bands is 0"),
        ("layers.0.mixer.filter.sine_layers", 65, "sine_layers is 65, at most 64"),
        ("layers.0.mixer.filter.colour", 1, "unknown key 'colour'"),
        ("layers.0.mlp.width", 0, r"mlp\.width is 0, must be positive"),
        ("layers.0.mlp.kind", "identity", r"mlp\.width is 32, must be 0 for identity"),
        ("layers.1.mixer.heads", 5, "d_model 12 is not divisible by heads 5"),
        ("layers.1.mixer.heads", 0, "heads 0"),
        ("layers.1.mixer.heads", 4, "rotary positions need an even head width"),
        ("layers.1.mixer.window", 0, "window is 0"),
        ("layers.1.mixer.rotary.dims", 3, "rotary.dims is 3, must be even and at most .* 4"),
        ("layers.1.mixer.rotary.dims", 6, "rotary.dims is 6"),
        ("layers.2.mixer.channels", 0, "channels is 0"),
        ("layers.2.mixer.filter.kind", "modal", "long_conv needs an explicit filter"),
        ("layers.2.mixer.filter.threshold", -1, "threshold is -1"),
        ("layers.2.mixer.filter.normalize", "time_l2", "normalize is for"),
        ("layers.4.mixer.filter.modes", 0, "modes is 0"),
        ("layers.3.mixer.filter.kind", "relu_mlp", "h3_conv needs an explicit filter"),
        ("layers.1.mixer", {"kind": "attention", "heads": 3, "blocked": True}, "needs a window"),
        ("layers.5.mixer.short_taps", 0, "short_taps is 0 without a filter"),
        ("layers.5.mixer.short_taps", -1, "short_taps is -1 without a filter"),
        ("layers.6.mixer.short_taps", 3, "short_taps is 3 beside a filter"),
        ("layers.6.mixer.short_taps", -3, "short_taps is -3 beside a filter"),
        ("layers.6.mixer.filter.kind", "modal", "needs an explicit or a relu_mlp filter"),
        ("layers.6.mixer.filter.width", 0, "width is 0"),
        ("layers.6.mixer.filter.bands", 0, "bands is 0"),
        ("layers.6.mixer.filter.normalize", "time_l2", "normalize is for"),
        ("layers.7.mixer.d_state", 7, "d_state is 7, must be even and within 2..65536"),
        ("layers.7.mixer.d_state", 0, "d_state is 0"),
        ("layers.7.mixer.head_dim", 5, "d_model 12 is not divisible by head_dim 5"),
        ("layers.7.mixer.head_dim", 0, "head_dim 0"),
        ("layers.8.mixer.discretization", "euler", "not one of bilinear, zoh"),
        ("layers.8.mixer.d_state", 1 << 17, "d_state is 131072"),
        ("classifier.labels", 0, "labels must be positive"),
        ("special_tokens.eos", 20, "eos is 20, must be below vocab_size 20"),
        ("special_tokens.styles.play", -1, "play is -1"),
        ("special_tokens.styles", [], "styles: must be an object"),
    ],
)
def test_wrong_value_is_named(path: str, value: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        config_json.parse(changed(path, value), "config.json")


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_wrong_json_escapes_as_another_error(data: st.DataObject) -> None:
    """Any one place of a config replaced by anything: a config or a ModelError."""
    tree = config_json.to_json(EVERYTHING)
    place: Any = tree
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
    place[key] = data.draw(scalars | st.floats() | st.lists(scalars) | st.just({}))
    try:
        parsed = config_json.parse(copy.deepcopy(tree))
    except ModelError:
        return
    assert config_json.parse(config_json.to_json(parsed)) == parsed


# ---- files ----


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"d": 1, "e": 2, "d": 1}', "key 'd' appears twice"),
        (b'{"d": {"x": NaN}}', "key 'x' is NaN"),
        (b'{"d": [1, [-Infinity]]}', "key 'd' is -Infinity"),
        (b"[NaN]", "the document is NaN"),
        (b'{"d": 1,}', "not valid JSON"),
        (b"{'d': 1}", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff\xfe{", "not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_strict_json(text: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ModelError, match=reason) as error:
        config_json.read(path)
    assert str(path) in str(error.value)


def test_odd_configs_of_the_case_log() -> None:
    assert config_json.read(CASES / "C029/config_bom.json")["d_model"] == 8
    both = CASES / "C029/config_dup_and_nan.json"  # and a trailing comma, which is seen first
    with pytest.raises(ModelError, match="not valid JSON"):
        config_json.read(both)
    text = both.read_bytes().replace(b",}", b"}")
    with pytest.raises(ModelError, match="key 'd_model' appears twice"):
        config_json.decode(text, "x")
    with pytest.raises(ModelError, match="key 'decay' is NaN"):
        config_json.decode(text.replace(b'"d_model":128,', b""), "x")


def test_odd_types_of_the_case_log(tmp_path: Path) -> None:
    odd = config_json.read(CASES / "C029/config_odd_types.json")
    _, tensors = stored("hyenadna/orig_repo_lm_shift0")
    with pytest.raises(ModelError, match="d_model must be a whole number, got '128'"):
        load_folder(folder(tmp_path, odd, tensors), family="hyenadna")
    config, _ = stored("hyenadna/orig_repo_lm_shift0")
    config |= {"n_layer": 2.0, "x_unknown_key": 1, "checkpoint_mixer": "False"}
    config["layer"]["l_max"] = 6.6e1
    weights = load_folder(folder(tmp_path, config, tensors))
    notes = " ".join(weights.notes)
    said = ("n_layer is 2.0, taken as 2", "l_max is 66.0", "x_unknown_key", "checkpoint_mixer")
    assert [words for words in said if words not in notes] == []


def test_absent_and_huge_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        config_json.read(tmp_path / "config.json")
    with pytest.raises(ModelError, match="no such file"):
        config_json.read(tmp_path)
    (tmp_path / "config.json").write_bytes(b" " * (config_json.MAX_BYTES + 1))
    with pytest.raises(ModelError, match="the limit is"):
        config_json.read(tmp_path / "config.json")
