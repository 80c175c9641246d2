"""hyena-cpu: exact, fast inference of long-convolution language models on ordinary CPUs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import HyenaError, InputError, LimitError, ModelError, NumericError

if TYPE_CHECKING:
    from .engine import Progress
    from .longconv import LongConv
    from .model import Model
    from .planner import Plan, plan
    from .state import State

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
    "plan": "planner",
}

BUNDLED = {name: Path(__file__).parent / "assets" / name for name in ("tiny-en", "tiny-dna")}


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
    threads: int | None = None,
    max_memory: int | None = None,
    compat: Iterable[str] = (),
    on_progress: Progress | None = None,
) -> Model:
    """Loads a model folder; None or a bundled name (`tiny-en`, `tiny-dna`) loads a bundled model.

    Args:
        path: a native folder, or a Hugging Face or safari folder with safetensors weights.
        family: `native`, `hyenadna` or `safari`, where the files do not tell.
        modulation_shift: overrides the window shift that the family implies.
        threads: None chooses from environment, CPU quota and cores. Never changes a result.
        max_memory: bytes a run may take beyond the weights; a larger one is a LimitError.
        compat: behaviours of the originals to bring back, e.g. `wrap_filter`.
        on_progress: called with (done, total) during long calls, in tokens: the share of the
            layers that is done, of the tokens in the call.

    Raises:
        ModelError: the folder is missing, damaged, incomplete or of an unsupported kind.
        NumericError: a weight is not finite.
    """
    from .model import Model
    from .threads import default_threads
    from .tokenizers import from_config
    from .weights import load_folder

    wanted = "tiny-en" if path is None else path
    weights = load_folder(
        BUNDLED.get(str(wanted), wanted), family=family, modulation_shift=modulation_shift
    )
    tokenizer = None
    config = weights.config
    if config.tokenizer is not None:
        tokenizer = from_config(config.tokenizer, weights.folder, config.vocab_size)
    return Model(
        weights,
        tokenizer,
        threads=default_threads(threads),
        max_memory=max_memory,
        compat=compat,
        on_progress=on_progress,
    )


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
