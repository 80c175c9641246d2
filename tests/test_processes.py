"""One model among many threads and processes (cases C070, C071 and C079)."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from toy import CAUSAL, model, tokens

from hyena_cpu import kernels

HYBRID = CAUSAL["finite_hybrid"]


def greedy(m, prompt: np.ndarray, n: int = 24) -> list[int]:  # type: ignore[no-untyped-def]
    state = m.prefill(prompt)
    written = []
    for _ in range(n):
        written.append(int(state.logits.argmax()))
        m.step(state, written[-1])
    return written


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_finishes_with_the_same_bits() -> None:
    m = model(HYBRID, threads=2)
    ids = tokens(300)
    want = m.logits(ids)  # the parent's threads exist from here on
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a pool without threads behind it would wait for ever
        code = 1
        try:
            os.write(writing, b"same" if np.array_equal(m.logits(ids), want) else b"diff")
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert os.read(reading, 4) == b"same"
    os.close(reading)
    assert np.array_equal(m.logits(ids), want)


def test_many_threads_share_one_model() -> None:
    m = model(HYBRID, threads=2)
    prompts = [tokens(20 + 5 * i, seed=i) for i in range(8)]
    alone = [greedy(m, p) for p in prompts]
    with ThreadPoolExecutor(8) as pool:
        for together in pool.map(lambda _: [greedy(m, p) for p in prompts], range(8)):
            assert together == alone


def test_python_goes_on_while_one_kernel_runs() -> None:
    x = np.ones((8192, 512), np.float32)
    packed = kernels.PackedLinear(np.ones((2048, 512), np.float32))
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    beside = threading.Thread(target=tick)
    beside.start()
    try:
        begin = time.perf_counter()
        kernels.linear(x, packed, threads=1)  # one call of some 17 Gflop: no line of Python in it
        end = time.perf_counter()
    finally:
        stop.set()
        beside.join()
    # With the lock held for the whole call there would be none between its first and last tenth.
    inner = (end - begin) / 10
    assert sum(begin + inner < t < end - inner for t in ticks) > 3


def test_a_model_says_how_to_send_it_to_another_process() -> None:
    with pytest.raises(TypeError, match=r"send its path and call hyena_cpu\.load"):
        pickle.dumps(model(HYBRID))


def test_a_state_says_how_it_is_copied() -> None:
    state = model(HYBRID).prefill(tokens(20))
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"fork\(\) copies it, and save\(\)"):
            copied(state)
