"""How long single steps take: identical runs, and of each step its shortest time.

What happens in the same step of every run is the program's; what does not is the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

RUNS = 3
STEPS, QUICK_STEPS = 16_384, 2_048

Step = Callable[[int], object]


def spread(begin: Callable[[], Step], steps: int) -> dict[str, float]:
    """Seconds: the median, 99th percentile and maximum of the steps, and the first one apart, which
    may have sums to prepare. begin() is where each run starts.
    """
    best = np.full(steps + 1, np.inf)
    for _ in range(RUNS):
        step, clock = begin(), time.perf_counter
        for s in range(steps + 1):
            start = clock()
            step(8)
            best[s] = min(best[s], clock() - start)
    first, rest = best[0], best[1:]
    return {
        "seconds": float(np.median(rest)),
        "p99": float(np.percentile(rest, 99)),
        "max": float(rest.max()),
        "first": float(first),
    }


def ours(options: dict[str, Any], length: int, steps: int) -> dict[str, float]:
    """Of the HyenaDNA shape after a prompt; nobody says how many tokens will follow."""
    from shapes import hyenadna
    from sides import random_ids

    from hyena_cpu.model import Model

    weights = hyenadna(options["size"], length + steps + 1)
    model = Model(weights, None, threads=options["threads"])
    prompt = model.prefill(random_ids(length))

    def begin() -> Step:
        state = prompt.fork()
        return lambda token: model.step(state, token)

    return spread(begin, steps)
