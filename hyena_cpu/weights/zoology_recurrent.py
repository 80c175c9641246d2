"""Zoology's recurrent classes: their options, and what they call their tensors.

`Based` is compared with outputs of the original. The others run on GPUs alone there: what stands
here comes from reading them. RWKV's average is rounded to bfloat16 there, here it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..config_recurrent import BasedConfig, MambaConfig, RecurrentConfig, RwkvTimeConfig
from .foreign import Keys


def _based(options: Keys, D: int) -> BasedConfig:  # noqa: ARG001 (every class is read alike)
    heads = options.positive("num_heads", 12)
    options.require("num_key_value_heads", heads, "keys and values have as many heads as queries")
    options.require("feature_name", "taylor_exp", "there are no other features")
    options.require("causal", True, "a sequence is read from left to right")
    options.skip("l_max train_view")
    width = options.positive("feature_dim", 16)
    return BasedConfig(heads, width, eps=options.number("eps", 1e-12))


def _rwkv_time(options: Keys, D: int) -> RwkvTimeConfig:  # noqa: ARG001
    options.skip("l_max n_layer layer_idx")
    return RwkvTimeConfig()


def _mamba(options: Keys, D: int) -> MambaConfig:
    options.skip("dt_rank dt_min dt_max dt_init dt_scale dt_init_floor use_fast_path layer_idx")
    by_width = options.data.get("dt_rank", "auto") == "auto"
    return MambaConfig(
        inner=options.positive("expand", 2) * D,
        rank=-(-D // 16) if by_width else options.positive("dt_rank"),
        state=options.positive("d_state", 16),
        conv_taps=options.positive("d_conv", 4),
        conv_bias=options.flag("conv_bias", True),
        bias=options.flag("bias", False),
    )


Reader = Callable[[Keys, int], RecurrentConfig]

# By class: its options and the width of the model -> the mixer; stored names by native name, of
# those that differ or have no `.weight`.
RECURRENT: dict[str, tuple[Reader, Mapping[str, str]]] = {
    "Based": (
        _based,
        {"q_proj": "proj_q", "k_proj": "proj_k", "v_proj": "proj_v", "out_proj": "proj_o"},
    ),
    "RWKVTimeMixer": (
        _rwkv_time,
        {
            "k_proj": "key",
            "v_proj": "value",
            "r_proj": "receptance",
            "out_proj": "output",
            "mix_k": "time_mix_k",
            "mix_v": "time_mix_v",
            "mix_r": "time_mix_r",
            "time_decay": "time_decay",
            "time_first": "time_first",
        },
    ),
    "Mamba": (_mamba, {"short_conv": "conv1d", "skip": "D", "A_log": "A_log"}),
}


def stored_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in the file of a tensor with this native name and shape."""
    if name.startswith("mix_"):
        return 1, 1, *shape
    return (shape[0], 1, shape[1]) if name == "short_conv.weight" else shape
