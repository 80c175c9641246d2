"""One file per operator that mixes a sequence; all share one verb.

    mixer.extend(states, x, norm, ctx)

x [T, D] is the residual stream of the new rows, sequence after sequence; `states` has one state
per sequence, or is None when every sequence is new and none is to be continued. What the mixer
makes of norm(x) is added to x. How a sequence is cut into calls changes rounding only. A mixer that
is not `causal` reads complete sequences and has no states. One that can mix sequences which begin
alike side by side (`Context.prefix`) has `branches` = True. `buffers` and `state_bytes` say what
memory it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config import (
    AttentionConfig,
    BaseConvConfig,
    H3ConvConfig,
    HyenaConfig,
    LongConvConfig,
    MixerConfig,
)
from ..config_recurrent import (
    BasedConfig,
    MambaConfig,
    RetNetConfig,
    RwkvChannelConfig,
    RwkvTimeConfig,
)
from ..config_selection import AutocorrelationConfig, SelectionConfig
from ..config_ssm import H3Config, S4DConfig
from ..context import Context
from ..norm import Norm
from ..online_taps import Convolutions, OnlineTaps
from ..state import LayerState
from .attention import Attention
from .autocorrelation import Autocorrelation
from .base_conv import BaseConv
from .explicit import H3Conv, LongConv
from .h3 import H3
from .hyena import Hyena
from .linear_attention import Based, RetNet
from .mamba import Mamba
from .recurrent import Recurrent
from .rwkv import RwkvChannel, RwkvTime
from .s4d import S4D
from .selection import Selection

Floats = NDArray[np.float32]


class Mixer(Protocol):
    """What a layer needs of its operator."""

    causal: bool
    taps: list[OnlineTaps]  # its long convolutions

    def new_state(self) -> LayerState:
        """State of a sequence that has not begun."""

    def extend(self, states: Sequence[Any] | None, x: Floats, norm: Norm, ctx: Context) -> None:
        """Appends rows norm(x), x [T, D], to their sequences and adds its output to x."""

    def buffers(self, rows: int, *, alone: bool, kept: bool) -> list[tuple[str, int]]:
        """(name, bytes) of what one call on `rows` rows holds at its peak, filters apart.

        alone: they are one sequence. kept: it has a state, and what this holds afterwards is not
        counted here. A mixer whose states are smaller while they have only taken in a prompt says
        so in `prompt_bytes(length)`.
        """

    def state_bytes(self, length: int, ahead: int | None = None) -> int:
        """Bytes of one state after `length` tokens that grows on; `ahead`: by so many tokens at
        most, its history dropped.
        """


_MIXERS: dict[type, Any] = {
    HyenaConfig: Hyena,
    AttentionConfig: Attention,
    LongConvConfig: LongConv,
    H3ConvConfig: H3Conv,
    BaseConvConfig: BaseConv,
    BasedConfig: partial(Recurrent, Based),
    RetNetConfig: partial(Recurrent, RetNet),
    RwkvTimeConfig: partial(Recurrent, RwkvTime),
    RwkvChannelConfig: partial(Recurrent, RwkvChannel),
    MambaConfig: partial(Recurrent, Mamba),
    SelectionConfig: Selection,
    AutocorrelationConfig: Autocorrelation,
    H3Config: H3,
    S4DConfig: S4D,
}


def build_mixer(
    config: MixerConfig, tensors: Mapping[str, Floats], d_model: int, convolutions: Convolutions
) -> Mixer:
    """The operator a config describes, from its tensors (layer prefix removed)."""
    mixer: Mixer = _MIXERS[type(config)](config, tensors, d_model, convolutions)
    return mixer
