"""A long convolution under way, saved and restored: the same bits over horizons and bases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_online import G, feed, online_taps
from test_online_conv import decaying, normal

from hyena_cpu import state_file
from hyena_cpu.online import OnlineConv
from hyena_cpu.online_taps import OnlineTaps
from hyena_cpu.step_plan import SURE_REWIND


def through_a_file(conv: OnlineConv, taps: OnlineTaps, path: Path) -> OnlineConv:
    tree = {"position": conv.position, "conv": conv.parts()}
    state_file.write(path, tree, fingerprint="none", isa="none")
    again = OnlineConv(taps)
    with state_file.reading(path) as file:
        again.restore(file.parts().part("conv"), 1)
    return again


@pytest.mark.parametrize("K", [1, 20, 300, 6000])
@pytest.mark.parametrize(
    "before",
    [
        [],
        [700],
        [1] * 50,
        [700, *[40] * 8],
        [700, *[40] * 8, 500, *[1] * 70],
        [1, *[40] * 55],  # past the first horizon
        [300, *[30] * 200],  # and past many, with old inputs dropped
    ],
)
def test_the_bits_go_on(
    rng: np.random.Generator, K: int, before: list[int], tmp_path: Path
) -> None:
    """Over the end of the horizon, a chunk, a rewind, and a second file."""
    taps = decaying(rng, G, K)
    shared = online_taps(taps, 3)
    conv = OnlineConv(shared)
    if before:
        feed(conv, normal(rng, G, sum(before), 16), before)
        conv.reserve(64)
    again = through_a_file(conv, online_taps(taps, 3), tmp_path / "s")
    assert (again.position, again.oldest) == (conv.position, conv.oldest)
    assert again.nbytes <= conv.nbytes
    np.testing.assert_array_equal(again.history(), conv.history())
    for calls in ([40] * 60, [3000], [1] * 20):
        rows = normal(rng, G, sum(calls), 16)
        want = feed(conv, rows, calls)
        np.testing.assert_array_equal(feed(again, rows, calls), want)
        back = conv.position - min(sum(calls), SURE_REWIND)
        for one in (conv, again):
            one.rewind(back)
        again = through_a_file(again, shared, tmp_path / "s")


def test_reserved_room_is_kept(rng: np.random.Generator, tmp_path: Path) -> None:
    taps = online_taps(decaying(rng, G, 6000))
    conv = OnlineConv(taps)
    conv.extend(normal(rng, G, 700, 16), 1)
    conv.reserve(200)
    again = through_a_file(conv, taps, tmp_path / "s")
    held = again.nbytes
    assert held == conv.nbytes
    feed(again, normal(rng, G, 200, 16), [1] * 200)
    assert again.nbytes == held
