"""Types of the compiled kernels; what each does is in its docstring and in `reference/`."""

from collections.abc import Sequence
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

_F = NDArray[np.float32]
_I = NDArray[np.int64]
_D = NDArray[np.float64]
_C = NDArray[np.complex128]

module: ModuleType
build: str
lanes: int
head_taps: int

def available() -> list[str]: ...
def load(build: str) -> ModuleType: ...
def choose() -> str: ...
def forked() -> bool: ...

# tiles
def rows_to_tiles(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def tiles_to_rows(z: _F, channels: int, out: _F | None = None, *, threads: int = 1) -> _F: ...
def channels_to_tiles(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def tiles_to_channels(z: _F, channels: int, out: _F | None = None, *, threads: int = 1) -> _F: ...
def multiply_tiles(a: _F, b: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...

# convolutions
def transform_size(minimum: int) -> int: ...
def conv_scratch(size: int, length: int, *, threads: int = 1) -> int: ...
def conv_plan(new: int, history: int, taps: int) -> int: ...
def spectrum(taps: _F, size: int, out: _F | None = None, *, threads: int = 1) -> _F: ...
def long_conv(
    z: _F,
    spectrum: _F,
    start: int = 0,
    skip: _F | None = None,
    pre: _F | None = None,
    post: _F | None = None,
    out: _F | None = None,
    *,
    add: _F | None = None,
    spans: _I | None = None,
    threads: int = 1,
) -> _F: ...
def row_spectrum(taps: _F, size: int, *, threads: int = 1) -> _F: ...
def row_conv(
    z: _F,
    spectrum: _F,
    skip: _F | None = None,
    pre: _F | None = None,
    post: _F | None = None,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...
def pocket_conv(z: _F, taps: _F, size: int) -> _F: ...
def direct_conv(
    z: _F,
    taps: _F,
    start: int = 0,
    skip: _F | None = None,
    pre: _F | None = None,
    post: _F | None = None,
    out: _F | None = None,
    *,
    add: _F | None = None,
    spans: _I | None = None,
    threads: int = 1,
) -> _F: ...
def short_conv(
    x: _F,
    taps: _F,
    bias: _F | None,
    tail: _F,
    parts: int,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...

# the online convolution
def tile_plan(horizon: int, taps: int) -> tuple[int, int, bool]: ...
def future_fill(z: _F, taps: _F, out: _F, ahead: int = 0, *, threads: int = 1) -> None: ...

class OnlineFilter:
    def __init__(self, groups: int, total: int) -> None: ...
    def append(self, taps: _F) -> None: ...
    def prepare(self, largest: int, *, threads: int = 1) -> None: ...
    @property
    def groups(self) -> int: ...
    @property
    def taps(self) -> int: ...
    @property
    def known(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class OnlineState:
    def __init__(
        self,
        filter: OnlineFilter,
        horizon: int,
        first_unit: int,
        future: _F | None = None,
        keep: int = 0,
    ) -> None: ...
    @staticmethod
    def rolling_on(
        filter: OnlineFilter,
        first_unit: int,
        period: int,
        longest: int,
        horizon: int,
        base: int,
        past: Sequence[_F] = (),
        future: _F | None = None,
        keep: int = 0,
    ) -> OnlineState: ...
    @property
    def filter(self) -> OnlineFilter: ...
    @property
    def position(self) -> int: ...
    @property
    def horizon(self) -> int: ...
    @property
    def period(self) -> int: ...
    @property
    def longest(self) -> int: ...
    @property
    def kind(self) -> Literal["closed", "endless", "rolling", "direct"]: ...
    @property
    def room(self) -> int: ...
    @property
    def oldest(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def summed(self) -> int: ...
    @property
    def future(self) -> _F | None: ...
    def taps_for(self, n: int) -> int: ...
    def begin(self, *, threads: int = 1) -> None: ...
    def inputs(self, first: int, last: int) -> _F: ...
    def resume(self, first: int, inputs: _F) -> None: ...
    def rewind(self, position: int) -> None: ...
    def fork(self) -> OnlineState: ...

def online_conv(
    states: Sequence[OnlineState],
    counts: Sequence[int],
    z: _F,
    skip: _F | None = None,
    pre: _F | None = None,
    post: _F | None = None,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...

# the decode step
def conv_tail_bytes(before: int, channels: int, width: int, kept: int) -> int: ...

class ConvTail:
    rows: _F | None
    def __init__(self, before: int, channels: int, width: int, kept: int) -> None: ...
    @property
    def position(self) -> int: ...
    @property
    def oldest(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def inputs(self) -> _F: ...
    def take_in(self, x: _F) -> None: ...
    def rewind(self, position: int) -> None: ...
    def resume(self, position: int, inputs: _F) -> None: ...
    def fork(self) -> ConvTail: ...

class StepSeat: ...

class StepTape:
    def __init__(self, embedding: _F, positions: _F | None, worth: int) -> None: ...
    def hyena(
        self,
        norm: NormWeights,
        into: PackedLinear,
        in_bias: _F | None,
        taps: _F,
        short_bias: _F | None,
        skips: Sequence[_F | None],
        out: PackedLinear,
        out_bias: _F | None,
    ) -> None: ...
    def attention(
        self,
        norm: NormWeights,
        qkv: PackedLinear,
        qkv_bias: _F | None,
        heads: int,
        rotary: tuple[float, int] | None,
        window: int,
        out: PackedLinear,
        out_bias: _F | None,
    ) -> None: ...
    def mlp(
        self,
        norm: NormWeights,
        up: PackedLinear,
        up_bias: _F | None,
        kind: str,
        down: PackedLinear,
        down_bias: _F | None,
    ) -> None: ...
    def identity(self, norm: NormWeights) -> None: ...
    def head(self, norm: NormWeights, weight: PackedLinear, bias: _F | None) -> None: ...
    def seat(self, tails: Sequence[ConvTail], convs: Sequence[OnlineState]) -> StepSeat: ...
    def run(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        seats: Sequence[StepSeat],
        caches: Sequence[list[tuple[_F, _F, int, int]]],
        *,
        threads: int = 1,
    ) -> _F: ...

# filters
def sine_mlp(
    features: _D, weights: list[_D], biases: list[_D], freqs: list[_D], threads: int
) -> _F: ...
def filter_block(
    hidden: _F,
    weight: _F,
    times: _F | None,
    rates: _F | None,
    shift: float,
    t0: int,
    t1: int,
    threads: int,
) -> _F: ...

# dense layers
class Memory:
    def close(self) -> None: ...

def multiplies_thirds() -> bool: ...
def multiplies_pairs() -> bool: ...
def bound_freed_memory() -> None: ...

class Shelf: ...

class PackedLinear:
    def __init__(self, weight: _F, dtype: str = "float32", shelf: Shelf | None = None) -> None: ...
    @property
    def out_features(self) -> int: ...
    @property
    def in_features(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

def linear(
    x: _F,
    packed: PackedLinear,
    bias: _F | None = None,
    activation: str = "none",
    residual: _F | None = None,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...
def layer_norm(
    x: _F, weight: _F, bias: _F | None, eps: float, out: _F | None = None, *, threads: int = 1
) -> _F: ...
def rms_norm(x: _F, weight: _F, eps: float, out: _F | None = None, *, threads: int = 1) -> _F: ...
def exponential(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def gelu_tanh(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def gelu_erf(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def silu(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def glu(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...
def swiglu(x: _F, out: _F | None = None, *, threads: int = 1) -> _F: ...

# token-wise parts of a layer
class NormWeights:
    def __init__(self, kind: str, weight: _F, bias: _F | None, eps: float) -> None: ...

def project_conv(
    x: _F,
    norm: NormWeights | None,
    packed: PackedLinear,
    bias: _F | None,
    taps: _F,
    short_bias: _F | None,
    tails: _F | None,
    offsets: _I,
    parts: int,
    *,
    first: int = 0,
    memory: Memory | None = None,
    threads: int = 1,
) -> tuple[_F, _F]: ...
def add_tiles(
    residual: _F, z: _F, packed: PackedLinear, bias: _F | None, *, threads: int = 1
) -> None: ...
def add_gated_tiles(
    x: _F,
    norm: NormWeights | None,
    packed: PackedLinear,
    bias: _F | None,
    taps: _F,
    short_bias: _F | None,
    tails: _F | None,
    offsets: _I,
    z: _F,
    packed_out: PackedLinear,
    out_bias: _F | None,
    *,
    threads: int = 1,
) -> None: ...
def add_mlp(
    x: _F,
    norm: NormWeights,
    up: PackedLinear,
    up_bias: _F | None,
    kind: str,
    down: PackedLinear,
    down_bias: _F | None,
    *,
    threads: int = 1,
) -> None: ...

# recurrences
def linear_scan(
    q: _F,
    k: _F,
    v: _F,
    state: _F,
    decay: _F | None = None,
    out: _F | None = None,
    *,
    position: int = 0,
    taylor: bool = False,
    eps: float | None = None,
    threads: int = 1,
) -> _F: ...
def wkv_scan(
    k: _F, v: _F, w: _F, u: _F, state: _F, out: _F | None = None, *, threads: int = 1
) -> _F: ...
def selective_scan(
    x: _F,
    dt: _F,
    b: _F,
    c: _F,
    rates: _F,
    skip: _F,
    state: _F,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...

# attention
def rotary(
    x: _F,
    positions: NDArray[np.int64],
    heads: int,
    base: float,
    dims: int | None = None,
    *,
    threads: int = 1,
) -> _F: ...
def kv_append(keys: _F, values: _F, k: _F, v: _F, at: int) -> None: ...
def attend(
    q: _F,
    keys: _F,
    values: _F,
    first: int,
    start: int = 0,
    window: int = 0,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...
def attend_at(
    q: _F,
    at: _I,
    keys: _F,
    values: _F,
    start: int = 0,
    window: int = 0,
    out: _F | None = None,
    *,
    threads: int = 1,
) -> _F: ...
def lag_products(rows: _F, first: int, reach: int, *, threads: int = 1) -> _F: ...

# sums of complex exponentials
def modal_taps(poles: _C, residues: _C, t0: int, t1: int, *, threads: int = 1) -> _F: ...
def modal_scan(
    states: Sequence[_D],
    spans: Sequence[tuple[int, int]],
    poles: _D,
    residues: _D,
    skip: _F,
    z: _F,
    pre: _F | None = None,
    post: _F | None = None,
    *,
    parts: int = 1,
    out: _F | None = None,
    threads: int = 1,
) -> _F: ...
