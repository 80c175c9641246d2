"""Names and shapes of the tensors of recurrent mixers (docs/formats.md)."""

from __future__ import annotations

from ..config_recurrent import (
    BasedConfig,
    MambaConfig,
    RecurrentConfig,
    RetNetConfig,
    RwkvTimeConfig,
)

Shapes = dict[str, tuple[int, ...]]


def recurrent_shapes(mixer: RecurrentConfig, D: int) -> Shapes:
    """The tensors of one mixer in a model of width D, without prefix."""
    if isinstance(mixer, BasedConfig):
        queries = (mixer.heads * mixer.feature_width, D)
        return _weights(q_proj=queries, k_proj=queries, v_proj=(D, D), out_proj=(D, D))
    if isinstance(mixer, RetNetConfig):
        V = mixer.value_width
        found = _weights(q_proj=(D, D), k_proj=(D, D), v_proj=(V, D))
        return found | _weights(gate_proj=(V, D), out_proj=(D, V))
    if isinstance(mixer, MambaConfig):
        return _mamba(mixer, D)
    if isinstance(mixer, RwkvTimeConfig):
        vectors = ["mix_k", "mix_v", "mix_r", "time_decay", "time_first"]
        found = _weights(k_proj=(D, D), v_proj=(D, D), r_proj=(D, D), out_proj=(D, D))
    else:
        vectors = ["mix_k", "mix_r"]
        found = _weights(k_proj=(mixer.width, D), v_proj=(D, mixer.width), r_proj=(D, D))
    return found | dict.fromkeys(vectors, (D,))


def _mamba(mixer: MambaConfig, D: int) -> Shapes:
    inner, R, N = mixer.inner, mixer.rank, mixer.state
    found = _weights(
        in_proj=(2 * inner, D),
        short_conv=(inner, mixer.conv_taps),
        x_proj=(R + 2 * N, inner),
        dt_proj=(inner, R),
        out_proj=(D, inner),
    )
    found |= {"dt_proj.bias": (inner,), "A_log": (inner, N), "skip": (inner,)}
    if mixer.conv_bias:
        found["short_conv.bias"] = (inner,)
    if mixer.bias:
        found |= {"in_proj.bias": (2 * inner,), "out_proj.bias": (D,)}
    return found


def _weights(**shapes: tuple[int, ...]) -> Shapes:
    return {f"{name}.weight": shape for name, shape in shapes.items()}
