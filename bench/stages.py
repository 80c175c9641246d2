"""What `run.py` measures: who is compared, on what, at which lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import children
import latency
from children import Side
from shapes import SIZES

THREADS = 2
CONTEXTS = (65_536, 131_072, 262_144)
MILLION = 1_000_000
DECIDING = (256, 512, 1024, 2048)  # lengths among which attention is overtaken

# glibc's allocator with huge pages and without giving memory back: what is freed is used again.
ALLOCATOR = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296:"
    "glibc.malloc.trim_threshold=1099511627776"
}
AVX2 = {
    "HYENA_CPU_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def side(name: str, size: str = "small", *, label: str = "", **extra: Any) -> Side:
    """A side of `sides.py` on a HyenaDNA size."""
    environment = extra.pop("environment", {})
    options = {"side": name, "size": size, "threads": THREADS, **extra}
    return Side(label or name, options, environment)


def library(peer: str) -> Side:
    """A convolution of `convs.py`, one thread."""
    return Side(peer, {"side": "conv", "peer": peer, "threads": 1})


OURS, HYENA = side("hyena-cpu"), side("PyTorch Hyena")
MEDIUM = side("hyena-cpu", "medium")  # the shape of HyenaDNA-large too
DROPPED = side("hyena-cpu", label="hyena-cpu, history dropped", history="drop")
ATTENTION = [side("PyTorch attention"), side("llama.cpp")]
TUNED = side("PyTorch Hyena", label="PyTorch Hyena, tuned allocator", environment=ALLOCATOR)
LIBRARIES = ("LongConv", "long_conv kernel", "torch.fft", "scipy.fft", "mkl_fft", "pyfftw")


@dataclass(frozen=True)
class Stage:
    """A comparison with the first side. `quick` are the lengths of --quick."""

    name: str
    what: Literal["conv", "prefill", "decode", "latency", "memory", "state"]
    sides: tuple[Side, ...]
    lengths: tuple[int, ...]
    quick: tuple[int, ...]
    long: bool = False  # measured with --long alone


STAGES = (
    Stage("kernel", "conv", tuple(map(library, LIBRARIES)), (1024, 8192, 32768), (1024, 8192)),
    Stage(
        "prefill", "prefill", (OURS, HYENA, *ATTENTION), (*DECIDING, 8192, 32768), (*DECIDING, 8192)
    ),
    Stage("prefill-long", "prefill", (OURS, HYENA, TUNED), (160_000,), (), long=True),
    Stage(
        "prefill-medium",
        "prefill",
        (MEDIUM, side("PyTorch Hyena", "medium")),
        (160_000, 450_000),
        (),
        long=True,
    ),
    Stage("prefill-million", "prefill", (MEDIUM,), (MILLION,), (), long=True),
    Stage("allocator", "prefill", (OURS, HYENA, TUNED), (32768,), (8192,)),
    Stage(
        "avx2",
        "prefill",
        (
            side("hyena-cpu", label="hyena-cpu, AVX2", environment=AVX2),
            side("PyTorch Hyena", label="PyTorch Hyena, AVX2", environment=AVX2),
        ),
        (32768,),
        (8192,),
    ),
    Stage(
        "bfloat16",
        "prefill",
        (OURS, side("hyena-cpu", label="hyena-cpu, bfloat16", dtype="bfloat16"), HYENA),
        (1024, 8192, 32768),
        (8192,),
    ),
    Stage("decode", "decode", (OURS, *ATTENTION, HYENA), (1024, 8192, 32768), (1024, 8192)),
    Stage("decode-long", "decode", (OURS, *ATTENTION), CONTEXTS, (65_536,), long=True),
    Stage("state", "state", (OURS, DROPPED, *ATTENTION), (1024, 8192, 32768), (1024, 8192)),
    Stage("state-long", "state", (OURS, DROPPED, *ATTENTION), CONTEXTS, (65_536,), long=True),
    Stage("latency", "latency", (OURS,), (1024, 32768), (1024,)),
    Stage("memory", "memory", (OURS, HYENA, *ATTENTION), (1024, 8192, 32768), (1024, 8192)),
    Stage("memory-long", "memory", (OURS, HYENA), (160_000,), (32768,)),
    Stage(
        "memory-tiny",
        "memory",
        (side("hyena-cpu", "tiny"), side("PyTorch Hyena", "tiny")),
        (MILLION,),
        (65_536,),
    ),
    Stage("memory-million", "memory", (MEDIUM,), (MILLION,), (), long=True),
)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    quick: bool = False
    long: bool = False
    repetitions: int = 7
    steps: int = latency.STEPS
    budget_s: float = 180.0  # of one comparison at one length, three repetitions apart


def chosen(effort: Effort, only: list[str] | None) -> list[Stage]:
    """The stages by name (None: all), with the lengths of this effort."""
    found = []
    for stage in STAGES:
        lengths = stage.quick if effort.quick else stage.lengths
        wanted = stage.name in only if only else effort.long or not stage.long
        if wanted and lengths:
            found.append(replace(stage, lengths=lengths))
    return found


def rows(stage: Stage, effort: Effort) -> Iterator[dict[str, Any]]:
    """Measures a stage: one row for each side and length, as plain data.

    unit: s (of a call; of a token for decode and latency) or bytes. floor: what the machine needs
    at least, for the first side; of memory, one residual stream [L, D]. latency has p99, max and
    first as well.
    """
    for length in stage.lengths:
        least: float | None = None
        tail: dict[str, float] = {}
        if stage.what in ("memory", "state"):
            measured = children.sizes(stage.sides, stage.what, length)
            if stage.what == "memory":
                width, _ = SIZES[stage.sides[0].options["size"]]
                least = 4.0 * width * length
        elif stage.what == "latency":
            one, tail = children.latency(stage.sides[0], length, effort.steps)
            measured = [one]
        else:
            measured = children.times(
                stage.sides, stage.what, length, effort.repetitions, effort.budget_s
            )
            if stage.what != "decode":
                least = children.floor(stage.sides[0], stage.what, length)
        for i, (one, found) in enumerate(zip(stage.sides, measured, strict=True)):
            yield {
                "stage": stage.name,
                "what": stage.what,
                "length": length,
                "side": one.name,
                "options": dict(one.options),
                "environment": dict(one.environment),
                "unit": "bytes" if stage.what in ("memory", "state") else "s",
                "median": found.median,
                "floor": None if i else least,
                "values": found.values,
                "faults": found.faults,
                "absent": found.absent,
                **tail,
            }
