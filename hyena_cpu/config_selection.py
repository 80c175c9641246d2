"""Configs of the mixers that choose by their input: some queries, or some lags.

What they compute is stated in docs/formats.md and in `hyena_cpu/reference/selection.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import ModelError

MAX_LAG = 1 << 16  # bounds what a small, wrong file can make us allocate

TOPS = ("softmax_top", "sigmoid_top", "sma_top", "running_top")  # by learned scores
WHOLE = ("softmax_top", "sigmoid_top", "sma_top")  # that see the whole sequence


@dataclass(frozen=True)
class SelectionConfig:
    """Attention for chosen positions: y = x + s attn(x) there, y = x elsewhere.

    all          every position, s = 1
    random       each with probability `share`, by a hash of `seed` and the position, s = 1
    token_seen   those whose token occurred before, s = 1
    bigram_seen  those whose token occurred before after the same token, s = 1
    softmax_top, sigmoid_top, sma_top
                 the `count` positions of the whole sequence with the largest learned score s
                 (None: the root of its length, rounded up); not causal
    running_top  those whose score is among the `count` largest so far, s the score
    """

    heads: int
    choose: Literal[
        "all",
        "random",
        "token_seen",
        "bigram_seen",
        "softmax_top",
        "sigmoid_top",
        "sma_top",
        "running_top",
    ]
    kind: Literal["selection"] = "selection"
    count: int | None = None
    share: float | None = None
    seed: int | None = None
    bias: bool = True


@dataclass(frozen=True)
class AutocorrelationConfig:
    """A convolution with `top_k` taps, at lags that the input chooses, and no weights.

    whole    the lags with the largest autocorrelation of the whole sequence; not causal
    running  at every position those below `max_lag` with the largest autocorrelation so far
    repeats  at every position the shortest ones below `max_lag` at which its token occurred
    """

    top_k: int
    lags: Literal["whole", "running", "repeats"]
    kind: Literal["autocorrelation"] = "autocorrelation"
    max_lag: int | None = None


def check(mixer: SelectionConfig | AutocorrelationConfig, d_model: int, where: str) -> None:
    """Rules that span several keys. Raises ModelError."""
    if isinstance(mixer, AutocorrelationConfig):
        _check_lags(mixer, where)
        return
    if mixer.heads < 1 or d_model % mixer.heads:
        raise ModelError(f"{where}: d_model {d_model} is not divisible by heads {mixer.heads}")
    if mixer.choose not in TOPS and mixer.count is not None:
        raise ModelError(f"{where}: count is for {', '.join(TOPS)}, not for {mixer.choose}")
    if mixer.choose == "running_top" and mixer.count is None:
        raise ModelError(f"{where}: running_top needs count")
    if mixer.count is not None and mixer.count < 1:
        raise ModelError(f"{where}: count is {mixer.count}, must be at least 1")
    if mixer.choose != "random":
        if mixer.share is not None or mixer.seed is not None:
            raise ModelError(f"{where}: share and seed are for random, not for {mixer.choose}")
        return
    if mixer.share is None or not 0 <= mixer.share <= 1:
        raise ModelError(f"{where}: share is {mixer.share}, must be in 0..1")
    if mixer.seed is None or not 0 <= mixer.seed < 1 << 64:
        raise ModelError(f"{where}: seed is {mixer.seed}, must be in 0..{(1 << 64) - 1}")


def _check_lags(mixer: AutocorrelationConfig, where: str) -> None:
    if mixer.top_k < 1:
        raise ModelError(f"{where}: top_k is {mixer.top_k}, must be at least 1")
    if mixer.lags == "whole":
        if mixer.max_lag is not None:
            raise ModelError(f"{where}: max_lag is for running and repeats, not for whole")
        return
    if mixer.max_lag is None or not mixer.top_k < mixer.max_lag <= MAX_LAG:
        raise ModelError(
            f"{where}: max_lag is {mixer.max_lag}, must be above top_k {mixer.top_k} and at most "
            f"{MAX_LAG}"
        )
