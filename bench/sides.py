"""One side of a comparison in a process of its own: each line of JSON it reads gets one in answer.

    python bench/sides.py '{"side": "hyena-cpu", "size": "small", "threads": 2}'

    {"do": "prefill", "length": 8192}     -> {"seconds": of one call, "faults": pages touched anew}
    {"do": "decode", "length": 8192}      -> the same of a token after so long a prompt
    {"do": "latency", "length": 8192, "steps": 2048}  -> {"seconds": median of single steps, "p99",
                                             "max", "first"}
    {"do": "state", "length": 8192}       -> {"bytes": that a sequence of this length is kept in}
    {"do": "conv", "length": 8192}        -> the same of one convolution of `convs.py`
    {"do": "memory", "length": 8192}      -> {"bytes": most in memory during a call, less before}
    {"do": "floor", "of": "prefill", "length": 8192}  -> {"seconds": that the machine itself needs}

The first request for a length makes what is kept, and a call that is not told of. Each answer
follows calls not told for AWAKE_S, one at least: some things are kept from their second use on, and
it takes as long until a processor that has waited is fast again. Calls of LONG_S and more go
without. Calls that are short are repeated for SPELL_S and their median told; of decode DECODE
tokens are a call. Where something is not there, or fails for want of memory, the answer is
{"absent": why}.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import latency

from hyena_cpu.errors import HyenaError

DECODE = 64  # steps of a call
LONG_PROMPT = 65_536  # tokens that attention takes in within minutes
MOST_MEMORY = 1 << 40  # bytes: no limit, but under one freed memory is not kept
ROOM = 16 * DECODE  # tokens after the prompt, from where a sequence goes back to it
AWAKE_S, SPELL_S, LONG_S = 0.3, 0.1, 10.0

Options = dict[str, Any]
Call = Callable[[], Any]


class AbsentError(Exception):
    """The side cannot run here; the message says why."""


def pin(threads: int) -> None:
    """Holds this process to so many CPUs, the first ones, each on a core of its own."""
    if not hasattr(os, "sched_setaffinity"):
        return
    chosen: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        chosen.setdefault(path.read_text() if path.exists() else str(cpu), cpu)
    if len(chosen) >= threads:
        os.sched_setaffinity(0, sorted(chosen.values())[:threads])


def random_ids(length: int) -> Any:
    import numpy as np

    return np.random.default_rng(1).integers(7, 11, length).astype(np.int32)


def stepper(step: Callable[[int], object], back: Callable[[], object]) -> Call:
    """DECODE steps of the same token; `back` takes the sequence back to its prompt."""
    taken = 0

    def run() -> None:
        nonlocal taken
        if taken == ROOM:
            back()
            taken = 0
        for _ in range(DECODE):
            step(8)
        taken += DECODE

    return run


# ---- the sides: functions (options, what, length) -> the call that is timed


def ours(options: Options, what: str, length: int) -> Call:
    """hyena-cpu on the HyenaDNA shape."""
    from shapes import hyenadna

    from hyena_cpu.model import Model

    room = ROOM if what in ("decode", "state") else 0
    weights = hyenadna(options["size"], length + room)
    model = Model(
        weights,
        None,
        threads=options["threads"],
        dtype=options.get("dtype", "float32"),
        max_memory=MOST_MEMORY if what == "memory" else None,
    )
    ids = random_ids(length)
    if what == "memory":
        return lambda: model.embed([ids], pool="last")
    if what == "prefill":
        return lambda: model.hidden(ids)
    prompt = model.prefill(ids, max_new_tokens=room, history=options.get("history", "keep"))
    if what == "state":
        return lambda: prompt.nbytes
    state = prompt.fork()

    def back() -> None:
        nonlocal state
        state = prompt.fork()

    return stepper(lambda token: model.step(state, token), back)


def torch_hyena(options: Options, what: str, length: int) -> Call:
    """The structure of the original in PyTorch."""
    from shapes import SIZES, hyenadna

    torch = wanted("torch")
    torch.set_num_threads(options["threads"])
    from torch_hyenadna import TorchHyenaDna

    if what == "state":
        raise AbsentError("it keeps nothing but the tokens")
    model = TorchHyenaDna(hyenadna(options["size"], length).tensors, SIZES[options["size"]][1])
    ids = random_ids(length)
    return lambda: model(ids)


def torch_attention(options: Options, what: str, length: int) -> Call:
    """Attention of equal size in PyTorch."""
    from shapes import SIZES

    wanted("torch").set_num_threads(options["threads"])
    from torch_attention import TorchAttention

    model, ids = TorchAttention(*SIZES[options["size"]], length + ROOM), random_ids(length)
    if what in ("prefill", "memory"):
        return lambda: model.hidden(ids)
    model.fill(length, ROOM)
    if what == "state":
        return lambda: model.cache_bytes
    return stepper(model.step, lambda: model.back(length))


def llama(options: Options, what: str, length: int) -> Call:
    """Attention of equal size in llama.cpp."""
    from shapes import SIZES

    wanted("llama_cpp")
    wanted("gguf")
    from llama_attention import LlamaAttention

    kept = what in ("decode", "state")
    if kept and length > LONG_PROMPT:
        raise AbsentError(f"its prompt of {length} tokens takes many minutes")
    room = ROOM if kept else 0
    model = LlamaAttention(*SIZES[options["size"]], length + room, options["threads"])
    ids = random_ids(length)
    if not kept:
        return lambda: model.begin(ids, room)
    model.begin(ids, room)
    if what == "state":
        return lambda: model.cache_bytes
    return stepper(model.step, lambda: model.back(length))


def conv(options: Options, what: str, length: int) -> Call:  # noqa: ARG001
    """One convolution by the library `peer`."""
    import convs

    try:
        return convs.build(options["peer"], length)[0]
    except ImportError as error:
        raise AbsentError(f"{options['peer']} is not installed: {error}") from None


def wanted(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise AbsentError(f"{module} is not installed: {error}") from None


SIDES: dict[str, Callable[[Options, str, int], Call]] = {
    "hyena-cpu": ours,
    "PyTorch Hyena": torch_hyena,
    "PyTorch attention": torch_attention,
    "llama.cpp": llama,
    "conv": conv,
}


# ---- answers


class Answers:
    """What the process replies; the call of the last request is kept for the next."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._made: tuple[str, int] | None = None
        self._call: Call = lambda: None
        self._lasts = 0.0

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        what, length = request["do"], request["length"]
        if what == "floor":
            return {"seconds": floor(self._options, request["of"], length)}
        if what == "latency":
            return latency.ours(self._options, length, request["steps"])
        make = SIDES[self._options["side"]]
        if what == "memory":
            return {"bytes": peak_beyond(make(self._options, what, length))}
        if what == "state":
            return {"bytes": make(self._options, what, length)()}
        if self._made != (what, length):
            self._call = make(self._options, what, length)
            self._lasts, _ = spell(self._call, 0.0)
            self._made = what, length
        # Without a decoder a token is the whole prefix again.
        steps = DECODE if what == "decode" and self._options["side"] != "PyTorch Hyena" else 1
        if self._lasts < LONG_S:
            spell(self._call, AWAKE_S)
        self._lasts, faults = spell(self._call, SPELL_S)
        return {"seconds": self._lasts / steps, "faults": faults}


def spell(call: Call, lasting: float) -> tuple[float, float]:
    """Calls for so many seconds, one at least: (median seconds, page faults of a call)."""
    each: list[float] = []
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    while not each or sum(each) < lasting:
        begin = time.perf_counter()
        call()
        each.append(time.perf_counter() - begin)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return statistics.median(each), faults / len(each)


def peak_beyond(call: Call) -> int:
    """The most bytes in memory during the call, less those before it."""
    from hyena_cpu.bench_runs import machine

    before = machine.resident()
    if before is None or not machine.forget_peak():
        raise AbsentError("this system does not tell what is in memory")
    call()
    return (machine.peak_resident() or before) - before


def floor(options: Options, of: str, length: int) -> float:
    """Seconds: a convolution's transforms or bytes, or the operations of a whole forward at the
    rate of a large float32 matrix product.
    """
    if of == "conv":
        import convs

        return convs.floor_seconds(length)
    from limits import product_rate
    from shapes import operations

    return operations(options["size"], length) / product_rate(options["threads"])


def main() -> None:
    options = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    pin(options["threads"])
    answers = Answers(options)
    for line in sys.stdin:
        try:
            reply = answers(json.loads(line))
        except (AbsentError, HyenaError) as reason:
            reply = {"absent": str(reason)}
        except (RuntimeError, MemoryError) as error:  # as torch and llama.cpp say: too large
            reply = {"absent": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)


if __name__ == "__main__":
    main()
