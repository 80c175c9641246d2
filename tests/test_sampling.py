"""Filters, ties, penalties, randomness: cases C011, C037, C039, C041, C043, C044, S05, S06."""

from __future__ import annotations

import json
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyena_cpu.errors import InputError, ModelError, NumericError
from hyena_cpu.sampling import (
    SamplingParams,
    SeenTokens,
    Uniforms,
    candidates,
    check_finite,
    choose_seed,
    draw,
    logprob,
    penalize,
    resolve,
    sample,
)

CASES = Path(__file__).parent / "cases"


def kept(logits: list[float], **params: Any) -> list[int]:
    values = SamplingParams(**{"temperature": 1.0, **params})
    return candidates(np.array(logits, np.float64), values)[0].tolist()


def draw_one(logits: np.ndarray, vocab_size: int, params: SamplingParams, position: int = 0) -> int:
    return sample(logits, vocab_size, params, None, Uniforms(1, 0, position))


def test_padded_rows_are_never_drawn() -> None:
    case = json.loads((CASES / "C011/vocab.json").read_text())
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(10_000, case["embedding_rows"])).astype(np.float32) * 3
    rows[:, 12:] += 5
    params = SamplingParams(temperature=5.0)
    drawn = {draw_one(row, case["tokenizer_size"], params, i) for i, row in enumerate(rows)}
    assert drawn == set(range(case["tokenizer_size"]))
    assert draw_one(rows[0], case["tokenizer_size"], SamplingParams()) < case["tokenizer_size"]


@pytest.mark.parametrize("name", ["one_nan", "one_inf", "all_nan", "all_neg_inf"])
def test_logits_that_are_not_finite_are_an_error(name: str) -> None:
    rows = json.loads((CASES / "C037/logits.json").read_text())
    with pytest.raises(NumericError, match="position 7"):
        check_finite(np.array(rows[name], np.float32), 7)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1e-38])
@pytest.mark.parametrize("filters", [{}, {"top_k": 4}, {"top_k": 1, "top_p": 0.0}, {"min_p": 1.0}])
def test_tiny_temperatures_are_greedy(temperature: float, filters: dict[str, Any]) -> None:
    params = SamplingParams(temperature=temperature, **filters)
    assert draw_one(np.array([1, 2], np.float32), 2, params) == 1
    ties = np.array([0, 3, 3, 1], np.float32)
    assert [draw_one(ties, 4, params, p) for p in range(20)] == [1] * 20


@pytest.mark.parametrize("top_p", ["0.3", "0.4", "0.5", "0.7", "0.8", "0.95", "1.0"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nucleus_is_the_smallest_set_that_reaches_the_mass(top_p: str, dtype: type) -> None:
    case = json.loads((CASES / "C041/top_p.json").read_text())
    logits = np.log(np.array(case["probs"])).astype(dtype)
    assert kept(logits.tolist(), top_p=float(top_p)) == case["kept_indices"][top_p]


@pytest.mark.parametrize(
    "filters", [{"top_p": 0.0}, {"top_k": 1, "top_p": 0.0}, {"min_p": 1.0}, {"top_k": 1}]
)
def test_one_candidate_always_stays(filters: dict[str, Any]) -> None:
    assert kept([0, 5, 1], **filters) == [1]


def test_ties_go_to_the_lower_id() -> None:
    assert kept([1, 2, 2, 2, 0], top_k=2) == [1, 2]
    assert kept([0, 0, 0, 0], top_p=0.5) == [0, 1]
    assert kept([0, 0, 0, 0], top_p=0.0) == [0]


def test_filters_act_one_after_the_other() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    # Of the two that top_k leaves, the first holds 4/7 of the mass.
    assert kept(logits, top_k=2, top_p=0.5) == [0]
    assert kept(logits, top_k=2, top_p=0.6) == [0, 1]
    assert kept(logits, min_p=0.5) == [0, 1, 2]
    assert kept(logits, top_k=9) == [0, 1, 2, 3]
    # Temperature comes first: flattened, four candidates are needed for this mass.
    assert kept(logits, temperature=100.0, top_p=0.76) == [0, 1, 2, 3]
    assert kept(logits, temperature=0.1, top_p=0.76) == [0]


@given(
    st.lists(st.integers(-500, 500).map(lambda n: n / 10), min_size=1, max_size=30),
    st.floats(0.1, 5),
    st.integers(0, 8),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_the_best_always_stays_and_order_of_ids_too(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    ids = kept(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert int(np.argmax(logits)) in ids
    assert ids == sorted(set(ids))
    assert top_k == 0 or len(ids) <= top_k


def test_penalty_acts_by_sign_and_once() -> None:
    case = json.loads((CASES / "C044/rep_penalty.json").read_text())
    seen = SeenTokens(4, None, case["seen"] * 3)
    row = penalize(np.array(case["logits"]), seen.mask, case["penalty"])
    assert row.tolist() == case["expected"]


def test_penalty_changes_the_drawn_token() -> None:
    logits = np.array([2.0, 1.5, -1.0], np.float32)
    params = SamplingParams(repetition_penalty=2.0)
    assert sample(logits, 3, params, SeenTokens(3, None, [0]), Uniforms(0, 0, 0)) == 1


def test_window_of_seen_tokens() -> None:
    seen = SeenTokens(5, 2, [0, 1, 1])
    assert seen.mask.tolist() == [False, True, False, False, False]
    seen.add(3)
    seen.add(9)  # a padded row in a prompt
    assert seen.mask.tolist() == [False, False, False, True, False]


def test_uniforms_depend_on_seed_sample_and_position_only() -> None:
    run = Uniforms(7, 3, 0)
    drawn = [run.draw() for _ in range(50)]
    assert [Uniforms(7, 3, position).draw() for position in range(50)] == drawn
    assert all(0 <= value < 1 for value in drawn)
    assert len({*drawn, Uniforms(8, 3, 0).draw(), Uniforms(7, 4, 0).draw()}) == 52


def test_uniforms_are_fixed_for_all_time() -> None:
    # Seeds in users' notes must keep their texts.
    assert Uniforms(7, 0, 0).draw() == 0.9007596233153624
    assert Uniforms((1 << 64) - 1, 1, 10**6).draw() == 0.07270364648330341


def test_global_random_state_is_not_touched() -> None:
    before = np.random.get_state()[1].copy()
    Uniforms(1, 2, 3).draw()
    assert (np.random.get_state()[1] == before).all()


def test_draw_follows_the_probabilities() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
    params = SamplingParams(temperature=1.0)
    uniforms = Uniforms(5, 0, 0)
    counts = np.bincount([sample(logits, 4, params, None, uniforms) for _ in range(20_000)])
    np.testing.assert_allclose(counts / 20_000, [0.4, 0.3, 0.2, 0.1], atol=0.015)


def test_draw_at_the_edges_never_takes_weight_zero() -> None:
    ids, weights = np.array([3, 5, 8]), np.array([0.0, 1.0, 0.0])
    assert [draw(ids, weights, u) for u in (0.0, 0.5, 1 - 2**-53)] == [5, 5, 5]


def test_logprob_covers_all_stored_rows() -> None:
    logits = np.array([1, 2, 3, 50], np.float32)
    expected = 2 - np.log(np.exp(logits.astype(np.float64)).sum())
    assert logprob(logits, 1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", "hot"),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("top_p", -0.1),
        ("min_p", 2),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("repetition_last_n", 0),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^{name} is .*must be"):
        SamplingParams(**{name: value})


def test_numbers_of_any_type_mean_the_same() -> None:
    # numpy's small integers wrap around, and fractions have no exponentials.
    values = {"temperature": Fraction(1, 2), "top_k": np.uint8(3), "top_p": np.float32(0.75)}
    others = {"repetition_penalty": 2, "repetition_last_n": np.int8(4)}
    plain = SamplingParams(0.5, 3, 0.75, 0.0, 2.0, 4)
    assert json.dumps(asdict(SamplingParams(**values, **others))) == json.dumps(asdict(plain))
    assert type(choose_seed(np.uint64(7))) is int


@pytest.mark.parametrize("seed", [-1, 1 << 64, 1.5, True])
def test_seed_is_an_unsigned_64_bit_number(seed: Any) -> None:
    with pytest.raises(InputError, match="seed is"):
        choose_seed(seed)


def test_seed_is_drawn_when_absent() -> None:
    assert choose_seed((1 << 64) - 1) == (1 << 64) - 1
    assert choose_seed(None) != choose_seed(None)


def test_defaults_come_from_the_model_else_greedy() -> None:
    assert resolve({}, {}).greedy
    model = {"temperature": 0.8, "top_k": 40, "bos_token_id": 3}
    assert resolve({}, model) == SamplingParams(temperature=0.8, top_k=40)
    assert resolve({}, {**model, "do_sample": False}).greedy
    sampled = resolve({}, {"do_sample": True, "top_k": 50})
    assert (sampled.temperature, sampled.top_k) == (1.0, 50)
    assert resolve({"greedy": True}, {"do_sample": True, "top_k": 50}).greedy
    with pytest.raises(ModelError, match=r"generation_config\.json: must hold"):
        resolve({}, [1])  # type: ignore[arg-type]
    assert resolve({"temperature": 0.5, "top_k": None}, model).temperature == 0.5
    assert resolve({"greedy": True}, model).greedy
    assert resolve({"greedy": False}, {}).temperature == 1.0
    assert resolve({"top_k": 5}, {}) == SamplingParams(temperature=1.0, top_k=5)
    assert resolve({"temperature": 0.0, "top_k": 4}, {}).greedy


def test_a_penalty_of_the_model_can_be_switched_off() -> None:
    model = {"temperature": 0.8, "repetition_penalty": 1.1, "repetition_last_n": 64}
    assert resolve({}, model).repetition_last_n == 64
    assert resolve({"repetition_penalty": 1.0}, model) == SamplingParams(temperature=0.8)
    assert resolve({"repetition_penalty": 1.2}, model).repetition_last_n == 64


def test_what_cannot_act_is_refused() -> None:
    with pytest.raises(InputError, match="top_p has no effect on greedy"):
        resolve({"greedy": True, "top_p": 0.9}, {})
    with pytest.raises(InputError, match="repetition_last_n does nothing"):
        SamplingParams(repetition_last_n=5)


def test_defaults_out_of_range_are_the_models_fault() -> None:
    with pytest.raises(ModelError, match="generation_config"):
        resolve({}, {"temperature": -1})
