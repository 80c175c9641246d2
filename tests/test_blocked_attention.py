"""Attention within blocks of positions: what is seen, bits under any split, what is dropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy import CAUSAL, VOCAB, model, tokens, weights

from hyena_cpu.config import AttentionConfig, ModelConfig, RotaryConfig
from hyena_cpu.kv_cache import SPARE_SLOTS
from hyena_cpu.model import Model
from hyena_cpu.reference import model as reference

T = 300


def blocked(window: int, layers: int = 1) -> ModelConfig:
    mixer = AttentionConfig(heads=2, window=window, rotary=RotaryConfig(), blocked=True)
    config = CAUSAL["blocked_attention"]
    return replace(config, layers=(replace(config.layers[0], mixer=mixer),) * layers)


def in_chunks(m: Model, ids: np.ndarray, *lengths: int) -> np.ndarray:
    state, rows, at = m.new_state(), [], 0
    for n in lengths:
        rows.append(m.extend(state, ids[at : at + n]))
        at += n
    assert at == len(ids)
    return np.concatenate(rows)


@pytest.mark.parametrize("window", [1, 2, 7, 16, 50, 128, 130, T, 1000])
def test_float64_and_bits_under_any_split(window: int) -> None:
    config, ids = blocked(window), tokens(T)
    m = model(config)
    whole = m.logits(ids)
    want = reference.logits(config, weights(config).tensors, ids)
    assert np.abs(whole - want).max() <= 2e-5 * max(1.0, np.abs(want).max())
    for lengths in ((1,) * T, (T,), (49, 1, 1, 100, 149), (7,) * 42 + (6,)):
        assert np.array_equal(in_chunks(m, ids, *lengths), whole)


def test_what_is_seen() -> None:
    """j is seen by i if both are in one block and j <= i; worked by hand for blocks of 3."""
    seen = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    config, ids = blocked(3), tokens(5)
    m = model(config)
    whole = m.logits(ids)
    for j in range(5):
        other = ids.copy()
        other[j] = (other[j] + 7) % VOCAB
        felt = (m.logits(other) != whole).any(axis=1)
        assert felt.tolist() == [bool(row[j]) for row in seen]


def test_finished_blocks_are_dropped_and_a_rewind_is_not_felt() -> None:
    config, ids = blocked(50, layers=2), tokens(1500)
    m = model(config)
    whole = m.logits(ids)
    state = m.new_state()
    for t, token in enumerate(ids):
        assert np.array_equal(m.step(state, int(token)), whole[t])
    cache = state.layers[0]
    assert cache.oldest > 1000
    assert cache.nbytes <= 2 * 2 * 4 * config.d_model * (50 + SPARE_SLOTS)
    for back in (1, 49, 128):
        state.rewind(1500 - back)
        assert np.array_equal(m.extend(state, ids[1500 - back :]), whole[1500 - back :])
