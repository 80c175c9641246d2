"""The state-dict layout that safari and HyenaDNA share, read from both published codes.

The tables are in docs/formats.md.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from ..config import HyenaConfig, MixerConfig, ModelConfig
from ..errors import ModelError
from .naming import Array, Tensor
from .native import mixer_shapes, shapes

MODEL_KEYS = {  # of what is outside the layers
    "embedding.weight": "backbone.embeddings.word_embeddings.weight",
    "positions.weight": "backbone.embeddings.position_embeddings.weight",
    "norm.weight": "backbone.ln_f.weight",
    "norm.bias": "backbone.ln_f.bias",
    "head.weight": "lm_head.weight",
}
_LAYER_KEYS = {"mlp.up": "mlp.fc1", "mlp.down": "mlp.fc2", "mixer.qkv": "mixer.Wqkv"}
_MAX_REBUILT = 1 << 24  # times; sixteen times the longest public model


def tensors(
    config: ModelConfig, *, head: Mapping[str, str], may_rebuild: frozenset[str]
) -> Iterator[Tensor]:
    """Every tensor of a language model; a tied head is a copy of the embedding.

    Args:
        config: the model.
        head: stored names of the classifier's tensors by native name.
        may_rebuild: which of features, times and deltas are computed where the file lacks them.
    """
    for name, shape in shapes(config).items():
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        if layer is None:
            keys = [head.get(name) or MODEL_KEYS[name]]
            if name == "embedding.weight" and config.tie_embeddings:
                keys.append("lm_head.weight")
            yield Tensor(name, shape, tuple(keys))
            continue
        prefix, part = f"backbone.layers.{layer[1]}.", layer[2]
        mixer = config.layers[int(layer[1])].mixer
        if isinstance(mixer, HyenaConfig) and part.startswith("mixer."):
            yield _hyena(name, part[6:], shape, prefix + "mixer.", mixer, may_rebuild)
        else:
            stem, _, last = part.rpartition(".")
            yield Tensor(name, shape, (f"{prefix}{_LAYER_KEYS.get(stem, stem)}.{last}",))


def hyena_operator(mixer: HyenaConfig, D: int) -> list[Tensor]:
    """The tensors of one Hyena operator, stored without any prefix."""
    return [
        _hyena(n, n, shape, "", mixer, frozenset()) for n, shape in mixer_shapes(mixer, D).items()
    ]


def check_layer_count(
    layers: int, stored: Mapping[str, Array], where: str, key: str = "n_layer"
) -> None:
    """Compares the depth, which config key `key` gives, with the file, before anything is built for
    every layer.

    Raises:
        ModelError: the numbers differ.
    """
    found = {
        int(m[1]) for m in map(re.compile(r"backbone\.layers\.(\d{1,9})\.").match, stored) if m
    }
    if found and layers != max(found) + 1:
        raise ModelError(f"{where}: {key} is {layers} but the file has {max(found) + 1} layers")
    if layers > len(stored):
        raise ModelError(f"{where}: {key} is {layers} but the file has no layers")


def check_grid_length(taps: int, key: str, stored: Mapping[str, Array], where: str) -> None:
    """Compares l_max, which config key `key` gives, with the stored grids z.

    Raises:
        ModelError: a grid has another length, so config and weights are of two checkpoints.
    """
    for name, z in stored.items():
        if name.endswith("filter_fn.pos_emb.z") and z.ndim == 3 and z.shape[1] != taps:
            raise ModelError(
                f"{where}: {key} is {taps} but the grid {name} was made for {z.shape[1]}: "
                "the configuration is of another checkpoint"
            )


def unused_keys(prefix: str, mixer: MixerConfig) -> list[str]:
    """Tensors the original code always stores, even where the configuration turns them off."""
    if not isinstance(mixer, HyenaConfig):
        return []
    keys = [] if mixer.skip else [f"{prefix}filter_fn.bias"]
    return keys if mixer.filter.modulate else [*keys, f"{prefix}filter_fn.modulation.deltas"]


def _hyena(
    native: str,
    part: str,
    shape: tuple[int, ...],
    prefix: str,
    mixer: HyenaConfig,
    may_rebuild: frozenset[str],
) -> Tensor:
    """A tensor of a Hyena operator: stored name, stored shape, order of channels, substitute."""
    steps, filter = mixer.order - 1, prefix + "filter_fn."
    L, E = mixer.filter.taps, 2 * mixer.filter.bands + 1
    step_major = _step_major(steps)
    if L > _MAX_REBUILT:
        may_rebuild = frozenset()
    kind, _, index = part.removeprefix("filter.").partition(".")
    number = int(index.partition(".")[0]) if kind in ("linear", "freq") else -1
    if part == "short_conv.weight":
        return Tensor(
            native, (shape[0], 1, shape[1]), (prefix + "short_filter.weight",), _without_middle
        )
    if part == "short_conv.bias":
        return Tensor(native, shape, (prefix + "short_filter.bias",))
    if part == "skip":
        stored = (math.prod(shape),)
        return Tensor(
            native, stored, (filter + "bias",), lambda a: step_major(a).reshape(steps, -1)
        )
    if part == "filter.features":
        make = (lambda: positional_features(L, E)[None]) if kind in may_rebuild else None
        return Tensor(native, (1, *shape), (filter + "pos_emb.z",), _first, make)
    if part == "filter.times":
        make = (lambda: linspace(0, 1, L)[None, :, None]) if kind in may_rebuild else None
        return Tensor(native, (1, *shape, 1), (filter + "pos_emb.t",), np.ravel, make)
    if part == "filter.deltas":
        make = (lambda: decay_rates(shape[0])[None, None]) if kind in may_rebuild else None
        key = filter + "modulation.deltas"
        return Tensor(native, (1, 1, *shape), (key,), lambda a: step_major(a.ravel()), make)
    if kind == "freq":
        # One vector, stored under the name of every sine layer or of the first alone.
        names = [
            f"{filter}implicit_filter.{2 * k + 1}.freq" for k in range(mixer.filter.sine_layers)
        ]
        return Tensor(native, (1, *shape), tuple(names), _first)
    if kind == "linear":
        key = f"{filter}implicit_filter.{2 * number}.{index.partition('.')[2]}"
        last = number == mixer.filter.sine_layers
        return Tensor(native, shape, (key,), step_major if last else None)
    return Tensor(native, shape, (prefix + part,))


def _first(a: Array) -> Array:
    row: Array = a[0]
    return row


def _without_middle(a: Array) -> Array:
    return a.reshape(a.shape[0], a.shape[2])


def _step_major(steps: int) -> Callable[[Array], Array]:
    """Channel order (d, o), as the originals flatten it, to (o, d)."""

    def reorder(a: Array) -> Array:
        swapped: Array = a.reshape(-1, steps, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape)
        return swapped

    return reorder


def linspace(start: float, end: float, count: int) -> Array:
    """Evenly spaced float32 numbers, bit for bit as PyTorch makes them.

    It counts from both ends to the middle with one fused multiply-add each, and rounds the step
    to float32.
    """
    if count == 1:
        return np.full(1, start, np.float32)
    step = np.float64((np.float32(end) - np.float32(start)) / np.float32(count - 1))
    i = np.arange(count)
    up, down = np.float32(start) + step * i, np.float32(end) - step * i[::-1]
    return np.where(i < count // 2, up, down).astype(np.float32)


@functools.lru_cache(maxsize=1)  # all layers of a model share one grid, 20 MB at a million taps
def positional_features(L: int, E: int) -> Array:
    """z [L, E] in float32, not to be written to: time, then cosines, then minus sines.

    Source: the positional embedding of the published HyenaDNA code (arXiv 2306.15794).
    """
    bands = linspace(1e-4, (E - 1) // 2 - 1, (E - 1) // 2)
    angle = np.float32(2 * math.pi) * linspace(0, L - 1, L) / np.float32(L)
    turns = bands * angle[:, None]
    z: Array = np.concatenate([linspace(0, 1, L)[:, None], np.cos(turns), -np.sin(turns)], axis=1)
    z.flags.writeable = False
    return z


def decay_rates(C: int) -> Array:
    """Window exponents [C], slow to fast: down to 0.01 after 1.5 to 0.3 of the range."""
    return linspace(math.log(0.01) / 1.5, math.log(0.01) / 0.3, C)
