"""Memory is said before it is taken, and no more is taken than was said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy import CAUSAL, LENGTH, model, tokens

import hyena_cpu
from hyena_cpu import plan_states
from hyena_cpu.planner import readable


@pytest.mark.parametrize("name", CAUSAL)
def test_a_run_above_the_limit_is_refused_before_it_starts(name: str) -> None:
    free = model(CAUSAL[name])
    small, large = (hyena_cpu.plan(free, n, logits_rows=1).needed for n in (8, LENGTH))
    assert small < large
    bounded = model(CAUSAL[name], max_memory=(small + large) // 2)
    state = bounded.prefill(tokens(8))
    assert state.position == 8
    with pytest.raises(hyena_cpu.LimitError, match=r"needs about .* but max-memory is"):
        bounded.prefill(tokens(LENGTH))
    assert model(CAUSAL[name], max_memory=large).prefill(tokens(LENGTH)).position == LENGTH
    whole = hyena_cpu.plan(free, LENGTH, state=False, hidden_rows=LENGTH).needed
    with pytest.raises(hyena_cpu.LimitError, match="allow at least"):
        model(CAUSAL[name], max_memory=whole - 1).hidden(tokens(LENGTH))
    assert len(model(CAUSAL[name], max_memory=whole).hidden(tokens(LENGTH))) == LENGTH


def test_new_tokens_count_before_the_prompt_is_taken_in() -> None:
    free = model(CAUSAL["finite_hybrid"])
    needed = hyena_cpu.plan(free, 4096, room=4086).needed
    assert needed > hyena_cpu.plan(free, 10).needed
    bounded = model(CAUSAL["finite_hybrid"], max_memory=needed - 1)
    with pytest.raises(hyena_cpu.LimitError, match="max-memory"):
        bounded.prefill(tokens(10), max_new_tokens=4086)
    assert bounded.prefill(tokens(10)).position == 10


def test_all_logits_are_counted_where_all_are_returned() -> None:
    m = model(CAUSAL["order2"])
    some, more = (
        hyena_cpu.plan(m, LENGTH, logits_rows=rows, state=False).needed
        for rows in (100 * LENGTH, 200 * LENGTH)
    )
    added = 100 * 4 * m.logits_width * LENGTH
    assert added <= more - some <= added + added // 32
    config = replace(CAUSAL["order2"], logits_width=20_000)
    limit = hyena_cpu.plan(model(config), LENGTH, hidden_rows=LENGTH, state=False).needed
    bounded = model(config, max_memory=limit)
    bounded.hidden(tokens(LENGTH))
    with pytest.raises(hyena_cpu.LimitError, match="largest: logits"):
        bounded.logits(tokens(LENGTH))


def test_transforms_are_kept_where_there_is_room() -> None:
    """What a run needs does not depend on earlier ones, so neither does what is refused."""
    length = 30_000
    config = replace(CAUSAL["order2"], max_length=None)
    free = model(config)
    needed = hyena_cpu.plan(free, length, state=False).needed
    tight, wide = (model(config, max_memory=needed + more) for more in (0, 64 << 20))
    want = free.token_logprobs(tokens(length))
    for m in (free, tight, wide):
        for _ in range(3):
            assert np.array_equal(m.token_logprobs(tokens(length)), want)
            assert hyena_cpu.plan(m, length, state=False).needed == needed
    held = [m.convolutions.cache.nbytes for m in (free, tight, wide)]
    assert held[1] == 0 < held[0] == held[2]


def test_a_length_beyond_every_transform_is_a_limit() -> None:
    m = model(CAUSAL["finite_hybrid"])
    assert hyena_cpu.plan(m, 1 << 30).total > 0
    assert hyena_cpu.plan(m, 1 << 40, new=1).total > 0  # a step goes through none
    for length in ((1 << 31) - 1, 1 << 40):
        with pytest.raises(hyena_cpu.LimitError, match=f"{length} tokens at once .* several calls"):
            hyena_cpu.plan(m, length)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_configuration_is_planned_as_its_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYENA_CPU_THREADS", "2")
    m = model(CAUSAL[name], threads=2)
    for call in ({}, {"state": False, "hidden_rows": 5}, {"room": 20}):
        found = hyena_cpu.plan(m.config, 300, batch=2, **call)
        assert found == hyena_cpu.plan(m, 300, batch=2, **call)


def test_a_configuration_that_no_model_can_have_is_not_planned() -> None:
    with pytest.raises(hyena_cpu.ModelError, match="d_model"):
        hyena_cpu.plan(replace(CAUSAL["order2"], d_model=0), 8)


def test_sizes_are_written_for_people() -> None:
    assert [readable(n) for n in (12, 3 << 10, 5 << 19, 7 << 30)] == [
        "12 bytes",
        "3.0 KiB",
        "2.5 MiB",
        "7.0 GiB",
    ]


def test_steps_count_while_a_chunk_is_taken_in() -> None:
    m = model(CAUSAL["order2"])
    state = m.prefill(tokens(100))
    for token in tokens(20):
        m.step(state, int(token))
    held = sum(layer.steps_nbytes for layer in state.layers)  # type: ignore[attr-defined]
    chunk = tokens(280)
    call = {"new": len(chunk), "logits_rows": len(chunk)}
    plan = hyena_cpu.plan(m, 400, **call, held=held)  # type: ignore[arg-type]
    filters = sum(one.nbytes for one in plan_states.taps_of(m))
    assert {("filters for steps", filters), ("steps before", held)} <= set(plan.rows)
    m.max_memory = plan.needed - 1
    with pytest.raises(hyena_cpu.LimitError, match="max-memory"):
        m.extend(state, chunk)
    m.max_memory = plan.needed
    m.extend(state, chunk)
