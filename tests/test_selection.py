"""Attention for chosen positions: the choices, the layer, and the originals' outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contracts import close
from test_zoology import arrays, load, mixer_output, near
from test_zoology import model as golden_model
from toy import GELU, _model, layer, model, tokens, weights

from hyena_cpu.config import AttentionConfig, FilterConfig, HyenaConfig, ModelConfig
from hyena_cpu.config_json import parse, to_json
from hyena_cpu.config_selection import SelectionConfig
from hyena_cpu.errors import InputError, ModelError
from hyena_cpu.mixers import choices
from hyena_cpu.reference import model as reference
from hyena_cpu.reference import selection
from hyena_cpu.weights.native import shapes

GOLDEN = ("selective_softmax", "selective_sigmoid", "selective_sma")
_NONE = np.zeros(0, np.int32)
WHOLE = {
    "softmax_top": SelectionConfig(heads=2, choose="softmax_top"),
    "sigmoid_top": SelectionConfig(heads=1, choose="sigmoid_top", count=13),
    "sma_top": SelectionConfig(heads=4, choose="sma_top", bias=False),
}


def one(mixer: SelectionConfig) -> ModelConfig:
    return _model(layer(mixer), layer(mixer, None))


# ---- the originals


@pytest.mark.parametrize("name", GOLDEN)
def test_originals(name: str) -> None:
    found, data = load(name), arrays(name)
    m = golden_model(found)
    for part in "ab":
        for row, ids in enumerate(data[f"input_ids_{part}"]):
            near(m.logits(ids), data[f"logits_{part}"][row])
            near(m.hidden(ids), data[f"hidden_{part}"][row])
            near(reference.logits(found.config, found.tensors, ids), data[f"logits_{part}"][row])
    for i in range(2):
        for row, ids in enumerate(data["input_ids_a"]):
            near(mixer_output(m, i, ids), data[f"mixer{i}_out_a"][row])


def test_options_of_the_originals() -> None:
    mixers = [load(name).config.layers[0].mixer for name in GOLDEN]
    assert mixers == [
        SelectionConfig(1, "softmax_top"),
        SelectionConfig(2, "sigmoid_top", count=10),
        SelectionConfig(1, "sma_top"),
    ]


# ---- the choices


def test_chance_is_that_of_the_statement_and_of_position_alone() -> None:
    for seed in (0, 1, 12345, (1 << 64) - 1):
        positions = np.array([0, 1, 2, 77, 1 << 40], np.int64)
        u = np.array([selection.uniform(seed, int(p)) for p in positions])
        for share in (0.0, 0.1, 0.5, 0.9, 1.0):
            assert (choices.by_chance(positions, share, seed) == (u < share)).all()
    many = choices.by_chance(np.arange(100_000), 0.3, 5)
    assert abs(many.mean() - 0.3) < 0.01
    assert abs((many[1:] & many[:-1]).mean() - 0.09) < 0.01
    assert (many != choices.by_chance(np.arange(100_000), 0.3, 6)).any()


def test_tokens_and_bigrams_by_hand() -> None:
    ids = np.array([5, 7, 5, 7, 7, 7, 5, 7], np.int32)
    none = ids[:0]
    assert choices.token_seen(ids, none).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert choices.bigram_seen(ids, none).tolist() == [0, 0, 0, 1, 0, 1, 1, 1]
    assert choices.bigram_seen(ids[:1], none).tolist() == [0]


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_choices_do_not_depend_on_how_a_sequence_is_cut(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 80))
    ids = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), np.int32)
    count = data.draw(st.integers(1, 12))
    cuts = sorted(data.draw(st.sets(st.integers(1, n), max_size=6)))
    s = ids / 10  # many are equal

    def cut(choose: Any, *more: Any) -> list[int]:
        parts, at = [], 0
        for part in np.split(ids, cuts):
            parts.append(choose(part, ids[:at], *more))
            at += len(part)
        return np.flatnonzero(np.concatenate(parts)).tolist()

    def want(choose: Any, **more: Any) -> list[int]:
        return selection.chosen(SelectionConfig(1, choose, **more), s, ids)

    assert cut(choices.token_seen) == want("token_seen")
    assert cut(choices.bigram_seen) == want("bigram_seen")
    assert cut(choices.running_top, count) == want("running_top", count=count)
    top = np.flatnonzero(choices.largest(s, count)).tolist()
    assert top == want("sigmoid_top", count=count)


def test_running_top_by_hand() -> None:
    steps = choices.steps_of(np.array([0.3, 0.1, 0.2, 0.2, 0.25, 0.100004, 0.9]))
    assert steps.tolist() == [30000, 10000, 20000, 20000, 25000, 10000, 90000]
    got = choices.running_top(steps, steps[:0], 2)
    assert got.tolist() == [1, 1, 1, 0, 1, 0, 1]  # of equal scores the earlier one stays


# ---- the layer


@pytest.mark.parametrize("name", WHOLE)
def test_choices_over_the_whole_sequence(name: str) -> None:
    config = one(WHOLE[name])
    m = model(config)
    for n in (1, 2, 17, 150):
        want = reference.logits(config, weights(config).tensors, tokens(n))
        close(m.logits(tokens(n)), want, 2e-5)
    ids = tokens(150)
    for threads in (2, 3):
        assert np.array_equal(model(config, threads=threads).hidden(ids), m.hidden(ids))
    for got, n in zip(m.hidden_each([tokens(n) for n in (1, 60, 9)]), (1, 60, 9), strict=True):
        assert np.array_equal(got, m.hidden(tokens(n)))
    for use in (m.new_state, lambda: m.prefill(ids), lambda: m.generate([1, 2])):
        with pytest.raises(ModelError, match=r"reads the whole sequence at once.*use logits"):
            use()


def test_the_root_of_the_length_is_rounded_up() -> None:
    config = one(WHOLE["softmax_top"])
    for n, count in ((1, 1), (16, 4), (17, 5), (19, 5), (25, 5), (32, 6)):
        fixed = one(replace(WHOLE["softmax_top"], count=count))
        ids = tokens(n)
        assert np.array_equal(model(config).logits(ids), model(fixed).logits(ids))


def test_all_positions_are_attention_plus_the_input() -> None:
    config = _model(layer(SelectionConfig(heads=2, choose="all"), None))
    plain = replace(config, layers=(layer(AttentionConfig(heads=2), None),))
    found, ids = weights(config), tokens(90)
    m = model(config)
    other = golden_model(replace(found, config=plain))
    h = m.blocks[0].norm1(m.hidden(ids, 0), 1)
    close(m.hidden(ids, 1) - h, other.hidden(ids, 1), 1e-6)
    every = replace(config, layers=(layer(SelectionConfig(2, "random", share=1.0, seed=3), None),))
    assert np.array_equal(golden_model(replace(found, config=every)).hidden(ids), m.hidden(ids))


def test_positions_that_are_not_chosen_pass_the_input_on() -> None:
    mixer = SelectionConfig(heads=2, choose="token_seen", bias=False)
    m = model(_model(layer(mixer, None)))
    ids = np.array([3, 4, 3, 5], np.int32)
    x = m.hidden(ids, 0)
    rest = m.hidden(ids, 1) - (x + m.blocks[0].norm1(x, 1))
    assert np.abs(rest[[0, 1, 3]]).max() <= 1e-6
    assert np.abs(rest[2]).max() > 1e-2


@pytest.mark.parametrize("length", [400, 4096])
def test_steps_equal_the_whole_where_rounding_cannot_turn_a_choice(length: int) -> None:
    """Scores after a convolution differ by rounding; those near the threshold may flip."""
    mixer = SelectionConfig(heads=2, choose="running_top", count=12)
    taps = FilterConfig("modal", taps=200, modes=3)
    config = _model(layer(HyenaConfig(taps), GELU), layer(mixer, None))
    ids, found = tokens(length, seed=3), weights(config)
    m = model(config)
    whole = m.hidden(ids, -1)
    block = m.blocks[1]
    h = block.norm1(m.hidden(ids, 1), 1)
    s = block.mixer._scores(h, 1)
    near = np.array([i >= 12 and abs(np.sort(s[:i])[-12] - s[i]) <= 1e-5 for i in range(len(s))])
    assert near.sum() <= length // 100  # few are left out
    state = m.new_state()
    stepped = np.stack([m.step(state, int(t)) for t in ids])
    logits = m.logits(ids)
    close(stepped[~near], logits[~near])
    close(whole[~near], reference.hidden(config, found.tensors, ids)[~near], 2e-5)
    assert choices.running_top(choices.steps_of(s), _NONE, 12).sum() > 24


def test_a_file_with_or_without_notes_is_told_apart(tmp_path: Path) -> None:
    noted, plain = (
        one(SelectionConfig(heads=2, choose=how))  # type: ignore[arg-type]
        for how in ("token_seen", "all")
    )
    for mine, other, match in ((noted, plain, "has notes"), (plain, noted, "has no notes")):
        model(mine).prefill(tokens(20)).save(tmp_path / "s")
        with pytest.raises(InputError, match=match):
            model(other).load_state(tmp_path / "s")


def test_rules_of_the_config() -> None:
    def refused(mixer: Any, match: str) -> None:
        with pytest.raises(ModelError, match=match):
            parse(to_json(one(mixer)))

    def of(choose: str, **options: Any) -> SelectionConfig:
        return SelectionConfig(2, choose, **options)  # type: ignore[arg-type]

    assert parse(to_json(one(of("random", share=0.5, seed=1)))).layers[0].mixer.seed == 1
    refused(of("nearest"), "'nearest' is not one of all, random")
    refused(SelectionConfig(3, "all"), "not divisible by heads 3")
    refused(of("all", count=3), "count is for softmax_top, .*not for all")
    refused(of("running_top"), "running_top needs count")
    refused(of("sma_top", count=0), "count is 0, must be at least 1")
    refused(of("all", seed=1), "share and seed are for random, not for all")
    refused(of("random", seed=1), "share is None, must be in 0..1")
    refused(of("random", share=1.5, seed=1), r"share is 1\.5")
    refused(of("random", share=0.5), "seed is None")
    refused(of("random", share=0.5, seed=-1), "seed is -1, must be in 0..18446744073709551615")


def test_weights_are_complete_or_named() -> None:
    found = weights(one(WHOLE["sma_top"]))
    assert {n: t.shape for n, t in found.tensors.items()} == shapes(found.config)
