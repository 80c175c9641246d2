"""Token by token far into a sequence: 65,536 tokens, and greedy text of 2,000."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import rel_l2
from test_contracts import close
from test_long_contracts import long_weights
from test_online import G, online_taps
from test_online_conv import PROMISED, causal, decaying, normal
from toy import causal as causal_models
from toy import tokens

import hyena_cpu
from hyena_cpu.model import Model
from hyena_cpu.online import FEW_ROWS, SMALL_PART, OnlineConv

LONG = 65_536
NEAR_POWERS = {(1 << k) + near for k in range(4, 17) for near in (-1, 0, 1)}
SAMPLED = sorted({*range(0, LONG, 499), *NEAR_POWERS} & set(range(LONG)))


@pytest.mark.parametrize("prompt", [0, 1000, 40_000])
def test_the_convolution_keeps_its_promise(rng: np.random.Generator, prompt: int) -> None:
    taps, z = decaying(rng, G, LONG), normal(rng, G, LONG, 16)
    conv = OnlineConv(online_taps(taps))
    parts = [conv.extend(z[:, :prompt], 2)] if prompt else []
    while conv.position < LONG:  # rows that go one by one
        n = 1 if conv.position == 0 else max(FEW_ROWS, conv.position // SMALL_PART)
        parts.append(conv.extend(z[:, conv.position : conv.position + n], 2))
    assert rel_l2(np.concatenate(parts, axis=1), causal(z, taps)) <= PROMISED


@pytest.mark.parametrize("name", ["order2", "finite_hybrid"])
@pytest.mark.parametrize(("prompt", "room"), [(0, None), (LONG - 9000, 9000)])
def test_steps_have_the_logits_of_the_whole(name: str, prompt: int, room: int | None) -> None:
    config = replace(causal_models(LONG)[name], max_length=LONG)
    m, ids = Model(long_weights(config, LONG), None, threads=2), tokens(LONG)
    whole = m.logits(ids)
    state = m.prefill(ids[:prompt], max_new_tokens=room) if prompt else m.new_state()
    rows = {t: m.step(state, int(ids[t])) for t in range(prompt, LONG)}
    sampled = [t for t in SAMPLED if t >= prompt]
    assert len(sampled) >= 18
    close(np.stack([rows[t] for t in sampled]), whole[sampled])


def test_greedy_text_is_that_of_whole_forwards() -> None:
    m = hyena_cpu.load("tiny-en", threads=2)
    prompt = m.tokenizer.encode(b"Once upon a time there was")
    options = {"repetition_penalty": 1.0, "ignore_eos": True}
    found = np.array(m.generate(prompt, max_new_tokens=2000, greedy=True, **options).tokens)
    assert len(found) == 2000
    assert len(set(found[-200:].tolist())) > 1
    logits = m.logits(np.concatenate([prompt, found]))[len(prompt) - 1 : -1]
    best, runner_up = np.sort(logits, axis=1)[:, :-3:-1].T
    margin = 1e-4 * max(1, float(np.abs(logits).max()))
    clear = best - runner_up > 2 * margin
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(found[clear], logits.argmax(axis=1)[clear])
    assert (logits[np.arange(2000), found] >= best - 2 * margin).all()
