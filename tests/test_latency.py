"""Work of long convolutions spread over the tokens, or all at once: the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy import CAUSAL, causal, model, tokens

from hyena_cpu import InputError
from hyena_cpu.model import Model
from hyena_cpu.state import State

PROMPT, STEPS = 150, 200
LONG = causal(40_000)  # where nobody says how far it goes, what lies before is summed up ever again
NAMES = ("order2", "order3", "base_conv", "long_conv", "recurrent_hybrid")


def steps(m: Model, state: State, ids: np.ndarray) -> np.ndarray:
    return np.array([m.step(state, token) for token in ids.tolist()])


@pytest.mark.parametrize("room", [None, STEPS])
@pytest.mark.parametrize("name", NAMES)
def test_throughput_has_the_numbers_of_a_whole_forward(name: str, room: int | None) -> None:
    m = model((CAUSAL if room else LONG)[name])
    ids = tokens(PROMPT + STEPS, seed=4) % m.vocab_size
    state = m.prefill(ids[:PROMPT], max_new_tokens=room, latency="throughput")
    want = m.logits(ids)[PROMPT:]
    assert np.abs(steps(m, state, ids[PROMPT:]) - want).max() <= 1e-4 * max(1, np.abs(want).max())


@pytest.mark.parametrize("configs", [CAUSAL, LONG], ids=["closed", "rolling"])
def test_a_sequence_keeps_what_it_began_with(configs: dict, tmp_path: Path) -> None:
    m = model(configs["order2"])
    ids = tokens(PROMPT + STEPS, seed=4) % m.vocab_size
    state = m.prefill(ids[:PROMPT], latency="throughput")
    steps(m, state, ids[PROMPT:250])
    fork = state.fork()
    state.save(tmp_path / "state")
    loaded = m.load_state(tmp_path / "state")
    mates = [m.prefill(ids[:n]) for n in (60, 70)]
    want = steps(m, state, ids[250:])
    assert np.array_equal(steps(m, fork, ids[250:]), want)
    assert np.array_equal(steps(m, loaded, ids[250:]), want)
    state.rewind(250)
    together = [m.step([mates[0], state, mates[1]], [1, t, 2])[1] for t in ids[250:].tolist()]
    assert np.array_equal(together, want)
    # Steps that begin anew, after a chunk of the prompt, too.
    m.prefill(ids[: PROMPT if configs is LONG else 30], fork)
    fork.save(tmp_path / "state")
    loaded = m.load_state(tmp_path / "state")
    assert np.array_equal(steps(m, fork, ids[:20]), steps(m, loaded, ids[:20]))


def test_throughput_takes_less_memory() -> None:
    m = model(CAUSAL["order2"])
    smooth, together = (
        m.prefill(tokens(100), max_new_tokens=256, latency=latency).nbytes
        for latency in ("smooth", "throughput")
    )
    assert together < smooth


def test_a_latency_that_cannot_be_had_is_refused() -> None:
    m = model(CAUSAL["order2"])
    with pytest.raises(InputError, match="latency is 'low', must be smooth or throughput"):
        m.prefill([1, 2], latency="low")  # type: ignore[arg-type]
    state = m.prefill([1, 2])
    m.prefill([1, 2], state, latency="smooth")
    with pytest.raises(InputError, match="latency 'throughput' is chosen where a sequence begins"):
        m.prefill([1, 2], state, latency="throughput")
