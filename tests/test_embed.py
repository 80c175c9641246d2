"""Sequences to vectors: the same bits however they are computed (C005, C025)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, rel_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import golden
from toy import CAUSAL, LENGTH, model, tokens, weights

import hyena_cpu
from hyena_cpu import planner, pooling
from hyena_cpu.config import TokenizerConfig
from hyena_cpu.dry_run import DryRun
from hyena_cpu.embed import Item, embedded, prepared
from hyena_cpu.errors import InputError, LimitError, NumericError
from hyena_cpu.model import Model
from hyena_cpu.sequences import DnaPolicy, Record, reverse_complement
from hyena_cpu.tokenizers import from_config

CASES = Path(__file__).parent / "cases"
POOLS = ("mean", "last", None)
LAYERS = (0, 1, 2, -1)


@pytest.fixture(scope="module")
def toy() -> Model:
    return model(CAUSAL["order2"])


@pytest.fixture(scope="module")
def dna() -> Model:
    made = weights(CAUSAL["order2"])
    return Model(made, from_config(TokenizerConfig("dna"), Path(), 29), threads=1)


def items(*sequences: np.ndarray | None) -> Iterator[Item]:
    for i, ids in enumerate(sequences):
        yield Item(i, f"r{i}", 0, ids, None if ids is not None else InputError("no"))


def rows(m: Model, *sequences: np.ndarray | None, **options: object) -> list[np.ndarray]:
    """[n, D] of every item."""
    found = embedded(m, items(*sequences), **options)  # type: ignore[arg-type]
    return [np.concatenate([np.zeros((0, m.config.d_model)), *blocks]) for _, blocks in found]


@pytest.mark.parametrize("layer", LAYERS)
def test_vectors_are_those_of_hidden(toy: Model, layer: int) -> None:
    ids = [tokens(n, seed=n) for n in (1, 2, 77, 400)]
    hidden = [toy.hidden(one, layer) for one in ids]
    for got, want in zip(toy.embed(ids, layer, None), hidden, strict=True):
        assert got.dtype == np.float32
        assert np.array_equal(got, want)
    assert np.array_equal(toy.embed(ids, layer, "last"), [h[-1] for h in hidden])
    means = [h.astype(np.float64).mean(axis=0) for h in hidden]
    np.testing.assert_allclose(toy.embed(ids, layer), means, rtol=1e-7, atol=1e-12)


def test_layers_differ(toy: Model) -> None:
    ids = [tokens(50)]
    found = [toy.embed(ids, layer, "last") for layer in LAYERS]
    for i, one in enumerate(found):
        assert one.shape == (1, toy.config.d_model)  # type: ignore[union-attr]
        assert not any(np.array_equal(one, other) for other in found[i + 1 :])


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    pool=st.sampled_from(POOLS),
    layer=st.sampled_from(LAYERS),
    threads=st.sampled_from([1, 2, 3]),
)
def test_company_order_and_threads_change_no_bit(
    lengths: list[int], pool: str | None, layer: int, threads: int
) -> None:
    ids = [tokens(n, seed=i) for i, n in enumerate(lengths)]
    one, many = model(CAUSAL["order2"]), model(CAUSAL["order2"], threads=threads)
    alone = [one.embed([each], layer, pool)[0] for each in ids]  # type: ignore[arg-type]
    together = many.embed(ids[::-1], layer, pool)  # type: ignore[arg-type]
    for got, want in zip(together[::-1], alone, strict=True):
        assert np.array_equal(got, want)


def test_long_and_short_sequences_take_turns() -> None:
    """Short ones are computed together, long ones in blocks, and neither changes a bit."""
    m = model(CAUSAL["finite_hybrid"])
    long = tokens(2 * pooling.BLOCK_ROWS + 5)
    found = rows(m, tokens(9), None, long, None, tokens(9), tokens(3), pool="mean")
    assert [len(r) for r in found] == [1, 0, 1, 0, 1, 1]
    alone = rows(m, long, pool="mean")[0]
    assert np.array_equal(found[2], alone)
    assert np.array_equal(found[0], found[4])
    h = m.hidden(long)
    np.testing.assert_allclose(alone[0], h.astype(np.float64).mean(axis=0), rtol=1e-6, atol=1e-9)
    assert np.array_equal(rows(m, tokens(9), long, pool=None)[1], h)
    assert np.array_equal(rows(m, long, pool="last")[0], h[-1:])


def test_the_mean_is_taken_in_float64(rng: np.random.Generator) -> None:
    """Large values that cancel leave the small ones: float32 sums would lose them."""
    h = rng.normal(size=(10_000, 3)).astype(np.float32)
    h[::2] += 4096
    h[1::2] -= 4096
    want = h.astype(np.float64).mean(axis=0)
    got = pooling.mean(pooling.blocks_of(h))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not np.allclose(h.mean(axis=0, dtype=np.float32), want, rtol=1e-6)
    total, count = pooling.total(pooling.blocks_of(h))
    assert (count, total.dtype) == (10_000, np.float64)


def test_groups_stay_within_their_tokens(monkeypatch: pytest.MonkeyPatch, toy: Model) -> None:
    seen: list[list[int]] = []
    each = toy.hidden_each

    def watched(sequences, layer=-1):
        seen.append([len(ids) for ids in sequences])
        return each(sequences, layer)

    monkeypatch.setattr(toy, "hidden_each", watched)
    monkeypatch.setattr("hyena_cpu.planner.BATCH_ROWS", 100)
    lengths = [30, 30, 40, 1, 99, 1, 200, 50, 50]
    found = rows(toy, *(tokens(n) for n in lengths), pool=None)
    assert [len(r) for r in found] == lengths
    assert seen == [[30, 30, 40], [1, 99], [50, 50]]  # 1 and 200 are alone


def test_a_group_fits_the_memory_allowed(toy: Model) -> None:
    ids = [tokens(50, seed=i) for i in range(20)]
    for length in (200, 51):  # the least that is worked on together needs more than the second
        limit = planner.plan(toy, length, state=False, hidden_rows=length).needed
        bounded = model(CAUSAL["order2"], max_memory=limit)
        assert np.array_equal(bounded.embed(ids), toy.embed(ids))
        with pytest.raises(LimitError, match="max-memory"):
            bounded.embed([tokens(LENGTH)])


def test_the_plan_is_that_of_the_largest_group(toy: Model) -> None:
    def largest(*sequences: object) -> planner.Plan:
        with DryRun(toy) as dry:
            for _, blocks in embedded(dry, items(*sequences), pool=None):
                next(blocks, None)
        return dry.largest

    found = largest(tokens(300), None, *(tokens(100) for _ in range(200)))
    most = planner.BATCH_ROWS // 100 * 100
    together = planner.plan(toy, 300, -(-most // 300), state=False, hidden_rows=most)
    assert found.needed == together.needed > planner.plan(toy, 100, state=False).needed
    alone = largest(tokens(300))
    assert alone.needed == planner.plan(toy, 300, state=False, hidden_rows=300).needed
    assert largest(None).rows == ()


def test_items_come_as_they_are_needed(toy: Model) -> None:
    """A source without end can be read: only one group is taken from it."""

    def endless() -> Iterator[Item]:
        while True:
            yield Item(0, "r", 400, tokens(LENGTH))

    found = embedded(toy, endless(), pool="last")
    _, blocks = next(found)
    assert np.array_equal(next(blocks)[0], toy.hidden(tokens(LENGTH))[-1])


@pytest.mark.parametrize(
    ("layer", "pool", "message"),
    [
        (3, "mean", r"layer is 3, must be in 0\.\.2, or -1 for the last norm"),
        (-2, "mean", "layer is -2"),
        (0, "max", "pool is 'max', must be mean, last or None"),
    ],
)
def test_unknown_layers_and_pools(toy: Model, layer: int, pool: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        toy.embed([tokens(3)], layer, pool)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        toy.embed([], layer, pool)  # type: ignore[arg-type]


def test_bad_sequences_are_refused(toy: Model) -> None:
    for bad, message in (([], "empty"), ([99], "outside"), ([0.5], "integers")):
        with pytest.raises(InputError, match=message):
            toy.embed([tokens(3), bad])  # type: ignore[list-item]
    with pytest.raises(LimitError, match=r"401 tokens.*at most 400"):
        toy.embed([tokens(LENGTH + 1)])
    assert toy.embed([]).shape == (0, toy.config.d_model)  # type: ignore[union-attr]
    assert toy.embed([], pool=None) == []


def test_numbers_that_are_not_finite_end_the_run() -> None:
    made = weights(CAUSAL["order2"])
    made.tensors["embedding.weight"][5] = np.nan
    m = Model(made, None, threads=1)
    with pytest.raises(NumericError, match=r"record 2 \('1'\) are not finite"):
        m.embed([[1, 2], [1, 5]])


def test_records_become_items(dna: Model) -> None:
    records = [
        Record(0, "a", "acgTN"),
        Record(1, "b", ""),
        Record(2, "c", "AC-GT"),
        Record(3, "a", "A" * (LENGTH + 1)),
        Record(4, "d", "U"),
    ]
    found = list(prepared(dna, records, DnaPolicy(rna="error")))
    assert [(i.index, i.id, i.length) for i in found] == [
        (0, "a", 5), (1, "b", 0), (2, "c", 5), (3, "a", 401), (4, "d", 1)
    ]  # fmt: skip
    assert found[0].ids is not None
    assert found[0].ids.tolist() == [7, 8, 9, 10, 11]
    assert [i.ids is None for i in found] == [False, True, True, True, True]
    words = ("ok", "empty", "'-' at position 3", "at most 400", "RNA letter")
    for item, word in zip(found, words, strict=True):
        assert word in item.status


def test_strand_and_special_tokens(dna: Model) -> None:
    record = Record(0, "a", "AACGTTTTTN")
    (item,) = prepared(dna, [record], DnaPolicy(), "rc")
    other = Record(0, "a", reverse_complement(record.sequence))
    (want,) = prepared(dna, [other], DnaPolicy())
    assert np.array_equal(item.ids, want.ids)  # type: ignore[arg-type]
    for style, ends in (("hf", (7, 1)), ("cls-sep", (0, 1))):
        (marked,) = prepared(dna, [record], DnaPolicy(), "fwd", style)  # type: ignore[arg-type]
        assert marked.ids is not None
        assert (marked.ids[0], marked.ids[-1]) == ends
        assert marked.length == 10
    for strand, style, places in (
        ("fwd", None, range(10)),
        ("fwd", "hf", range(11)),
        ("fwd", "cls-sep", range(-1, 11)),
        ("rc", None, range(9, -1, -1)),
        ("rc", "hf", range(9, -2, -1)),
        ("rc", "cls-sep", range(10, -2, -1)),
    ):
        (one,) = prepared(dna, [record], DnaPolicy(), strand, style)  # type: ignore[arg-type]
        assert [one.first + one.step * k for k in range(one.n_tokens)] == list(places)
    (none,) = prepared(dna, [Record(0, "a", "")], DnaPolicy(), "fwd", "cls-sep")
    assert none.ids is None  # special tokens do not make a sequence out of nothing


def test_golden_hidden_states_of_every_layer() -> None:
    name = "hyenadna/hf_causal_lm"
    m = Model(golden(name), None, threads=2)
    with np.load(GOLDEN / f"{name}.npz") as data:
        ids = list(data["input_ids_a"])
        for layer, key in ((0, "hidden_embed_a"), (1, "hidden_block0_a"), (-1, "last_hidden_a")):
            for got, want in zip(m.embed(ids, layer, None), data[key], strict=True):
                assert rel_l2(got, want) < 2e-5
            assert rel_l2(m.embed(ids, layer), data[key].mean(axis=1)) < 2e-5


def test_a_layer_takes_the_memory_of_those_up_to_it() -> None:
    ids, whole = tokens(300), model(CAUSAL["order2"])
    none, every = (
        hyena_cpu.plan(whole, len(ids), hidden_rows=len(ids), state=False, depth=depth).needed
        for depth in (0, None)
    )
    assert none < every
    tight = model(CAUSAL["order2"], max_memory=none)
    got = tight.embed([ids], layer=0)
    np.testing.assert_array_equal(got, whole.embed([ids], layer=0))
    with pytest.raises(LimitError, match="max-memory"):
        tight.embed([ids])
