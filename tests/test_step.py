"""The recorded decode step: to the bit what `extend` of one row is, which goes layer by layer."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import PACKAGE_HOME
from test_contracts import pieces
from test_state import same_bits
from toy import CAUSAL, EXPLICIT, IDENTITY, IMPLICIT, ROPE, SWIGLU, layer, model, tokens
from toy import _model as model_config

from hyena_cpu import InputError, LimitError, kernels, plan, step
from hyena_cpu.config import AttentionConfig, HyenaConfig, MlpConfig, ModelConfig
from hyena_cpu.model import Model
from hyena_cpu.network import PROGRESS_ROWS
from hyena_cpu.state import State

# Every kind of layer that can be recorded, of widths that are and are not whole tiles and panels.
WIDE = {
    "order2_of_128": (128, [layer(HyenaConfig(IMPLICIT), MlpConfig("gelu_erf", 256))] * 2),
    "hybrid_of_96": (
        96,
        [
            layer(HyenaConfig(IMPLICIT, order=3, short_taps=4), MlpConfig("swiglu", 200)),
            layer(AttentionConfig(heads=3, window=40), MlpConfig("gelu_tanh", 500)),
            layer(AttentionConfig(heads=4, rotary=ROPE.rotary), IDENTITY),
            layer(HyenaConfig(EXPLICIT, order=1, short_taps=1), None),
        ],
    ),
}
RECORDED: dict[str, ModelConfig] = {
    **{
        name: CAUSAL[name]
        for name in CAUSAL
        if {one.mixer.kind for one in CAUSAL[name].layers} <= {"hyena", "attention"}
    },
    "identity": model_config(layer(HyenaConfig(IMPLICIT), IDENTITY), layer(ROPE, SWIGLU)),
    **{
        name: replace(model_config(*layers), d_model=width)
        for name, (width, layers) in WIDE.items()
    },
}
recorded = pytest.mark.parametrize("name", RECORDED)


def of(name: str, **options: object) -> Model:
    """A model whose threads all take part in a step; as small a one is left to one thread."""
    m = model(RECORDED[name], **options)  # type: ignore[arg-type]
    assert m._head is not None
    m._recorded = step.record(m._embedding, m._positions, m.blocks, m._norm, m._head, worth=1)
    return m


def same_state(one: State, other: State) -> None:
    assert one.position == other.position
    assert one.nbytes == other.nbytes
    for mine, its in zip(pieces(one), pieces(other), strict=True):
        same_bits(mine, its)
    for layers in zip(one.layers, other.layers, strict=True):
        mine, its = (getattr(state, "tail", None) for state in layers)
        if mine is not None:
            same_bits(mine.recent, its.recent)


def steps_equal_extend(m: Model, state: State, n: int) -> None:
    """n steps, and as many by `extend`, which does not know the recorded step."""
    twin = state.fork()
    for token in tokens(n, seed=5):
        same_bits(m.step(state, int(token)), m.extend(twin, [token])[0])
        same_bits(state.logits, twin.logits)
    same_state(state, twin)


def test_which_models_have_a_recorded_step() -> None:
    assert len(RECORDED) >= 10
    for name, config in (CAUSAL | RECORDED).items():
        assert (model(config)._recorded is not None) == (name in RECORDED), name


@recorded
@pytest.mark.parametrize("prompt", [0, 1, 150])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_step_has_the_bits_of_extend(name: str, prompt: int, threads: int) -> None:
    m = of(name, threads=threads)
    state = m.prefill(tokens(prompt)) if prompt else m.new_state()
    steps_equal_extend(m, state, 40)


@recorded
def test_in_every_batch_and_slot(name: str) -> None:
    alone = of(name)
    prompts = [tokens(n, seed=n) for n in (3, 60, 17, 150, 1, 33, 2)]
    kept = [alone.prefill(prompt) for prompt in prompts]
    rows = [[alone.extend(state, [t])[0] for t in range(5)] for state in kept]
    for threads, order in ((1, [2]), (2, [1, 0]), (3, [6, 2, 4]), (2, [3, 0, 5, 1, 6, 2, 4])):
        m = of(name, threads=threads)
        states = [m.prefill(prompts[i]) for i in order]
        for t in range(5):
            for got, i in zip(m.step(states, [t] * len(order)), order, strict=True):
                same_bits(got, rows[i][t])
        for state, i in zip(states, order, strict=True):
            same_state(state, kept[i])


@recorded
def test_between_other_ways_to_take_tokens_in(name: str) -> None:
    """Chunks, rewinds (the tail is to be made again), forks, states from files."""
    m = of(name, threads=2)
    state = m.prefill(tokens(90))
    steps_equal_extend(m, state, 12)
    m.extend(state, tokens(30, seed=8))
    steps_equal_extend(m, state, 9)
    state.rewind(state.position - 25)
    steps_equal_extend(m, state, 20)
    twin = state.fork()
    m.step(twin, 3)
    steps_equal_extend(m, state, 5)
    assert twin.position == state.position - 4


@recorded
def test_past_every_place_where_memory_is_moved(name: str) -> None:
    """Through several buffers of a tail, blocks of a cache, horizons, an endless schedule."""
    config = RECORDED[name]
    n = min(config.max_length or 700, 700) - 30
    m = model(config)
    steps_equal_extend(m, m.prefill(tokens(30)), n)


def test_products_of_bfloat16() -> None:
    for name in ("order2_of_128", "hybrid_of_96"):
        m = of(name, dtype="bfloat16", threads=2)
        steps_equal_extend(m, m.prefill(tokens(70)), 20)


@pytest.mark.parametrize("build", kernels.available())
def test_in_every_build(build: str) -> None:
    code = (
        "from test_step import *\n"
        "assert kernels.build == sys.argv[1]\n"
        "for name in RECORDED:\n"
        "    for threads in (1, 2):\n"
        "        m = of(name, threads=threads)\n"
        "        steps_equal_extend(m, m.prefill(tokens(50)), 35)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, build],
        check=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_HOME), "HYENA_CPU_ISA": build},
        timeout=300,
    )


def test_very_many_sequences_go_layer_by_layer() -> None:
    m = of("order2")
    start = m.prefill(tokens(20))
    states = [start.fork() for _ in range(PROGRESS_ROWS)]
    seen: list[tuple[int, int]] = []
    m.on_progress = lambda *progress: seen.append(progress)
    rows = m.step(states, [t % 29 for t in range(len(states))])
    assert seen
    few = m.step([start.fork() for _ in range(29)], list(range(29)))
    same_bits(rows[:29], few)


def test_what_is_interrupted_is_torn() -> None:
    m = of("order2")
    state = m.prefill(tokens(20))

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    conv = state.layers[1].convs[0]
    conv.make_room = interrupt
    with pytest.raises(KeyboardInterrupt):
        m.step(state, 1)
    with pytest.raises(InputError, match="interrupted call"):
        m.step(state, 1)


def test_a_tape_refuses_what_does_not_fit_it() -> None:
    m = of("order2")
    assert m._recorded is not None
    tape, state = m._recorded._tape, m.prefill(tokens(20))
    m.step(state, 1)
    tails = [layer.tail.kernel for layer in state.layers]
    convs = [conv.make_room(1) for layer in state.layers for conv in layer.convs]
    seat = tape.seat(tails, convs)

    def refused(match: str, *seats: object, ids: tuple[int, ...] = (1,)) -> None:
        with pytest.raises(ValueError, match=match):
            tape.run(list(ids), [5] * len(ids), list(seats), [[]] * len(seats))  # type: ignore[arg-type]

    refused("token is 32 but needs to be in 0 .. 31", seat, ids=(32,))
    refused("token is -1", seat, ids=(-1,))
    refused("2 tokens, 2 positions, 1 seats, 1 lists of caches", seat, ids=(1, 2))
    refused("a state appears twice", seat, seat, ids=(1, 2))
    wide = of("order2_of_128")
    assert wide._recorded is not None
    other = wide.prefill(tokens(20))
    wide.step(other, 1)
    its_tails = [layer.tail.kernel for layer in other.layers]
    its_convs = [conv.make_room(1) for layer in other.layers for conv in layer.convs]
    refused("a seat is of another tape", wide._recorded._tape.seat(its_tails, its_convs))
    refused("a seat is of another tape", None)
    for match, parts in (
        ("2 tails and 1 convolutions, but the tape has 2 and 2", (tails, convs[:1])),
        ("a tail belongs to another layer", (its_tails, convs)),
        ("a convolution belongs to another layer", (tails, its_convs)),
        ("a convolution belongs to another layer", (tails, [None, None])),
        ("a state appears twice", (tails, convs[:1] * 2)),
        ("a state appears twice", (tails[:1] * 2, convs)),
    ):
        with pytest.raises(ValueError, match=match):
            tape.seat(*parts)
    state.layers[0].tail.rewind(15)
    refused("the rows of a tail are not known", seat)
    long = m.prefill(tokens(20), max_new_tokens=64)
    for _ in range(64):
        m.step(long, 1)
    refused("a convolution has no room", long.seat._kernel)

    with pytest.raises(ValueError, match="the tape has its head already"):
        tape.identity(m._norm.weights)
    unfinished = kernels.StepTape(m._embedding, None, 1)
    with pytest.raises(ValueError, match="the tape has no head yet"):
        unfinished.run([1], [5], [unfinished.seat([], [])], [[]])


def test_a_tape_refuses_caches_that_do_not_fit_it() -> None:
    m = of("finite_hybrid")
    assert m._recorded is not None
    tape, state = m._recorded._tape, m.prefill(tokens(20))
    m.step(state, 1)
    seat = state.seat.ready(tape, 1)
    [(keys, values, slot, start)] = state.seat.caches()
    for cache, match in (
        ((keys, values, values.shape[1], start), "do not fit a cache of"),
        ((keys, values, slot, slot + 1), "do not fit a cache of"),
        ((keys[:1].copy(), values[:1].copy(), slot, start), "a cache belongs to another layer"),
    ):
        with pytest.raises(ValueError, match=match):
            tape.run([1], [5], [seat], [[cache]])
    with pytest.raises(ValueError, match="a list of caches is of another tape"):
        tape.run([1], [5], [seat], [[]])
    cache = (keys.astype(np.float64), values, slot, start)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        tape.run([1], [5], [seat], [[cache]])  # type: ignore[list-item]


def test_a_state_that_changed_is_seated_anew() -> None:
    m = of("order2")
    state = m.prefill(tokens(20))
    m.step(state, 1)
    for change in (
        lambda: state.rewind(15),
        lambda: state.reserve(100),
        lambda: m.extend(state, tokens(70)),
        lambda: m.prefill(tokens(30), state, max_new_tokens=10),
    ):
        change()
        assert state.seat is None
        steps_equal_extend(m, state, 3)


def test_memory_is_checked_for_some_steps_at_once() -> None:
    free = of("hybrid_of_96")
    needed = {n: plan(free, n, new=1, logits_rows=1).needed for n in range(30, 300)}
    limit = needed[130]
    m = of("hybrid_of_96", max_memory=limit)
    state = m.prefill(tokens(29))
    for _ in range(max(n for n in needed if needed[n] <= limit) - 29):
        m.step(state, 1)
    with pytest.raises(LimitError, match="max-memory"):
        m.step(state, 1)


def test_what_other_calls_keep_does_not_stay_beside_a_step() -> None:
    free = of("order2")
    m = of("order2", max_memory=2 * plan(free, 300, new=1, logits_rows=1).needed)
    state = m.prefill(tokens(200))
    m.step(state, 1)
    room = m.convolutions.cache.room
    m.token_logprobs(tokens(5))
    assert m.convolutions.cache.room > room
    m.step(state, 1)
    assert m.convolutions.cache.room <= room


def test_a_tail_refuses_what_does_not_fit_it() -> None:
    tail = kernels.ConvTail(2, 12, 4, 10)
    tail.take_in(np.ones((7, 4), np.float32))
    tail.rows = np.ones((2, 12), np.float32)
    for rows in (np.ones((3, 12), np.float32), np.ones((2, 11), np.float32)):
        with pytest.raises(ValueError, match="rows has shape"):
            tail.rows = rows
    with pytest.raises(ValueError, match="x has shape"):
        tail.take_in(np.ones((1, 5), np.float32))
    for position in (-1, 8):
        with pytest.raises(ValueError, match=r"within \[0, 7\]"):
            tail.rewind(position)
    with pytest.raises(ValueError, match="needs a new tail"):
        tail.resume(9, np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match="needs a new tail"):
        kernels.ConvTail(2, 12, 4, 10).resume(30, np.ones((21, 4), np.float32))
    with pytest.raises(ValueError, match="needs before"):
        kernels.ConvTail(-1, 12, 4, 10)
    with pytest.raises(ValueError, match="worth is 0"):
        kernels.StepTape(np.ones((3, 4), np.float32), None, 0)


def test_a_tail_keeps_the_newest_inputs() -> None:
    """However they come: one row or many, more than it holds."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        tail, seen = kernels.ConvTail(2, 3, 2, 10), np.zeros((0, 2), np.float32)
        for n in rng.integers(1, 15, 12):
            x = rng.standard_normal((n, 2), np.float32)
            tail.take_in(x)
            seen = np.concatenate([seen, x])
            held = len(tail.inputs)
            assert min(10, len(seen)) <= held <= tail.capacity
            same_bits(tail.inputs, seen[len(seen) - held :])
            assert tail.position == len(seen)
            assert tail.rows is None
