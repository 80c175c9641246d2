"""Whole sequences together, in blocks, and as continuations: the numbers of one at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_contracts import close, pieces
from toy import BIDIRECTIONAL, CAUSAL, LENGTH, VOCAB, model, tokens

import hyena_cpu
from hyena_cpu import InputError, LimitError, planner
from hyena_cpu.batches import grouped

every = pytest.mark.parametrize(
    "config", [*CAUSAL.values(), BIDIRECTIONAL], ids=[*CAUSAL, "bidirectional"]
)
causal = pytest.mark.parametrize("name", CAUSAL)


@every
@pytest.mark.parametrize("threads", [1, 3])
def test_many_have_the_bits_of_each(config: hyena_cpu.config.ModelConfig, threads: int) -> None:
    m = model(config, threads=threads)
    sequences = [tokens(n, seed=n) for n in (1, 200, 3, 2, 64, 65, 1, 399)]
    for layer in (0, 1, -1):
        for got, ids in zip(m.hidden_each(sequences, layer), sequences, strict=True):
            assert np.array_equal(got, m.hidden(ids, layer))
    for scores, ids in zip(m.token_logprobs_each(sequences), sequences, strict=True):
        assert np.array_equal(scores, m.token_logprobs(ids))
    assert m.hidden_each([]) == []


@given(lengths=st.lists(st.integers(1, 90), max_size=30), rows=st.integers(1, 200))
@settings(deadline=None)
def test_batches_keep_order_and_size(lengths: list[int], rows: int) -> None:
    sequences = [np.full(n, i, np.int32) for i, n in enumerate(lengths)]
    found = list(grouped(sequences, len, rows))
    assert [len(ids) for batch in found for ids in batch] == lengths
    for batch in found:
        assert len(batch) == 1 or sum(map(len, batch)) <= rows
    for batch, following in pairwise(found):
        assert sum(map(len, batch)) + len(following[0]) > rows


def test_a_memory_limit_makes_batches_smaller_not_numbers() -> None:
    free = model(CAUSAL["order2"])
    sequences = [tokens(100, seed=i) for i in range(60)]
    limit = hyena_cpu.plan(free, LENGTH, batch=2, state=False).total
    bounded = model(CAUSAL["order2"], max_memory=limit)
    assert planner.batch_rows(bounded) < planner.batch_rows(free)
    for got, want in zip(
        bounded.token_logprobs_each(sequences), free.token_logprobs_each(sequences), strict=True
    ):
        assert np.array_equal(got, want)
    with pytest.raises(LimitError):
        model(CAUSAL["order2"], max_memory=1 << 20).hidden_each(sequences)


@causal
@pytest.mark.parametrize("rows", [1, 7, 64, 4096])
def test_blocks_are_the_whole(name: str, rows: int) -> None:
    m, ids = model(CAUSAL[name]), tokens(130)
    for layer in (0, 1, -1):
        blocks = list(m.hidden_blocks(ids, layer, rows))
        assert [len(b) for b in blocks[:-1]] == [rows] * (len(blocks) - 1)
        assert np.array_equal(np.concatenate(blocks), m.hidden(ids, layer))
    first, scores = zip(*m.logprob_blocks(ids), strict=True)
    assert list(first) == list(np.cumsum([0, *(len(s) for s in scores[:-1])]))
    rows_of = np.concatenate(scores)
    assert rows_of.shape == (130, m.logits_width)
    np.testing.assert_allclose(np.exp(rows_of).sum(axis=1), 1)
    assert np.array_equal(rows_of[np.arange(129), ids[1:]], m.token_logprobs(ids))


@causal
@pytest.mark.parametrize("prompt", [1, 40, 250])
def test_continuations_leave_the_state_alone(name: str, prompt: int) -> None:
    m, ids = model(CAUSAL[name]), tokens(prompt)
    state, scores = m.prefill_scored(ids)
    assert np.array_equal(scores, m.token_logprobs(ids))
    before = [a.copy() for a in pieces(state)]
    for n in (1, 2, 30, 149, 5):
        after = tokens(n, seed=n)
        got = m.token_logprobs_after(state, after)
        want = m.token_logprobs(np.concatenate([ids, after]))[prompt - 1 :]
        close(got, want)
    several = [tokens(n, seed=n) for n in (1, 2, 149, 1, 149, 30)]
    for got, after in zip(m.token_logprobs_after_each(state, several), several, strict=True):
        assert np.array_equal(got, m.token_logprobs_after(state, after))
    after = several[-1]
    assert state.position == prompt
    for got, want in zip(pieces(state), before, strict=True):
        assert np.array_equal(got, want)
    twin = m.prefill(ids)
    for token in range(5):  # and it goes on as if nothing had been asked
        assert np.array_equal(m.step(state, token), m.step(twin, token))
    close(
        m.token_logprobs_after(state, after),
        m.token_logprobs(np.concatenate([ids, np.arange(5), after]))[prompt + 4 :],
    )


@causal
@pytest.mark.parametrize("prefix", [1, 2, 40, 250])
def test_branches_of_a_sequence(name: str, prefix: int) -> None:
    m, trunk = model(CAUSAL[name]), tokens(prefix + 149)
    branches = [tokens(n, seed=n) for n in (1, 2, 149, 1, 149, 30)]
    found = m.token_logprobs_branching(trunk, branches, prefix)
    want = m.token_logprobs(trunk)
    close(found[0], want)
    if m.branches:
        assert np.array_equal(found[0], want)
    for got, after in zip(found[1:], branches, strict=True):
        close(got, m.token_logprobs(np.concatenate([trunk[:prefix], after]))[prefix - 1 :])
        if m.branches:
            alone = model(CAUSAL[name], threads=2).token_logprobs_branching(trunk, [after], prefix)
            assert np.array_equal(got, alone[1])
    (alone,) = m.token_logprobs_branching(trunk, [], prefix)
    close(alone, want)


def test_branches_in_several_passes() -> None:
    """A memory limit makes passes smaller; the numbers stay."""
    trunk, branches = tokens(200), [tokens(100, seed=seed) for seed in range(12)]
    free = model(CAUSAL["order3"])
    limit = hyena_cpu.plan(free, LENGTH, batch=2, state=False).total
    bounded = model(CAUSAL["order3"], max_memory=limit)
    assert planner.batch_rows(bounded) < 12 * 100 < planner.batch_rows(free)
    for got, want in zip(
        bounded.token_logprobs_branching(trunk, branches, 100),
        free.token_logprobs_branching(trunk, branches, 100),
        strict=True,
    ):
        assert np.array_equal(got, want)
    with pytest.raises(LimitError):
        model(CAUSAL["order3"], max_memory=1 << 20).token_logprobs_branching(trunk, branches, 100)


@pytest.mark.parametrize(("prefix", "n"), [(0, 1), (20, 1), (-1, 1), (15, 6)])
def test_branches_that_do_not_fit(prefix: int, n: int) -> None:
    m = model(CAUSAL["order2"])
    with pytest.raises(InputError, match="do not fit a trunk of 20"):
        m.token_logprobs_branching(tokens(20), [tokens(n)], prefix)


def test_continuations_need_a_beginning_and_room() -> None:
    m = model(CAUSAL["order2"])
    with pytest.raises(InputError, match="it is empty"):
        m.token_logprobs_after(m.new_state(), [1])
    state = m.prefill(tokens(10))
    with pytest.raises(InputError):
        m.token_logprobs_after(state, [VOCAB + 50])
    if m.max_length is not None:
        with pytest.raises(LimitError):
            m.token_logprobs_after(state, tokens(m.max_length))
