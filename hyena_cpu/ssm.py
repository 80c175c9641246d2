"""State spaces as filters: their parameters to poles and residues, or to taps, in float64.

Shapes: C channels, S modes, K taps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Complex = NDArray[np.complex128]


def as_complex(pairs: Array) -> Complex:
    """[..., 2] as (real, imaginary) to complex128 [...]."""
    return pairs[..., 0] + 1j * pairs[..., 1].astype(np.float64)


def diagonal_modes(tensors: Mapping[str, Array], discretization: str) -> tuple[Complex, Complex]:
    """Poles and residues [C, S] with k[t] = Re sum_s residues poles^t, of a diagonal state space.

    Gu et al. 2022 (S4D, arXiv 2206.11893); only one of each conjugate pair of modes is there, hence
    the factor 2.

    Args:
        tensors: B, C [C, S, 2] as (real, imaginary), log_decay, frequency [C, S], log_dt [C].
        discretization: bilinear or zoh (zero-order hold).
    """
    a = -np.exp(_wide(tensors["log_decay"])) + 1j * _wide(tensors["frequency"])
    dt = np.exp(_wide(tensors["log_dt"]))[:, None]
    z = a * dt
    if discretization == "bilinear":
        poles, held = (1 + z / 2) / (1 - z / 2), dt / (1 - z / 2)
    else:
        poles, held = np.exp(z), np.expm1(z) / a
    return poles, 2 * as_complex(tensors["B"]) * as_complex(tensors["C"]) * held


def shift_taps(tensors: Mapping[str, Array]) -> Array:
    """Taps [C, K] of the shift state space of H3 (arXiv 2212.14052), k[t] = sum_n B[n] C[n + t].

    Args:
        tensors: B, C [C, K].
    """
    b, c = _wide(tensors["B"]), _wide(tensors["C"])
    taps = np.empty_like(b)
    for t in range(b.shape[1]):
        taps[:, t] = (b[:, : b.shape[1] - t] * c[:, t:]).sum(axis=1)
    return taps.astype(np.float32)


def _wide(a: Array) -> NDArray[np.float64]:
    return a.astype(np.float64)
