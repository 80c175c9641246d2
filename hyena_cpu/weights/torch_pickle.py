"""State dictionaries of PyTorch files (.ckpt, .pt, .bin), for `convert` only.

PyTorch's restricted unpickler does the reading (`weights_only=True`): it builds tensors, plain
containers, numbers and strings, and refuses everything else before running it.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .naming import readable
from .safetensors import widen

SUFFIXES = (".ckpt", ".pt", ".pth", ".bin")


def read(path: Path, skip: Callable[[str], bool]) -> dict[str, NDArray[np.float32]]:
    """Tensors of a state dictionary, or of the `state_dict` entry of a training checkpoint.

    Args:
        path: the file.
        skip: says of a name whether its tensor, whatever it holds, is to be left out.

    Raises:
        ModelError: PyTorch is missing, the file is damaged, or it holds anything but tensors.
    """
    try:
        import torch
    except ImportError as error:
        raise ModelError(
            f"{path}: reading this format needs PyTorch: pip install 'hyena-cpu[convert]'"
        ) from error
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # whatever else the unpickler trips over, the file is the cause
        raise ModelError(f"{path}: not a PyTorch file of plain tensors: {_why(error)}") from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise ModelError(f"{path}: holds a {type(content).__name__}, not a state dictionary")
    return {
        str(name): _array(name, value, path)
        for name, value in content.items()
        if not skip(str(name))
    }


def _why(error: Exception) -> str:
    """Our own words: those of the unpickler advise to switch its protection off."""
    advice = (
        "only tensors are read and nothing is run, so save the state_dict() alone, best as "
        "safetensors, where the model was made"
    )
    named = re.search(r"GLOBAL ([\w.]+)", str(error))
    if named:
        return f"it asks for {named[1]}, which was refused; {advice}"
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return f"it is damaged or holds other objects, which were refused; {advice}"
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _array(name: str, value: Any, path: Path) -> NDArray[np.float32]:
    import torch

    where = f"{path}: tensor {readable(name)}"
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"{where}: is a {type(value).__name__}, not a tensor")
    if value.layout != torch.strided or value.is_quantized or not value.is_floating_point():
        raise ModelError(f"{where}: {value.dtype} ({value.layout}) is not supported")
    if value.dtype == torch.bfloat16:
        value = value.to(torch.float32)
    if value.dtype not in (torch.float16, torch.float32, torch.float64):
        raise ModelError(f"{where}: dtype {value.dtype} is not supported")
    # A copy: shared storages (tied weights, views) must not stay shared.
    return widen(np.array(value.detach().contiguous().numpy()), where)
