"""Freed memory: given back, so that what is taken shows in memory figures."""

from __future__ import annotations

import ctypes
import gc

from hyena_cpu import kernels


def give_back_freed() -> None:
    """What this process has freed goes back to the system, now and from now on (glibc)."""
    kernels.bound_freed_memory()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
