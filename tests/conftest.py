"""What every test file shares: the kernel builds of this machine, error measures, awkward views.

Use `from conftest import over_threads, rel_l2` for the helpers; fixtures need no import.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

# Read where kernels are loaded. Threads that wait for one another must not spin: tests ask for more
# of them than many a machine has cores, and those that spin then keep back those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hyena_cpu
from hyena_cpu import kernels as _kernels

EPS = float(np.finfo(np.float32).eps)
SEED = 20240229  # of random numbers, the same in every run
GOLDEN = Path(__file__).parent / "golden"
# Where the package under test is: the installed one, or the source tree of an in-place build.
PACKAGE_HOME = Path(hyena_cpu.__file__).parents[1]

THREADS = (1, 2, 3)
over_threads = pytest.mark.parametrize("threads", THREADS)


@pytest.fixture(params=_kernels.available())
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    """The extension module of each build that runs here, in turn."""
    return _kernels.load(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same in every test."""
    return np.random.default_rng(SEED)


def rel_l2(got: npt.ArrayLike, want: npt.ArrayLike) -> float:
    """||got - want|| / ||want|| over all elements, in float64; shapes must agree."""
    got64, want64 = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got64.shape == want64.shape, f"shape {got64.shape}, expected {want64.shape}"
    norm = float(np.linalg.norm(want64.ravel()))
    error = float(np.linalg.norm((got64 - want64).ravel()))
    return error / norm if norm > 0 else error


def misaligned(x: npt.NDArray[np.float32], floats: int = 1) -> npt.NDArray[np.float32]:
    """A contiguous copy of x that starts `floats` float32 past a 64-byte boundary."""
    store = np.zeros(x.size + floats + 16, np.float32)
    start = (-store.ctypes.data % 64) // 4 + floats
    view = store[start : start + x.size].reshape(x.shape)
    view[...] = x
    return view


def strided_rows(x: npt.NDArray[np.float32], before: int = 3) -> npt.NDArray[np.float32]:
    """A copy of x [rows, columns] as a column slice of a wider array filled with NaN."""
    wide = np.full((x.shape[0], x.shape[1] + before + 5), np.nan, np.float32)
    view = wide[:, before : before + x.shape[1]]
    view[...] = x
    return view


def strided_tiles(z: npt.NDArray[np.float32], before: int = 3) -> npt.NDArray[np.float32]:
    """A copy of tiles [G, T, 16] as a time slice of longer tiles filled with NaN."""
    longer = np.full((z.shape[0], z.shape[1] + before + 4, z.shape[2]), np.nan, np.float32)
    view = longer[:, before : before + z.shape[1]]
    view[...] = z
    return view


def shared_path(*parts: str) -> Path:
    """A file of the shared test data; skips the test where that data is absent."""
    root = os.environ.get("HYENA_CPU_SHARED")
    folder = Path(root) if root else Path(__file__).parents[2] / "shared"
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{'/'.join(parts)} is absent; HYENA_CPU_SHARED names the folder that has it")
    return path


def causal(w: npt.ArrayLike, taps: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The causal convolution of rows [G, S, 16] through float64 transforms."""
    S, M = np.shape(w)[1], np.shape(w)[1] + np.shape(taps)[1]
    # numpy's transforms are faster along the last axis
    rows = (np.swapaxes(a, 1, 2).astype(np.float64, order="C") for a in (w, taps))
    product = np.multiply(*(np.fft.rfft(a, M) for a in rows))
    return np.fft.irfft(product, M)[..., :S].swapaxes(1, 2)


def environment(**changes: str) -> dict[str, str]:
    """Variables for a process that imports the package under test: none of ours but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HYENA_CPU", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(PACKAGE_HOME), **changes}
