"""The tensors of a folder: one safetensors file, or several with an index."""

from __future__ import annotations

from pathlib import Path

from .. import config_json
from ..errors import ModelError
from . import safetensors
from .naming import Array, is_training_leftover
from .torch_pickle import SUFFIXES

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_folder(folder: Path) -> tuple[dict[str, Array], str]:
    """All tensors and the name of what was read, for messages. Raises ModelError."""
    if (folder / WHOLE).exists():
        return safetensors.read(folder / WHOLE, is_training_leftover), str(folder / WHOLE)
    if (folder / INDEX).exists():
        return _read_shards(folder), str(folder / INDEX)
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in SUFFIXES)
    if pickles:
        raise ModelError(
            f"{folder}: has only {pickles[0]}, a PyTorch file; "
            f"make a safe copy first: hyena-cpu convert {folder} NEW_FOLDER"
        )
    raise ModelError(f"{folder}: has neither {WHOLE} nor {INDEX}")


def _read_shards(folder: Path) -> dict[str, Array]:
    """Every tensor from the shard the index names; index and shards must agree exactly."""
    where = folder / INDEX
    index = config_json.read(where)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise ModelError(f"{where}: weight_map must be an object of tensor and file names")
    # All names are checked before any file is opened.
    for shard in listed.values():
        if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\:\0"):
            raise ModelError(f"{where}: {shard!r:.80} is not the plain name of a file beside it")
    tensors: dict[str, Array] = {}
    for shard in sorted(set(listed.values())):
        found = safetensors.read(folder / shard, is_training_leftover)
        wanted = {n for n, s in listed.items() if s == shard and not is_training_leftover(n)}
        if wanted != set(found):
            odd = sorted(wanted ^ set(found))[0]
            verb = "lacks" if odd in wanted else "also holds"
            raise ModelError(f"{where}: {shard} {verb} tensor {odd}, unlike the index says")
        tensors |= found
    return tensors
