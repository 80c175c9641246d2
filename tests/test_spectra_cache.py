"""Which transforms are kept, and what a pass gives back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from freed import give_back_freed
from toy import CAUSAL, LENGTH, model, tokens

from hyena_cpu import kernels
from hyena_cpu.spectra_cache import SpectraCache

BUDGET = 1 << 20
SPECTRUM = np.zeros(BUDGET // 16, np.float32)  # a quarter of it


def use(cache: SpectraCache, name: int) -> str:
    key = (name, 0, 0)
    if cache.get(key) is not None:
        return "held"
    if not cache.admits(key, SPECTRUM.nbytes):
        return "made"
    cache.put(key, SPECTRUM)
    return "kept"


def test_a_spectrum_is_kept_from_its_second_use_on() -> None:
    cache = SpectraCache(BUDGET)
    assert [use(cache, 1) for _ in range(4)] == ["made", "kept", "held", "held"]
    assert cache.nbytes == SPECTRUM.nbytes
    small = np.zeros(BUDGET // 1024, np.float32)
    assert cache.admits((2, 0, 0), small.nbytes)
    cache.clear()
    assert (cache.nbytes, use(cache, 1)) == (0, "made")


def test_filters_that_take_turns_do_not_push_one_another_out() -> None:
    cache = SpectraCache(BUDGET)
    rounds = [[use(cache, name) for name in range(6)] for _ in range(4)]
    assert rounds[0] == ["made"] * 6
    assert rounds[1] == ["kept"] * 4 + ["made"] * 2
    assert rounds[2] == rounds[3] == ["held"] * 4 + ["made"] * 2


def test_what_is_needed_no_more_makes_room() -> None:
    cache = SpectraCache(BUDGET)
    for _ in range(2):
        for name in range(4):
            use(cache, name)
    assert [[use(cache, name) for name in (8, 9)] for _ in range(3)] == [
        ["made", "made"],
        ["kept", "kept"],
        ["held", "held"],
    ]
    assert cache.nbytes == BUDGET


def test_a_limit_acts_at_once_and_until_the_next() -> None:
    cache = SpectraCache(BUDGET)
    for _ in range(2):
        for name in range(4):
            use(cache, name)
    cache.limit(BUDGET // 2)
    assert cache.nbytes == BUDGET // 2
    assert [use(cache, 9) for _ in range(3)] == ["made", "kept", "held"]
    assert cache.nbytes == BUDGET // 2
    cache.limit(-5)
    assert (cache.nbytes, use(cache, 9), use(cache, 9)) == (0, "made", "made")
    cache.limit(10 * BUDGET)
    assert cache.room == BUDGET


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux memory figures")
def test_a_state_does_not_hold_what_its_pass_has_left() -> None:
    """Histories lie in memory that the layers of a pass share."""

    def resident() -> int:
        with Path("/proc/self/status").open() as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

    memory, size = kernels.Memory(), 64 << 20
    m = model(CAUSAL["order3"])
    weights = m.blocks[0].mixer.in_proj
    give_back_freed()  # models of earlier tests
    before = resident()
    x = np.ones((size // 4 // 80, 20), np.float32)
    offsets = np.array([0, len(x)])
    taps = np.ones((1, 80), np.float32)
    gates, z = kernels.project_conv(
        x, None, weights.packed, weights.bias, taps, None, None, offsets, 4, memory=memory
    )
    held = z.strides[0] * len(z)
    del gates, x
    assert resident() - before > 2 * held  # left to a later layer
    memory.close()
    give_back_freed()
    assert held // 2 < resident() - before < held + (8 << 20)
    assert len(m.logits(tokens(LENGTH))) == LENGTH
