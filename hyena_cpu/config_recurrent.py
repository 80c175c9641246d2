"""Configs of the recurrent mixers: a state of constant size in the place of a history.

Shapes use: D width, H heads, f width of a query, V values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import ModelError

MAX_FEATURES = 128  # of a Based head, whose state has about half their square of rows
MAX_STATE = 256  # numbers per channel of a Mamba state
MAX_RETNET_HEADS = 20  # head h decays by 1 - 2^(-5-h), which float32 holds exactly up to here
MAX_CONV_TAPS = 64


@dataclass(frozen=True)
class BasedConfig:
    """Linear attention with the features of exp's Taylor series to degree 2 (arXiv 2402.18668).

    feature_width: f, of a head's queries and keys. eps: added to the divisor.
    """

    heads: int
    feature_width: int
    kind: Literal["based"] = "based"
    eps: float = 1e-12


@dataclass(frozen=True)
class RetNetConfig:
    """Multi-scale retention (arXiv 2307.08621): rotary positions of `base`, head h decays by
    1 - 2^(-5-h), group norm with `eps` and no weights, gate.

    value_width: V, of all heads together.
    """

    heads: int
    value_width: int
    eps: float
    kind: Literal["retnet"] = "retnet"
    base: float = 10000.0


@dataclass(frozen=True)
class RwkvTimeConfig:
    """Time mixing of RWKV-v4 (arXiv 2305.13048)."""

    kind: Literal["rwkv_time"] = "rwkv_time"


@dataclass(frozen=True)
class RwkvChannelConfig:
    """Channel mixing of RWKV-v4; a mixer, because it sees the token before. width: of its keys."""

    width: int
    kind: Literal["rwkv_channel"] = "rwkv_channel"


@dataclass(frozen=True)
class MambaConfig:
    """Selective state space of `inner` channels with `state` numbers each (arXiv 2312.00752).

    rank: of the projection to time steps. conv_taps: K of the short convolution.
    """

    inner: int
    rank: int
    kind: Literal["mamba"] = "mamba"
    state: int = 16
    conv_taps: int = 4
    conv_bias: bool = True
    bias: bool = False  # of in_proj and out_proj


RecurrentConfig = BasedConfig | RetNetConfig | RwkvTimeConfig | RwkvChannelConfig | MambaConfig


def check_recurrent(config: RecurrentConfig, D: int, where: str) -> None:
    """Rules of one mixer in a model of width D. Raises ModelError."""

    def within(name: str, high: int | None = None) -> None:
        value = getattr(config, name)
        if value < 1 or (high is not None and value > high):
            limit = "positive" if high is None else f"in 1..{high}"
            raise ModelError(f"{where}: {name} is {value}, must be {limit}")

    def divides(heads: int, name: str, width: int) -> None:
        if width % heads:
            raise ModelError(f"{where}: {name} {width} is not divisible by heads {heads}")

    if isinstance(config, BasedConfig):
        within("heads")
        within("feature_width", MAX_FEATURES)
        divides(config.heads, "d_model", D)
    elif isinstance(config, RetNetConfig):
        within("heads", MAX_RETNET_HEADS)
        within("value_width")
        divides(config.heads, "value_width", config.value_width)
        divides(config.heads, "d_model", D)
        if D // config.heads % 2:
            raise ModelError(f"{where}: rotary positions need an even head width")
        if config.base <= 0:
            raise ModelError(f"{where}: base is {config.base}, must be positive")
    elif isinstance(config, RwkvChannelConfig):
        within("width")
    elif isinstance(config, MambaConfig):
        within("inner")
        within("rank")
        within("state", MAX_STATE)
        within("conv_taps", MAX_CONV_TAPS)
    if isinstance(config, BasedConfig | RetNetConfig) and config.eps <= 0:
        raise ModelError(f"{where}: eps is {config.eps}, must be positive")
