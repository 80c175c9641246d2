"""A loaded model: the engine together with its tokenizer, and the verbs of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import embed, generate, planner, score
from .closing import Closing
from .config import ModelConfig
from .engine import Engine
from .errors import ModelError
from .threads import default_threads
from .tokenizers import Tokenizer
from .weights import Weights, blank

Floats = NDArray[np.float32]
Text = str | bytes | ArrayLike


class Model(Engine, Closing):
    """What `hyena_cpu.load` returns.

    `logits`, `hidden`, `classify` and `token_logprobs` take whole sequences of ids; `prefill`,
    `extend` and `step` carry a `State`; the verbs below take text or ids. Many threads may use one
    model at once, each with its own states.
    """

    def __init__(self, weights: Weights, tokenizer: Tokenizer | None, **options: Any) -> None:
        super().__init__(weights, **options)
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back. ModelError if the model folder has none."""
        if self._tokenizer is None:
            raise ModelError(f"{self.name} has no tokenizer: pass token ids instead of text")
        return self._tokenizer

    def stream(self, prompt: Text, **options: Any) -> generate.TextStream:
        """Takes in the prompt and returns the iterator of pieces that continues it.

        Options are the fields of `hyena_cpu.prompts.Options`: max_new_tokens, temperature, top_k,
        top_p, min_p, repetition_penalty, seed, stop, ... Errors: see `generate.stream`.
        """
        return generate.stream(self, prompt, **options)

    def generate(self, prompt: Text, **options: Any) -> generate.Result:
        """Continues the prompt to its end: text, tokens, finish reason, seed, timings."""
        return generate.generate(self, prompt, **options)

    def score(self, sequences: Text | Sequence[Text], **options: Any) -> list[score.Score]:
        """How likely the model finds each sequence; see `score.score` for options and errors."""
        return score.score(self, sequences, **options)

    def embed(
        self,
        sequences: Text | Sequence[Text],
        layer: int = -1,
        pool: Literal["mean", "last"] | None = "mean",
    ) -> Floats | list[Floats]:
        """Hidden states of each sequence, pooled over all of its own tokens.

        Args:
            sequences: one text, or several texts or arrays of ids.
            layer: as in `hidden`.
            pool: mean (accumulated in float64) or last position; None keeps every position.

        Returns:
            float32 [B, D], or a list of [T, D] without pooling. A sequence gets the same bits
            alone and in any company.
        """
        return embed.embed(self, sequences, layer, pool)

    def close(self) -> None:
        """Drops cached transforms. The model stays usable."""
        self.convolutions.cache.clear()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a Model cannot be pickled: send its path and call hyena_cpu.load in the other process"
        )


def plan(model: Model | ModelConfig, length: int, batch: int = 1, **call: Any) -> planner.Plan:
    """Bytes by buffer that `batch` sequences of `length` tokens each take beyond the weights.

    Args:
        model: a model, or a configuration alone: of float32 weights, for the threads that `load`
            chooses. That takes up to the memory of the weights for the moment.
        call: what the call is; see `planner.plan`.

    Raises:
        InputError: a number is out of range, or numbers do not fit one another.
        ModelError: a configuration that no model can have.
    """
    if isinstance(model, ModelConfig):
        model = Model(blank(model), None, threads=default_threads())
    return planner.plan(model, length, batch, **call)
