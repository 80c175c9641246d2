"""Accuracy beside speed: the bundled models of associative recall, on rows held out from training.

They have the same width and number of layers and differ in their mixers alone, so the table says
what attention costs and what is lost without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..mqar import Setting, evaluate, mixers
from . import model_rows
from .model_rows import Test

if TYPE_CHECKING:
    from ..model import Model

SETTING = Setting(vocab_size=256, length=64, pairs=4)  # what they were trained on
ROWS = 1000
TEST_SEED = 3062119789  # the authors' held-out rows of this length for their seed 123
PROMPT, STEPS, DEPTH = Test("pp", 1024), Test("tg", 64), Test("tg", 64, 4096)


@dataclass(frozen=True)
class RecallRow:
    """One model: accuracy on ROWS rows of SETTING (`chance`: of guessing among a row's values), and
    tokens a second of a prompt, of steps from the start, and of steps after 4,096 tokens.
    """

    model: str
    mixers: str
    parameters: int
    accuracy: float
    chance: float
    prompt_rate: float
    step_rate: float
    deep_step_rate: float


def measure(model: Model, repetitions: int, seed: int) -> RecallRow:
    """Measures one model; `seed` is that of the random tokens of the timed calls."""
    found = evaluate(model, SETTING, ROWS, TEST_SEED)
    prompt, steps, deep = (
        model_rows.measure(model, test, repetitions, seed, None).rate
        for test in (PROMPT, STEPS, DEPTH)
    )
    return RecallRow(
        model=model.name,
        mixers=mixers(model.config),
        parameters=model.num_parameters,
        accuracy=found.accuracy,
        chance=found.chance,
        prompt_rate=prompt,
        step_rate=steps,
        deep_step_rate=deep,
    )
