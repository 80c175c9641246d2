"""Configurations of the diagonal state-space mixers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import ModelError

MAX_STATE = 1 << 16  # of d_state; bounds what a small, wrong file can make us allocate


@dataclass(frozen=True)
class H3Config:
    """H3 (Fu et al. 2022, arXiv 2212.14052): a shift and a diagonal state space, three projections.

    d_state: taps of the shift filter, and twice the modes of the diagonal one, which is shared by
    the `head_dim`^2 products of a head.
    """

    d_state: int
    kind: Literal["h3"] = "h3"
    head_dim: int = 1
    discretization: Literal["bilinear", "zoh"] = "bilinear"


@dataclass(frozen=True)
class S4DConfig:
    """S4D (Gu et al. 2022, arXiv 2206.11893): out(gelu(conv(k, u) + skip u)), d_state / 2 modes."""

    d_state: int
    kind: Literal["s4d"] = "s4d"
    discretization: Literal["bilinear", "zoh"] = "zoh"


def check(mixer: H3Config | S4DConfig, d_model: int, where: str) -> None:
    """Rules that span several keys. Raises ModelError."""
    if not 2 <= mixer.d_state <= MAX_STATE or mixer.d_state % 2:
        raise ModelError(
            f"{where}: d_state is {mixer.d_state}, must be even and within 2..{MAX_STATE}"
        )
    if isinstance(mixer, H3Config) and (mixer.head_dim < 1 or d_model % mixer.head_dim):
        raise ModelError(
            f"{where}: d_model {d_model} is not divisible by head_dim {mixer.head_dim}"
        )
