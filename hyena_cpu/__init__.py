"""hyena-cpu: exact, fast inference of long-convolution language models on ordinary CPUs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import HyenaError, InputError, LimitError, ModelError, NumericError

if TYPE_CHECKING:
    from .linear import Dtype
    from .longconv import LongConv
    from .model import Model, plan
    from .network import Progress
    from .planner import Plan
    from .state import State
    from .step_plan import Decode
    from .weights import Weights

__version__ = "0.1.0"

__all__ = [
    "HyenaError",
    "InputError",
    "LimitError",
    "LongConv",
    "Model",
    "ModelError",
    "NumericError",
    "Plan",
    "State",
    "build_info",
    "load",
    "plan",
]

# Imported at first use, so that importing the package costs nothing.
_LAZY = {
    "LongConv": "longconv",
    "Model": "model",
    "Plan": "planner",
    "State": "state",
    "plan": "model",
}

RECALL = tuple(f"tiny-recall/{name}" for name in ("attention", "hybrid", "base_conv", "hyena"))
BUNDLED = {
    name: Path(__file__).parent / "assets" / name for name in ("tiny-en", "tiny-dna", *RECALL)
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def load(
    path: str | Path | None = None,
    *,
    family: str | None = None,
    modulation_shift: float | None = None,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | Path | None = None,
    threads: int | None = None,
    dtype: Dtype | None = None,
    decode: Decode = "auto",
    max_memory: int | None = None,
    compat: Iterable[str] = (),
    on_progress: Progress | None = None,
) -> Model:
    """Loads a model folder, a bundled model (`tiny-en`, `tiny-dna`, ...) or a model of the hub.

    Args:
        path: a native folder, or a Hugging Face, safari, H3 or Zoology folder with safetensors
            weights; a name in `BUNDLED` (None is `tiny-en`); or an id of the Hugging Face hub,
            ORG/NAME, for which HyenaDNA has short names (`hyena_cpu.hub.HYENADNA`). A folder comes
            before the hub.
        family: `native`, `hyenadna`, `safari`, `zoology` or `h3`, where the files do not tell.
        modulation_shift: overrides the window shift that the family implies.
        revision: branch, tag or commit of a model of the hub.
        offline: take models of the hub from the local cache alone (as with HF_HUB_OFFLINE=1).
        cache_dir: where models of the hub are kept, in the place of the usual cache.
        threads: None chooses from environment, CPU quota and cores. Never changes a result.
        dtype: what the dense layers multiply: `float32` (None), or `bfloat16`, about 1.8 times as
            fast on a CPU with such products, 3 times on one with AMX, and off by up to 1 part in
            100 (docs/accuracy.md).
        decode: how long convolutions go on token by token. `exact` (and `auto`): through tiles, at
            a cost that does not grow with the context. `direct`: plain sums over everything before,
            to compare with; the same numbers up to rounding.
        max_memory: bytes a run may take beyond the weights; a larger one is a LimitError.
        compat: behaviours of the originals to bring back, e.g. `wrap_filter`.
        on_progress: called with (done, total) during long calls, in tokens: the share of the
            layers that is done, of the tokens in the call.

    Raises:
        ModelError: the folder is missing, damaged, incomplete or of an unsupported kind; there is
            no such model on the hub, or it cannot be reached and the cache does not have it.
        InputError: an unknown dtype, decode or compat; `exact` or `direct` where nothing goes on
            that way; `revision` or `cache_dir` for a model that is not on the hub.
        NumericError: a weight is not finite.
    """
    from .model import Model
    from .threads import default_threads
    from .tokenizers import from_config

    weights = read_weights(
        path,
        family=family,
        modulation_shift=modulation_shift,
        revision=revision,
        offline=offline,
        cache_dir=cache_dir,
    )
    tokenizer = None
    config = weights.config
    if config.tokenizer is not None:
        tokenizer = from_config(config.tokenizer, weights.folder, config.vocab_size)
    return Model(
        weights,
        tokenizer,
        threads=default_threads(threads),
        dtype=dtype or "float32",
        decode=decode,
        max_memory=max_memory,
        compat=compat,
        on_progress=on_progress,
    )


def read_weights(
    path: str | Path | None = None,
    *,
    family: str | None = None,
    modulation_shift: float | None = None,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: str | Path | None = None,
    allow_nonfinite: bool = False,
) -> Weights:
    """The weights that `load` makes a model of; arguments and errors as there.

    `allow_nonfinite` lets tensors with NaN or infinities pass.
    """
    from .hub import HYENADNA, hub_id, is_unknown_name, refuse_idle, snapshot
    from .weights import load_folder

    wanted = "tiny-en" if path is None else path
    if not isinstance(wanted, str | os.PathLike):
        raise InputError(f"a model is the path of a folder or a name, got {wanted!r}")
    options: dict[str, Any] = {
        "family": family,
        "modulation_shift": modulation_shift,
        "allow_nonfinite": allow_nonfinite,
    }
    repo = None if str(wanted) in BUNDLED else hub_id(wanted)
    if repo is None:
        refuse_idle(str(wanted), revision=revision, cache_dir=cache_dir)
        if is_unknown_name(wanted) and wanted not in BUNDLED:
            names = ", ".join([*BUNDLED, *HYENADNA])
            raise ModelError(f"{wanted}: no such folder; names that need none: {names}")
        return load_folder(BUNDLED.get(str(wanted), wanted), **options)
    folder = snapshot(repo, revision=revision, cache_dir=cache_dir, offline=offline)
    weights = load_folder(folder, name=repo, **options)
    return replace(weights, notes=(f"{repo}: commit {folder.name}", *weights.notes))


def build_info() -> dict[str, Any]:
    """Version, kernel builds in this package and on this CPU, the one in use, OpenMP or not."""
    from . import kernels

    return {
        "version": __version__,
        "isa": kernels.build,
        "available": kernels.available(),
        "openmp": bool(kernels.module.openmp),
        "lanes": int(kernels.module.lanes),
    }
