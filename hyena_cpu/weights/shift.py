"""The constant that is added to the windows of implicit filters.

Files of one format mean different values by saying nothing, so it is told and can be replaced.
"""

from __future__ import annotations

import dataclasses

from ..config import FilterConfig, HyenaConfig, ModelConfig


def windowed(config: ModelConfig) -> list[FilterConfig]:
    """The filters that have a window to shift."""
    filters = [x.mixer.filter for x in config.layers if isinstance(x.mixer, HyenaConfig)]
    return [f for f in filters if f.kind == "implicit" and f.modulate]


def shift_note(config: ModelConfig) -> str:
    """For notes: the shift of the windows, empty without any."""
    shifts = {f.shift for f in windowed(config)}
    return f", window shift {shifts.pop()}" if shifts else ""


def with_shift(config: ModelConfig, shift: float | None) -> ModelConfig:
    """The config with another shift in every implicit filter; None changes nothing."""
    if shift is None:
        return config
    layers = []
    for layer in config.layers:
        if isinstance(layer.mixer, HyenaConfig) and layer.mixer.filter.kind == "implicit":
            filter = dataclasses.replace(layer.mixer.filter, shift=shift)
            mixer = dataclasses.replace(layer.mixer, filter=filter)
            layer = dataclasses.replace(layer, mixer=mixer)
        layers.append(layer)
    return dataclasses.replace(config, layers=tuple(layers))
