"""How often a model names the value: accuracy by kind of rows.

Shapes: n rows, N tokens in a row, V rows of the head.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from ..errors import InputError, NumericError
from .data import UNSCORED, Ids, Setting, generate

if TYPE_CHECKING:
    from ..config import ModelConfig
    from ..model import Model

OnProgress = Callable[[int, int], None]  # rows done, of so many


@dataclass(frozen=True)
class Slice:
    """Accuracy of one model on rows of one kind, and what they are; `random_non_queries` is 0 or 1.

    `chance` is the accuracy of guessing among the values of a row: a model that knows which values
    a row has, and not which belongs to the key, reaches it.
    """

    model: str
    mixers: str
    width: int
    parameters: int
    vocab_size: int
    length: int
    pairs: int
    power_a: float
    random_non_queries: int
    rows: int
    seed: int
    accuracy: float
    chance: float

    def columns(self) -> dict[str, list[Any]]:
        """The table row, by the names of COLUMNS."""
        return {name: [value] for name, value in asdict(self).items()}


COLUMNS: dict[str, type] = get_type_hints(Slice)


def accuracy(
    model: Model, inputs: Ids, labels: Ids, on_progress: OnProgress | None = None
) -> float:
    """The share of labelled positions with argmax == label, over all V rows of the head.

    It is the mean over a row's labelled positions, then the mean over the rows.

    Args:
        model: with a language head.
        inputs, labels: int64 [n, N]; labels are UNSCORED where nothing is asked. Every row asks.
        on_progress: gets the rows done.

    Raises:
        InputError: a row asks for nothing, or has ids that the model does not know.
        LimitError: rows are longer than the model's context.
        NumericError: a logit is not finite.
    """
    shares = []
    for i, (row, wanted) in enumerate(zip(inputs, labels, strict=True)):
        (asked,) = np.nonzero(wanted != UNSCORED)
        if not len(asked):
            raise InputError(f"row {i} has no label, so it has no accuracy")
        logits = model.logits(row)[asked]
        if not np.isfinite(logits).all():
            raise NumericError(f"{model.name}: a logit of row {i} is not finite")
        shares.append(float((logits.argmax(axis=1) == wanted[asked]).mean()))
        if on_progress is not None:
            on_progress(i + 1, len(inputs))
    return math.fsum(shares) / len(shares)


def evaluate(
    model: Model, setting: Setting, rows: int, seed: int, on_progress: OnProgress | None = None
) -> Slice:
    """A model's accuracy on the rows of a setting and a seed; errors as of `accuracy`.

    Raises:
        InputError: also if the model has fewer ids than the setting's vocabulary.
    """
    if setting.vocab_size > model.vocab_size:
        raise InputError(
            f"vocab_size is {setting.vocab_size}, must be at most the {model.vocab_size} tokens "
            f"of {model.name}"
        )
    inputs, labels = generate(setting, rows, seed)
    return Slice(
        model=model.name,
        mixers=mixers(model.config),
        width=model.config.d_model,
        parameters=model.num_parameters,
        vocab_size=setting.vocab_size,
        length=setting.length,
        pairs=setting.pairs,
        power_a=setting.power_a,
        random_non_queries=int(setting.random_non_queries),
        rows=rows,
        seed=seed,
        accuracy=accuracy(model, inputs, labels, on_progress),
        chance=1 / setting.pairs,
    )


def mixers(config: ModelConfig) -> str:
    """The kinds of mixers of a model, each once, in the order of the layers."""
    return ", ".join(dict.fromkeys(layer.mixer.kind for layer in config.layers))
