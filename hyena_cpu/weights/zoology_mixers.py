"""The sequence mixers of Zoology (see zoology.py), a function for each class.

It reads the options of the class and says which tensors its layer has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..config import (
    AttentionConfig,
    BaseConvConfig,
    FilterConfig,
    MixerConfig,
)
from ..config_selection import SelectionConfig
from ..errors import ModelError
from . import backbone, h3, safari
from .foreign import Keys
from .naming import Array, Tensor
from .native import mixer_shapes
from .zoology_recurrent import RECURRENT, stored_shape

_Choice = Literal["softmax_top", "sigmoid_top", "sma_top"]


@dataclass(frozen=True)
class Place:
    """Where a mixer stands."""

    layer: int  # its number
    d_model: int
    stored: Mapping[str, Array]  # the tensors of the layer's mixer, by their full names
    shift: float | None  # of filter windows, if the caller asked for one


@dataclass(frozen=True)
class Found:
    """A mixer as the engine knows it.

    tensors: one for each native tensor of the mixer; both names without the prefix of the layer.
    unused: stored names, likewise, that the original writes and the engine has no use for.
    max_length: the longest sequence that the original takes, or None.
    """

    mixer: MixerConfig
    tensors: list[Tensor]
    unused: tuple[str, ...] = ()
    max_length: int | None = None


def renamed(mixer: MixerConfig, D: int, names: Mapping[str, str]) -> list[Tensor]:
    """The tensors of a mixer in their native shapes.

    names: the stored names of those that differ, by native name; both may stand for what comes
    before `.weight` and `.bias`.
    """
    found = []
    for name, shape in mixer_shapes(mixer, D).items():
        stem, _, last = name.rpartition(".")
        stored = names.get(name) or f"{names.get(stem, stem)}.{last}"
        found.append(Tensor(name, shape, (stored,)))
    return found


def reshaped(tensor: Tensor, stored: tuple[int, ...]) -> Tensor:
    """A tensor that lies in the file in another shape, its numbers in the same order."""
    return dataclasses.replace(tensor, shape=stored, convert=lambda a: a.reshape(tensor.shape))


# ---- one function for every class


def _mha(options: Keys, place: Place) -> Found:
    options.require("bias", True, "the original has the bias of out_proj all the same")
    mixer = AttentionConfig(heads=options.positive("num_heads", 1))
    options.skip("dropout")
    return Found(mixer, renamed(mixer, place.d_model, {"qkv": "Wqkv"}))


def _hyena(options: Keys, place: Place) -> Found:
    """Chunks x1, x2, v, of which the first is the inner gate; in the engine it is the second."""
    options.require("order", 2, "the original runs no other order")
    options.require("bidirectional", False, "the original fails")
    shift = options.number("shift", 0.0)
    mixer = safari.hyena_config(options, shift if place.shift is None else place.shift)
    backbone.check_grid_length(mixer.filter.taps, "l_max", place.stored, options.where)
    tensors = [
        _gates_swapped(tensor) if tensor.native.startswith(("in_proj.", "short_conv.")) else tensor
        for tensor in backbone.hyena_operator(mixer, place.d_model)
    ]
    unused = tuple(backbone.unused_keys("", mixer))
    return Found(mixer, tensors, unused, max_length=mixer.filter.taps)


def _gates_swapped(tensor: Tensor) -> Tensor:
    """With the first two thirds of the rows in each other's place."""
    before = tensor.convert

    def swapped(a: Array) -> Array:
        first, second, value = np.split(a if before is None else before(a), 3)
        return np.concatenate([second, first, value])

    return dataclasses.replace(tensor, convert=swapped)


def _base_conv(options: Keys, place: Place) -> Found:
    activation = options.flag("use_act", False)
    implicit = options.flag("implicit_long_conv", True)
    taps, size = options.positive("l_max"), _kernel_size(options, place.layer)
    if size > 0:
        mixer = BaseConvConfig(short_taps=size, activation=activation)
    elif implicit:
        filter = FilterConfig("relu_mlp", taps, width=16, bands=1)
        mixer = BaseConvConfig(filter, activation=activation)
    else:
        mixer = BaseConvConfig(FilterConfig("explicit", taps), activation=activation)
    tensors = renamed(mixer, place.d_model, _BASE_CONV_NAMES)
    return Found(mixer, [_base_conv_tensor(tensor) for tensor in tensors])


def _kernel_size(options: Keys, layer: int) -> int:
    """Taps of a short convolution, or -1 for a long one; a list has one entry a layer."""
    found = options.data.get("kernel_size", 3)
    options.skip("kernel_size")
    if isinstance(found, list):
        if layer >= len(found):
            raise ModelError(
                f"{options.where}: kernel_size lists {len(found)} layers, there is a layer {layer}"
            )
        found = found[layer]
    if type(found) is not int or (found < 1 and found != -1):
        raise ModelError(
            f"{options.where}: kernel_size of layer {layer} is {found!r:.60}, "
            "must be a number of taps or -1"
        )
    return found


_BASE_CONV_NAMES = {
    "short_conv": "conv.conv",
    "filter.taps": "conv.filter",
    "filter.features": "conv.pos_emb.z",
    "filter.linear.0": "conv.mlp.0",
    "filter.linear.1": "conv.mlp.2",
}


def _base_conv_tensor(tensor: Tensor) -> Tensor:
    """As it is stored: two have an axis of length 1 more."""
    if tensor.native == "short_conv.weight":
        return reshaped(tensor, (tensor.shape[0], 1, tensor.shape[1]))
    return reshaped(tensor, (1, *tensor.shape)) if tensor.native == "filter.features" else tensor


def _sliding_attention(options: Keys, place: Place) -> Found:
    """Of one head. A row sees the `block_size` before it, and itself."""
    options.require("bias", True, "the original has the bias of out_proj all the same")
    mixer = AttentionConfig(heads=1, window=options.positive("block_size", 256) + 1)
    options.skip("dropout")
    return Found(mixer, renamed(mixer, place.d_model, {"qkv": "Wqkv"}))


def _recurrent(name: str) -> Callable[[Keys, Place], Found]:
    read, names = RECURRENT[name]

    def found(options: Keys, place: Place) -> Found:
        mixer = read(options, place.d_model)
        tensors = [
            reshaped(tensor, stored_shape(tensor.native, tensor.shape))
            for tensor in renamed(mixer, place.d_model, names)
        ]
        return Found(mixer, tensors)

    return found


def _lookups(choose: _Choice, score: str) -> Callable[[Keys, Place], Found]:
    """Of the three classes that attend from chosen positions; `score`: their stored scorer."""

    def read(options: Keys, place: Place) -> Found:
        count = None
        if choose == "sigmoid_top" and options.has("n_lookups"):
            count = options.positive("n_lookups")
        mixer = SelectionConfig(
            heads=options.positive("num_heads", 1),
            choose=choose,
            count=count,
            bias=options.flag("bias", True),
        )
        options.skip("dropout layer_idx n_lookups selection_penalty alpha")
        names = {"qkv": "Wqkv", "score": score}
        tensors = renamed(mixer, place.d_model, names)
        if choose == "sma_top":
            tensors[-1] = dataclasses.replace(tensors[-1], keys=("temperature",))
        return Found(mixer, tensors)

    return read


def _h3(options: Keys, place: Place) -> Found:
    mixer, longest = h3.options(options, place.d_model)
    tensors = h3.layer_tensors(mixer, place.d_model, place.stored)
    return Found(mixer, tensors, max_length=longest or None)


MIXERS: dict[str, Callable[[Keys, Place], Found]] = {
    "MHA": _mha,
    "Hyena": _hyena,
    "BaseConv": _base_conv,
    "SlidingAttn": _sliding_attention,
    **{name: _recurrent(name) for name in RECURRENT},
    "SelectiveLookups": _lookups("softmax_top", "selecting"),
    "SigmoidLookups": _lookups("sigmoid_top", "selecting"),
    "SMA": _lookups("sma_top", "selection_proj"),
    "H3": _h3,
}
