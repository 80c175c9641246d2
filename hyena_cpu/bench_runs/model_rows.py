"""A model's speed and memory: prompts taken in (pp512) and tokens one by one (tg128).

The names are those of llama-bench: `pp512 @ d1024` takes 512 tokens in after 1,024 others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import LimitError, ModelError
from ..planner import Plan, plan, readable
from . import machine
from .timing import Times, seconds

if TYPE_CHECKING:
    from ..model import Model
    from ..state import State

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Test:
    """`tokens` taken in together (pp) or one by one (tg), after `depth` others."""

    kind: Literal["pp", "tg"]
    tokens: int
    depth: int = 0

    @property
    def name(self) -> str:
        """As llama-bench writes it."""
        return f"{self.kind}{self.tokens}" + (f" @ d{self.depth}" if self.depth else "")


@dataclass(frozen=True)
class Row:
    """A test as measured. `measured_bytes`: most in memory during the first call, depth included,
    beyond what was there after loading; None where the system does not tell."""

    test: Test
    times: Times
    planned_bytes: int
    measured_bytes: int | None

    @property
    def rates(self) -> list[float]:
        """Tokens a second of each repetition."""
        return [self.test.tokens / s for s in self.times.each]

    @property
    def rate(self) -> float:
        """Tokens a second, median."""
        return self.test.tokens / self.times.median


def tests(prompts: Sequence[int], news: Sequence[int], depths: Sequence[int]) -> list[Test]:
    """All that are asked for, by depth; a length of 0 asks for none."""
    found = []
    for depth in depths:
        found += [Test("pp", n, depth) for n in prompts if n]
        found += [Test("tg", n, depth) for n in news if n]
    return found


def planned(model: Model, test: Test) -> Plan:
    """Memory of the test: the larger of its depth's and its own."""
    length = test.depth + test.tokens
    new, ahead = (test.tokens, 0) if test.kind == "pp" else (1, test.tokens)
    plans = [plan(model, length, new=new, logits_rows=1)]
    if test.depth:
        plans.append(plan(model, test.depth + ahead, new=test.depth, logits_rows=1))
    return max(plans, key=lambda one: one.total)


def check(model: Model, test: Test) -> None:
    """What would stop the test, said before anything is measured.

    Raises:
        LimitError: longer than the model takes, or more memory than is allowed or free.
        ModelError: the model does not go token by token, or has no language-model head.
    """
    model.check_length(test.depth + test.tokens)
    needed = planned(model, test)
    if model.max_memory is not None:
        needed.check(model.max_memory)
    refuse_above_free(needed.total, test.name)
    if model.config.classifier is not None or not model.causal:
        raise ModelError(f"{model.name} has no next token: bench measures language models")


def refuse_above_free(needed: int, what: str) -> None:
    """LimitError if this machine has less memory free than `needed` bytes."""
    free = machine.memory("MemAvailable")
    if free is not None and needed > free:
        raise LimitError(
            f"{what} needs about {readable(needed)} and {readable(free)} are free: "
            "use a shorter length"
        )


def measure(model: Model, test: Test, repetitions: int, seed: int, loaded: int | None) -> Row:
    """Runs a test once for its memory, then `repetitions` times. Ids are random, from `seed`.

    loaded: bytes in memory after loading.
    """
    rng = np.random.default_rng(seed)
    before, ids = (
        rng.integers(0, model.vocab_size, n).astype(np.int32) for n in (test.depth, test.tokens)
    )
    run = _prompt if test.kind == "pp" else _steps
    model.close()  # transforms kept for another row are no part of this one
    known = machine.forget_peak()
    first = seconds(run, model, _begin(model, test, before), ids)
    peak = machine.peak_resident() if known else None
    measured = None if peak is None or loaded is None else max(0, peak - loaded)
    base = _begin(model, test, before)
    each = tuple(seconds(run, model, base.fork(), ids) for _ in range(repetitions))
    return Row(test, Times(first, each), planned(model, test).total, measured)


def _begin(model: Model, test: Test, before: Ids) -> State:
    """A state at the test's depth, with room for the tokens that follow one by one."""
    room = test.tokens if test.kind == "tg" else 0
    if test.depth:
        return model.prefill(before, max_new_tokens=room)
    state = model.new_state()
    state.reserve(room)
    return state


def _prompt(model: Model, state: State, ids: Ids) -> None:
    model.prefill(ids, state)


def _steps(model: Model, state: State, ids: Ids) -> None:
    for token in ids.tolist():
        model.step(state, token)
