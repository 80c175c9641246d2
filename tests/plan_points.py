"""Runs whose peak of memory is measured and compared with the plan: models, points, a child each.

    python tests/plan_points.py [WORD ...]     prints the grid, or points with a word in their name

A point is a model, a call, lengths and threads. It runs in a fresh interpreter: what the model
holds after loading is subtracted from the most that was held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import toy
from conftest import PACKAGE_HOME

from hyena_cpu.config import (
    AttentionConfig,
    FilterConfig,
    HyenaConfig,
    LayerConfig,
    LongConvConfig,
    MlpConfig,
    ModelConfig,
    NormConfig,
    RotaryConfig,
)
from hyena_cpu.weights import save_folder

MOST_OVER, SLACK = 1.10, 16 << 20  # measured <= plan <= MOST_OVER * measured + SLACK

# Read from /proc: the maximum of getrusage begins with that of the process that started this one.
CHILD = """
import json, os, sys
import numpy as np, hyena_cpu
from freed import give_back_freed
from hyena_cpu import kernels, planner, pooling

kernels.bound_freed_memory()  # as a limit of memory or the command line does


def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))


def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


p = json.loads(sys.argv[1])
model = hyena_cpu.load(sys.argv[2], threads=p["threads"])
length, batch, call = p["length"], p["batch"], p["call"]
rng = np.random.default_rng(0)
sequences = [rng.integers(0, model.vocab_size, length) for _ in range(batch)]
ids = sequences[0]
plan = planner.plan
if call == "run":  # a whole one, planned before it begins
    from hyena_cpu.dry_run import DryRun

    texts = [ids[:n] for n in (length // 4, length // 2, length) * 2]
    with DryRun(model) as dry:
        dry.score(texts)
    plans = [dry.largest]
if call == "load" and not os.path.exists(sys.argv[3]):
    drop = p["longest"] > 0
    room = p["longest"] - length if drop else 512
    state = model.prefill(ids, max_new_tokens=room, history="drop" if drop else "keep")
    sys.exit(state.save(sys.argv[3]))
give_back_freed()  # what loading has freed would be used again
before = resident("VmRSS")
forget_peak()
if call == "logits":
    plans = [plan(model, length, logits_rows=length, state=False)]
    out = model.logits(ids)
elif call == "hidden":
    plans = [plan(model, length, hidden_rows=length, state=False)]
    out = model.hidden(ids)
elif call == "score":
    plans = [plan(model, length, batch, state=False)]
    out = model.token_logprobs_each(sequences) if batch > 1 else model.token_logprobs(ids)
elif call in ("last", "mean"):
    rows = length * batch if batch > 1 else min(length, pooling.BLOCK_ROWS)
    plans = [plan(model, length, batch, hidden_rows=rows, state=False)]
    out = model.embed(sequences, pool=call)
elif call == "prefill":
    plans = [plan(model, length)]
    out = model.prefill(ids)
elif call == "room":
    plans = [plan(model, length + 512, room=512)]
    out = model.prefill(ids, max_new_tokens=512)
elif call == "drop":
    plans = [plan(model, length + 512, room=512, ahead=512)]
    out = model.prefill(ids, max_new_tokens=512, history="drop")
elif call == "end":  # room for as much as the context holds
    room = p["longest"] - length
    plans = [plan(model, length + room, room=room, ahead=room)]
    out = model.prefill(ids, max_new_tokens=room, history="drop")
elif call == "far":  # the same, history kept, and all of it is used
    room = p["longest"] - length
    plans = [plan(model, length + room, room=room)]
    out = model.prefill(ids, max_new_tokens=room)
    for _ in range(room):
        model.step(out, 1)
elif call in ("twins", "forks"):  # a copy of a prompt's state goes on, its history kept or dropped
    room, drop = p["longest"] - length, call == "forks"
    plans = [plan(model, length + room, room=room, ahead=room if drop else None, copies=1)]
    out = model.prefill(ids, max_new_tokens=room, history="drop" if drop else "keep")
    out = out, out.fork()
    for _ in range(room):
        model.step(out[1], 1)
elif call == "load":  # what it is checked for; saved by another process
    plans, model.max_memory = [], 1 << 60
    planner.plan = lambda *args, **what: plans.append(plan(*args, **what)) or plans[-1]
    out = model.load_state(sys.argv[3])
elif call == "step":  # of states that come from prompts one after the other
    prompt = plan(model, length)
    others = (batch - 1) * dict(prompt.rows)["state"]
    plans = [
        planner.Plan((*prompt.rows, ("other states", others))),
        plan(model, length + p["steps"], batch, new=1),
    ]
    out = [model.prefill(s) for s in sequences]
    for _ in range(p["steps"]):
        model.step(out, [1] * batch)
elif call == "extend":
    half = length // 2
    plans = [plan(model, half), plan(model, length, new=length - half, logits_rows=length - half)]
    out = model.prefill(ids[:half])
    out = model.extend(out, ids[half:]), out
elif call == "turn":  # half of it, steps, and the other half
    half = length // 2
    out = model.prefill(ids[:half])
    for _ in range(600):
        model.step(out, 1)
    held = sum(getattr(layer, "steps_nbytes", 0) for layer in out.layers)
    plans = [plan(model, half + 600, new=1)]
    plans += [plan(model, length + 600, new=length - half, logits_rows=length - half, held=held)]
    out = model.extend(out, ids[half:]), out
elif call == "lengths":  # twice, one after the other: what is kept of earlier ones counts
    plans = []
    for n in (length // 4, length // 2, length) * 2:
        plans.append(plan(model, n, state=False))
        out = model.token_logprobs(ids[:n])
elif call == "run":
    out = model.score(texts)
said = max(plans, key=lambda one: one.total)
print(resident("VmHWM") - before, said.total)
for name, size in said.rows:
    print(size, name)
"""


def _shape(width: int, *mixers: object, **changes: object) -> ModelConfig:
    mlp = MlpConfig("gelu_tanh", 4 * width)
    config = ModelConfig(
        d_model=width,
        vocab_size=12,
        logits_width=16,
        max_length=None,
        tie_embeddings=True,
        norm=NormConfig("layernorm", 1e-5),
        layers=tuple(LayerConfig(mixer, mlp) for mixer in mixers),  # type: ignore[arg-type]
    )
    return replace(config, **changes)


def _implicit(taps: int) -> FilterConfig:
    return FilterConfig("implicit", taps=taps, width=64, bands=2, sine_layers=3, shift=0.05)


def model_of(name: str, longest: int) -> ModelConfig:
    """A model by name for sequences up to `longest` tokens."""
    hyena = HyenaConfig(_implicit(longest))
    if name == "tiny":  # the shapes of HyenaDNA
        return _shape(128, hyena, hyena, max_length=longest)
    if name == "small":
        return _shape(256, hyena, hyena, hyena, hyena, max_length=longest)
    if name == "medium":
        return _shape(256, *[hyena] * 8, max_length=longest)
    if name == "circle":
        return _shape(128, *[replace(hyena, bidirectional=True)] * 2, max_length=longest)
    if name == "order3":
        return _shape(128, *[replace(hyena, order=3)] * 2, max_length=longest)
    if name == "hybrid":
        window = AttentionConfig(heads=4, rotary=RotaryConfig(), window=1024)
        return _shape(128, hyena, window, hyena, max_length=longest)
    if name == "attention":
        return _shape(128, AttentionConfig(heads=4, rotary=RotaryConfig()), hyena)
    if name == "words":  # a head that is wide
        return _shape(128, hyena, vocab_size=8000, logits_width=8192, max_length=longest)
    assert name == "longconv"
    return _shape(128, *[LongConvConfig(FilterConfig("explicit", taps=longest), channels=2)] * 2)


@dataclass(frozen=True)
class Point:
    model: str
    call: str
    length: int
    batch: int = 1
    threads: int = 2
    longest: int = 0  # of the model; 0: as long as the call
    steps: int = 1  # of the call "step"

    @property
    def name(self) -> str:
        size = f"{self.batch}x{self.length}" if self.batch > 1 else f"{self.length}"
        far = f"+{self.steps}" if self.longest else ""
        if self.call in ("end", "far", "twins", "forks", "load"):
            far = f"+{self.longest - self.length}" if self.longest else ""
        return f"{self.model}-{self.call}-{size}{far}-{self.threads}"


K = 1024
LONG = 160_000


def _points() -> list[Point]:
    found = []
    for model in ("tiny", "small", "hybrid", "order3", "longconv"):
        for call in ("logits", "score", "prefill", "drop"):
            found += [Point(model, call, n * K) for n in (1, 8, 32)]
        found += [Point(model, "room", n * K) for n in (8, 32)]
        found += [Point(model, call, 8 * K) for call in ("hidden", "last", "mean", "extend")]
        found += [Point(model, call, 32 * K) for call in ("lengths", "run")]
        found += [
            Point(model, "score", 8 * K, threads=1),
            Point(model, "prefill", 8 * K, threads=1),
        ]
        found += [Point(model, "score", 500, batch) for batch in (4, 32)]
        found += [Point(model, "last", 500, batch) for batch in (4, 32)]
        found += [Point(model, "step", 500, batch) for batch in (1, 4, 32)]
    for model in ("tiny", "small", "order3", "longconv"):  # nobody says how far they will go
        found += [Point(model, "step", n * K, longest=60_000, steps=40) for n in (1, 7, 30)]
    found += [Point("tiny", "step", 1000, 2, longest=60_000, steps=4000)]
    for model in ("small", "hybrid", "order3", "longconv"):  # room to the end of the context
        found += [
            Point(model, call, n * K, longest=n * K + room)
            for call in ("end", "twins", "forks", "load")
            for n, room in ((1, 16_000), (8, 600), (32, 300))
        ]
        found += [Point(model, "load", n * K) for n in (1, 32)]
        found += [Point(model, "turn", n * K, longest=n * K + 8_000) for n in (8, 32)]
        found += [Point(model, "far", n * K, longest=n * K + 24_000) for n in (1, 8, 32)]
    found += [Point("attention", call, n * K) for call in ("score", "prefill") for n in (1, 8)]
    found += [Point("circle", call, n * K) for call in ("hidden", "last") for n in (1, 8, 32)]
    found += [Point("circle", "last", 500, batch=4), Point("circle", "last", 32 * K, threads=1)]
    found += [Point("words", call, 8 * K) for call in ("logits", "score", "prefill")]
    for model in ("tiny", "small", "order3", "hybrid", "longconv"):
        found += [Point(model, call, LONG) for call in ("score", "prefill", "drop", "last")]
    found += [Point("small", "score", LONG, threads=1), Point("small", "hidden", LONG)]
    found += [Point("tiny", "extend", LONG), Point("medium", "last", LONG)]
    found += [Point("tiny", call, 1_000_000) for call in ("last", "score", "drop", "prefill")]
    return found


POINTS = _points()


class Models:
    """Model folders, made when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, point: Point) -> Path:
        longest = max(point.longest or point.length + 600, K)
        path = self._folder / f"{point.model}-{longest}"
        if not path.exists():
            config = model_of(point.model, longest)
            save_folder(path, config, toy.weights(config).tensors)
        return path


@dataclass(frozen=True)
class Measured:
    """Bytes beyond the loaded model."""

    peak: int
    plan: int
    rows: tuple[tuple[str, int], ...]

    @property
    def problem(self) -> str | None:
        """What is wrong with the plan, in a sentence; None if nothing is."""
        peak, plan = self.peak / 2**20, self.plan / 2**20
        if self.peak > self.plan:
            return f"takes {peak:.1f} MiB, but the plan says {plan:.1f} MiB"
        if self.plan > MOST_OVER * self.peak + SLACK:
            return f"takes {peak:.1f} MiB only, but the plan says {plan:.1f} MiB"
        return None

    def __str__(self) -> str:
        large = [f"{name} {size / 2**20:.1f}" for name, size in self.rows if size > 1 << 20]
        share = self.plan / max(self.peak, 1)
        return f"{self.peak / 2**20:8.1f} {self.plan / 2**20:8.1f} {share:5.2f}  {', '.join(large)}"


def _child(point: Point, models: Models) -> subprocess.CompletedProcess[str]:
    path = models.path(point)
    arguments = [json.dumps(asdict(point)), str(path), str(path / f"{point.name}.state")]
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, *arguments],
        env=os.environ | {"PYTHONPATH": f"{PACKAGE_HOME}{os.pathsep}{Path(__file__).parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{point.name}: {done.stderr}")
    return done


def measure(point: Point, models: Models) -> Measured:
    """Runs the point in a process of its own."""
    if point.call == "load":
        _child(point, models)
    done = _child(point, models)
    first, *rest = done.stdout.splitlines()
    peak, plan = map(int, first.split())
    pairs = (line.split(" ", 1) for line in rest)
    return Measured(peak, plan, tuple((name, int(size)) for size, name in pairs))


def main(words: list[str]) -> int:
    """Prints the grid; returns how many points are wrong."""
    wrong = 0
    print(f"{'':28} measured plan MiB ratio")
    with tempfile.TemporaryDirectory() as folder:
        models = Models(Path(folder))
        for point in POINTS:
            if words and not any(word in point.name for word in words):
                continue
            found = measure(point, models)
            wrong += found.problem is not None
            print(f"{'  ' if found.problem is None else '! '}{point.name:26} {found}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
