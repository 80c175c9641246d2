"""One sequence in one convolution: chunks, steps, horizons, rewinds, memory."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import over_threads, rel_l2
from hypothesis import given, settings
from hypothesis import strategies as st
from test_online_conv import PROMISED, causal, decaying, gates_of, normal

from hyena_cpu import kernels, online_bytes
from hyena_cpu.errors import LimitError
from hyena_cpu.filters import ExplicitFilter
from hyena_cpu.online import OnlineConv, extend_each
from hyena_cpu.online_taps import OnlineTaps
from hyena_cpu.spectra import FilterBank
from hyena_cpu.spectra_cache import SpectraCache

G = 2
SKIPS = np.linspace(-1, 1, 16 * G, dtype=np.float32).reshape(G, 16)


def online_taps(taps: np.ndarray, first_unit: int = 0) -> OnlineTaps:
    """The filters taps [G, K, 16] as a model holds them."""
    stored = np.ascontiguousarray(taps.transpose(0, 2, 1).reshape(-1, taps.shape[1]))
    bank = FilterBank(ExplicitFilter(stored), 0, len(stored), SpectraCache(1 << 24))
    return OnlineTaps(bank, first_unit)


def feed(conv: OnlineConv, z: np.ndarray, chunks: list[int], threads: int = 1) -> np.ndarray:
    """The outputs of z [G, S, 16] taken in chunk by chunk."""
    parts = np.split(z, np.cumsum(chunks)[:-1], axis=1)
    return np.concatenate([conv.extend(part, threads) for part in parts], axis=1)


@pytest.mark.parametrize("K", [1, 30, 700, 6000])
@pytest.mark.parametrize(
    "chunks",
    [
        [3000],
        [1] * 300,
        [1, 299, *[1] * 64],
        [600, *[60] * 20, 5, 1, 1],
        [1, *[40] * 70, 199],
        [1500, 700, *[1] * 30, 800, 30],
        [2000, 250, *[1] * 10, 4000, 1, 500, 501],
    ],
)
def test_any_chunks_give_the_convolution(
    rng: np.random.Generator, K: int, chunks: list[int]
) -> None:
    taps, z = decaying(rng, G, K), normal(rng, G, sum(chunks), 16)
    shared = online_taps(taps)
    conv = OnlineConv(shared)
    y = feed(conv, z, chunks)
    assert rel_l2(y, causal(z, taps)) <= PROMISED
    assert conv.position == z.shape[1]
    kept = min(K - 1, z.shape[1])
    np.testing.assert_array_equal(conv.history(), z[:, z.shape[1] - kept :])
    assert conv.nbytes <= online_bytes.state(shared, conv.position)
    back = conv.position - min(100, conv.position)
    conv.rewind(back)  # wherever the base is
    again = feed(conv, z[:, back:], [1] * (z.shape[1] - back))
    assert np.linalg.norm(again - y[:, back:]) <= PROMISED * np.linalg.norm(y[:, -300:])


@over_threads
@pytest.mark.parametrize("first", [0, 500])
def test_gates_and_threads(rng: np.random.Generator, first: int, threads: int) -> None:
    taps, z, gates = decaying(rng, G, 900), normal(rng, G, 640, 16), gates_of(rng, G, 640)
    w = gates["pre"] * z
    want = gates["post"] * (causal(w, taps) + gates["skip"][:, None] * w)
    conv, alone = OnlineConv(online_taps(taps)), OnlineConv(online_taps(taps))
    for begin, end in ((0, first), (first, first + 1), (first + 1, first + 60)):
        cut = slice(begin, end)
        parts = {n: a if n == "skip" else a[:, cut] for n, a in gates.items()}
        if begin < end:
            y = conv.extend(z[:, cut], threads, **parts)
            assert rel_l2(y, want[:, cut]) <= 2 * PROMISED
            np.testing.assert_array_equal(y, alone.extend(z[:, cut], 1, **parts))


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 200), cuts=st.sets(st.integers(1, 199), max_size=6))
def test_few_rows_have_the_bits_of_single_steps(n: int, cuts: set[int]) -> None:
    rng = np.random.default_rng(n)
    taps, z = online_taps(decaying(rng, G, 3000)), normal(rng, G, 1600 + n, 16)
    one, split = OnlineConv(taps), OnlineConv(taps)
    for conv in (one, split):
        conv.extend(z[:, :1600], 1)
    edges = [0, *sorted(c for c in cuts if c < n), n]
    chunks = [1600, *np.diff(edges).tolist()]
    want = feed(one, z[:, 1600:], [1] * n)
    np.testing.assert_array_equal(feed(split, z[:, 1600:], chunks[1:]), want)


def test_horizons_follow_one_another(rng: np.random.Generator) -> None:
    """5,000 steps at the usual horizon of 2,048, and the promise at every part of them."""
    taps, z = decaying(rng, 1, 9000), normal(rng, 1, 5300, 16)
    conv = OnlineConv(online_taps(taps))
    y = feed(conv, z, [300] + [20] * 250)
    want = causal(z, taps)
    for part in np.split(np.arange(5300), 10):
        assert rel_l2(y[:, part], want[:, part]) <= PROMISED


def test_reserved_steps_find_their_room(rng: np.random.Generator) -> None:
    taps, z = decaying(rng, G, 9000), normal(rng, G, 700, 16)
    conv, plain = OnlineConv(online_taps(taps)), OnlineConv(online_taps(taps))
    for c in (conv, plain):
        c.extend(z[:, :200], 1)
    conv.reserve(500)
    held = conv.nbytes
    got, want = (feed(c, z[:, 200:], [1] * 500) for c in (conv, plain))
    assert conv.nbytes == held < plain.nbytes
    assert rel_l2(got, want) <= PROMISED
    conv.reserve(12)  # 512 - 500 are left
    assert conv.nbytes == held
    conv.reserve(2000)
    assert conv.nbytes > held


@pytest.mark.parametrize("K", [20, 300, 5000])
def test_rewind(rng: np.random.Generator, K: int) -> None:
    taps, z = decaying(rng, G, K), normal(rng, G, 1200, 16)
    shared = online_taps(taps)
    conv = OnlineConv(shared)
    conv.extend(z[:, :1000], 1)
    want = feed(conv, z[:, 1000:], [1] * 200)
    conv.rewind(1100)
    assert conv.position == 1100
    feed(conv, normal(rng, G, 60, 16), [60])
    conv.rewind(1080)
    np.testing.assert_array_equal(feed(conv, z[:, 1080:], [60, 60]), want[:, 80:])
    conv.rewind(1200)
    if K < 1000:
        with pytest.raises(LimitError, match=rf"cannot rewind to 500: .* reaches {K - 1} rows"):
            conv.rewind(500)
    else:
        conv.rewind(600)  # before the base: to rounding
        np.testing.assert_array_equal(conv.history(), z[:, :600])
        assert (
            rel_l2(feed(conv, z[:, 600:], [1] * 50 + [550]), causal(z, taps)[:, 600:]) <= PROMISED
        )
        conv.rewind(0)
        assert conv.history().shape == (G, 0, 16)
        assert rel_l2(feed(conv, z, [1200]), causal(z, taps)) <= PROMISED
    with pytest.raises(LimitError, match="the sequence is at 1200"):
        conv.rewind(1201)


def test_rewind_of_an_endless_schedule(rng: np.random.Generator) -> None:
    """Back across the point where old inputs were dropped, then on."""
    taps, z = decaying(rng, G, 60), normal(rng, G, 5000, 16)
    straight, conv = OnlineConv(online_taps(taps, 3)), OnlineConv(online_taps(taps, 3))
    want = feed(straight, z, [1] + [40] * 124 + [39])
    feed(conv, z[:, :2060], [1] + [40] * 51 + [19])
    for n in (1, 9, 20, 120, 128):
        conv.rewind(2060 - n)
        np.testing.assert_array_equal(conv.history(), z[:, 2060 - n - 59 : 2060 - n])
        np.testing.assert_array_equal(
            feed(conv, z[:, 2060 - n : 2060], [1] * n), want[:, 2060 - n : 2060]
        )
    np.testing.assert_array_equal(feed(conv, z[:, 2060:], [60] * 49), want[:, 2060:])
    conv.rewind(4999)
    np.testing.assert_array_equal(conv.history(), z[:, 4999 - 59 : 4999])
    with pytest.raises(LimitError, match="cannot rewind to 2109: the inputs before it"):
        conv.rewind(2109)


def test_forks_share_the_history_and_nothing_else(rng: np.random.Generator) -> None:
    taps, z = decaying(rng, G, 3000), normal(rng, G, 1100, 16)
    conv = OnlineConv(online_taps(taps))
    conv.extend(z[:, :1000], 1)
    early = conv.fork()
    conv.extend(z[:, 1000:1050], 1)
    late = conv.fork()
    want = conv.extend(z[:, 1050:], 1)
    for twin in (early, late):
        twin.extend(normal(rng, G, 300, 16), 1)
        twin.rewind(1000)
    np.testing.assert_array_equal(conv.history(), z)
    twin = late.fork()
    twin.extend(z[:, 1000:1050], 1)
    np.testing.assert_array_equal(twin.extend(z[:, 1050:], 1), want)


def test_batches_have_the_bits_of_single_sequences(rng: np.random.Generator) -> None:
    shared = online_taps(decaying(rng, G, 3000))
    lengths = [0, 3, 700, 2047]
    z = [normal(rng, G, n + 50, 16) for n in lengths]
    convs = [OnlineConv(shared) for _ in lengths]
    alone = [OnlineConv(shared) for _ in lengths]
    for b, n in enumerate(lengths[1:], 1):
        for conv in (convs[b], alone[b]):
            feed(conv, z[b][:, :n], [1] * n)
    skip, post = SKIPS, normal(rng, G, 4, 16)
    for s in range(50):
        rows = [z[b][:, n + s : n + s + 1] for b, n in enumerate(lengths)]
        y = extend_each(convs, np.concatenate(rows, axis=1), 2, skip=skip, post=post)
        for b, row in enumerate(rows):
            want = alone[b].extend(row, 1, skip=skip, post=post[:, b : b + 1])
            np.testing.assert_array_equal(y[:, b : b + 1], want)
    assert [conv.position for conv in convs] == [n + 50 for n in lengths]


@pytest.mark.parametrize("K", [1, 50, 1500, 40_000])
@pytest.mark.parametrize("length", [0, 700, 9000])
def test_memory_is_as_declared(rng: np.random.Generator, K: int, length: int) -> None:
    shared = online_taps(decaying(rng, G, K))
    conv = OnlineConv(shared)
    if length:
        conv.extend(normal(rng, G, length, 16), 1)
    conv.extend(normal(rng, G, 1, 16), 1)
    declared = online_bytes.state(shared, length)
    assert conv.nbytes <= declared
    for _ in range(70):  # a finite filter's memory stays where it is
        conv.extend(normal(rng, G, 60, 16), 1)
    assert 0.3 * declared <= conv.nbytes <= online_bytes.state(shared, length + 4200)


def test_filters_are_prepared_once(rng: np.random.Generator) -> None:
    shared = online_taps(decaying(rng, G, 9000))
    small = shared.filter(64, 1)
    assert shared.filter(16, 1) is small
    assert small.known == kernels.head_taps
    large = shared.filter(1024, 1)
    assert large is small
    assert (large.known, large.taps) == (1024, 9000)
    assert kernels.OnlineState(large, 100, 0).horizon == 128


def test_a_filter_whose_first_taps_found_no_memory_is_made_later(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = online_taps(decaying(rng, G, 9000))

    def fails(*_: object) -> np.ndarray:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(shared.bank, "tiles", fails)
        with pytest.raises(MemoryError):
            shared.filter(1, 1)
    assert shared.filter(1, 1).known == kernels.head_taps


def test_no_room_is_made_beyond_the_longest_sequence(rng: np.random.Generator) -> None:
    taps, z = decaying(rng, G, 400), normal(rng, G, 400, 16)
    free = online_taps(taps)
    bounded = OnlineTaps(free.bank, longest=400)
    assert bounded.plan(0, None).horizon == bounded.plan(0, 10**6).horizon == 512
    assert free.plan(0, None).kind == "endless"
    assert bounded.plan(350, None).horizon == 64
    conv = OnlineConv(bounded)
    assert rel_l2(feed(conv, z, [300] + [1] * 100), causal(z, taps)) <= PROMISED
    assert conv.nbytes <= online_bytes.state(bounded, 300) < online_bytes.state(free, 300)
