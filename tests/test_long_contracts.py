"""The promises of every causal model at 4,096 tokens, with filters as long."""

from __future__ import annotations

import numpy as np
import pytest
from test_contracts import close
from toy import LENGTH, VOCAB, causal, tokens, weights

from hyena_cpu.config import ModelConfig
from hyena_cpu.model import Model
from hyena_cpu.weights import Weights

T = 4096
MODELS = causal(T)
each = pytest.mark.parametrize("name", MODELS)


def long_weights(config: ModelConfig, length: int, seed: int = 0) -> Weights:
    """A transform's rounding is relative to its largest outputs and is felt by its smallest, the
    first ones: with more taps they differ more, unless taps are smaller.
    """
    made = weights(config, seed)
    for key, tensor in made.tensors.items():
        if key.endswith("filter.linear.3.weight"):  # the last layer of implicit filters
            tensor *= np.float32(LENGTH / length)
    return made


def long_model(name: str, threads: int, seed: int = 0) -> Model:
    return Model(long_weights(MODELS[name], T, seed), None, threads=threads)


@each
def test_steps_and_pieces_equal_the_whole(name: str) -> None:
    m, ids = long_model(name, threads=2), tokens(T)
    whole = m.logits(ids)
    for cuts in ([1], [1000, 1001, 1300, 4000], list(range(611, T, 611))):
        state = m.new_state()
        close(np.concatenate([m.extend(state, part) for part in np.split(ids, cuts)]), whole)
    state = m.new_state()
    close(np.stack([m.step(state, int(token)) for token in ids]), whole)


@each
def test_threads_and_later_tokens_change_nothing(name: str) -> None:
    ids = tokens(T)
    m = long_model(name, threads=1, seed=2)  # see test_contracts for the seed
    whole = m.logits(ids)
    np.testing.assert_array_equal(long_model(name, threads=3, seed=2).logits(ids), whole)
    for at in (1, 2049, T - 1):
        changed = ids.copy()
        changed[at:] = (changed[at:] + 7) % VOCAB
        got = m.logits(changed)
        assert np.abs(got[:at] - whole[:at]).max() <= 1e-5 * np.abs(whole).max()
        assert np.abs(got[at] - whole[at]).max() > 1e-3
