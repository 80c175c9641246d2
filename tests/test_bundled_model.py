"""tiny-en: the figures its card promises, recomputed by this engine.

The protocol is the one in the model's reference.json: windows of a style token and 1,023 tokens of
text, every text token scored, softmax over all rows in float64.
"""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
from conftest import shared_path

import hyena_cpu

FOLDER = hyena_cpu.BUNDLED["tiny-en"]
REFERENCE = json.loads((FOLDER / "reference.json").read_text())


@pytest.fixture(scope="module")
def model() -> hyena_cpu.Model:
    return hyena_cpu.load()


def bits_per_byte(model: hyena_cpu.Model, entries: list[dict]) -> float:
    """Bits per byte over the texts of some entries of reference.json, checking each on the way."""
    nats = size = 0.0
    for entry in entries:
        raw = shared_path("data", entry["file"]).read_bytes()
        assert hashlib.sha256(raw).hexdigest() == entry["sha256"]
        text = raw.replace(b"\r\n", b"\n")[entry.get("split", 0) :]
        assert len(text) == entry["bytes"]
        ids = model.tokenizer.encode(text)
        assert len(ids) == entry["tokens"]
        own = -sum(window_logprob(model, window, entry["style"]) for window in cut(ids))
        assert own / math.log(2) / len(text) == pytest.approx(entry["bits_per_byte"], abs=1e-3)
        nats += own
        size += len(text)
    return nats / math.log(2) / size


def cut(ids: np.ndarray) -> list[np.ndarray]:
    """Windows of 1,023 tokens, the last one shorter."""
    size = REFERENCE["window"] - 1
    return [ids[i : i + size] for i in range(0, len(ids), size)]


def window_logprob(model: hyena_cpu.Model, ids: np.ndarray, style: str) -> float:
    first = model.config.special_tokens.styles[style]
    return float(model.token_logprobs(np.concatenate([[first], ids])).sum())


def test_held_out_text(model: hyena_cpu.Model) -> None:
    got = bits_per_byte(model, REFERENCE["held_out"]["files"])
    assert got == pytest.approx(REFERENCE["held_out"]["bits_per_byte"], abs=1e-3)
    assert got <= 1.80


def test_logits_equal_those_of_the_training_framework(model: hyena_cpu.Model) -> None:
    want = REFERENCE["logits"]
    last = model.logits(want["ids"])[-1]
    assert np.argsort(-last)[:8].tolist() == want["last_top_ids"]
    assert np.abs(last[want["last_top_ids"]] - want["last_top_logits"]).max() <= 1e-4


def test_it_runs_on_for_ever_in_constant_memory(model: hyena_cpu.Model) -> None:
    ids = model.tokenizer.encode("The king and the queen went out into the garden. " * 120)
    state = model.prefill(ids[:1200])
    most = 0
    for token in ids[1200:1300]:
        model.step(state, int(token))
        most = max(most, state.nbytes)
    model.prefill(np.tile(ids, 4), state)
    model.step(state, 5)
    assert state.position == 1301 + 4 * len(ids)
    state = model.prefill(ids[:1200], model.prefill(np.tile(ids, 4)))
    for token in ids[:3000]:
        model.step(state, int(token))
    assert state.nbytes <= 2 * most


def test_greedy_text_is_the_same_for_every_thread_count() -> None:
    texts = {
        hyena_cpu.load(threads=threads).generate("Call me", max_new_tokens=40, greedy=True).text
        for threads in (1, 2, 3)
    }
    assert len(texts) == 1
    assert len(texts.pop()) > 40
