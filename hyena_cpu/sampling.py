"""From one row of logits to the next token: pure functions, no global random state.

Order: penalties, temperature, top-k, top-p, min-p, draw. At least one candidate always stays, and
ids from the vocabulary's end on are never candidates. Ties go to the lower id everywhere.

Shapes: V ids that can be drawn.
"""

from __future__ import annotations

import math
import numbers
import secrets
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import check_whole
from .errors import InputError, ModelError, NumericError

Floats = NDArray[np.float64]

FILTER_ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p", "draw")
GREEDY_BELOW = 1e-6  # a temperature under this is argmax: dividing by it says nothing more
LEAST_PENALTY = 1e-100  # smaller ones say nothing more, and would divide to infinity
ROUNDING = 1e-7  # mass by which a float32 row may miss an exact top_p such as 0.4 + 0.3


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. The defaults are greedy; a value that is off changes nothing.

    Raises:
        InputError: a value outside its range, with the range.
    """

    temperature: float = 0.0  # 0: the most likely token
    top_k: int = 0  # keep the k most likely; 0: all
    top_p: float = 1.0  # keep the smallest set with this mass; 1: all
    min_p: float = 0.0  # keep those with at least this share of the best one's probability
    repetition_penalty: float = 1.0  # logits of seen tokens: positive / penalty, negative * penalty
    repetition_last_n: int | None = None  # tokens that count as seen, prompt included; None: all

    def __post_init__(self) -> None:
        last_n = self.repetition_last_n
        vars(self).update(
            temperature=_real("temperature", self.temperature, math.inf),
            top_k=check_whole("top_k", self.top_k, 0),
            top_p=_real("top_p", self.top_p, 1.0),
            min_p=_real("min_p", self.min_p, 1.0),
            repetition_penalty=_real(
                "repetition_penalty", self.repetition_penalty, math.inf, above=True
            ),
            repetition_last_n=(
                None if last_n is None else check_whole("repetition_last_n", last_n, 1)
            ),
        )
        if self.repetition_last_n is not None and self.repetition_penalty == 1:
            raise InputError("repetition_last_n does nothing without a repetition_penalty")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW


def resolve(asked: Mapping[str, Any], defaults: Mapping[str, Any]) -> SamplingParams:
    """Settings of one run: what the user asked for over the model's `generation_config.json`.

    Args:
        asked: SamplingParams fields and `greedy`; None means not given.
        defaults: decoded generation_config.json; `do_sample: false` there means greedy,
            `true` without a temperature means temperature 1.

    Without any temperature the result is greedy, except that asking for top_k, top_p or min_p
    means sampling at temperature 1: a filter cannot act on argmax.

    Raises:
        InputError: a value is out of range, or greedy is asked for together with what it excludes.
        ModelError: the model's own defaults are out of range.
    """
    given = {name: value for name, value in asked.items() if value is not None}
    greedy = given.pop("greedy", None)
    filters = {"top_k", "top_p", "min_p"}
    clash = sorted((filters | {"temperature"}) & set(given))
    if greedy and clash:
        raise InputError(f"{clash[0]} has no effect on greedy decoding: leave one of them out")
    values = _defaults(defaults) | given
    if values.get("repetition_penalty", 1) == 1 and "repetition_last_n" not in given:
        values.pop("repetition_last_n", None)  # the model's own, for a penalty now switched off
    if greedy:
        values["temperature"] = 0.0
    elif greedy is False or filters & set(given):
        values.setdefault("temperature", 1.0)
    return SamplingParams(**values)


def _defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ModelError("generation_config.json: must hold a JSON object of settings")
    names = SamplingParams.__dataclass_fields__
    values = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("do_sample") is False:
        values.pop("temperature", None)
    elif config.get("do_sample") is True:
        values.setdefault("temperature", 1.0)
    try:
        SamplingParams(**values)
    except InputError as error:
        raise ModelError(f"generation_config.json: {error}") from None
    return values


def choose_seed(seed: int | None) -> int:
    """The seed itself, or a random one; InputError unless it fits 64 unsigned bits."""
    if seed is None:
        return secrets.randbits(64)
    return check_whole("seed", seed, 0, (1 << 64) - 1)


class Uniforms:
    """Numbers in [0, 1) that depend on (seed, sample, position) and on nothing else.

    Philox 4x64 (Salmon et al. 2011) with key (seed, sample) and counter = position; the first of
    the four words of each counter is used, its upper 53 bits.
    """

    def __init__(self, seed: int, sample: int, position: int) -> None:
        key = np.array([seed, sample], np.uint64)
        # numpy's generator steps its counter before the first word.
        counter = (position - 1) % (1 << 256)
        self._philox = np.random.Philox(key=key, counter=counter)

    def draw(self) -> float:
        """The number of this position; the next call gives that of the next position."""
        return float(int(self._philox.random_raw(4)[0]) >> 11) * 2.0**-53


class SeenTokens:
    """Which ids occurred among the last n tokens: the mask that the repetition penalty acts on."""

    def __init__(self, vocab_size: int, last_n: int | None, tokens: Iterable[int] = ()) -> None:
        self._counts = np.zeros(vocab_size, np.int64)
        self._recent: deque[int] | None = None if last_n is None else deque(maxlen=last_n)
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Counts one more token; with a window, the oldest one falls out."""
        recent = self._recent
        if recent is not None:
            if len(recent) == recent.maxlen:
                self._count(recent[0], -1)
            recent.append(token)
        self._count(token, 1)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """bool [V]: True for ids seen at least once."""
        return self._counts > 0

    def _count(self, token: int, change: int) -> None:
        if token < len(self._counts):  # a prompt may hold padded rows; they are never drawn
            self._counts[token] += change


def check_finite(logits: NDArray[np.float32], position: int) -> None:
    """NumericError unless every logit of the row is a finite number."""
    if not np.isfinite(logits).all():
        bad = int(np.flatnonzero(~np.isfinite(logits))[0])
        raise NumericError(
            f"the logits of position {position} are not finite (id {bad} has {logits[bad]}): "
            "the weights or the input are damaged, nothing is drawn"
        )


def logprob(logits: NDArray[np.float32], token: int) -> float:
    """Natural log of the token's probability under the softmax of all rows, in float64."""
    row = logits.astype(np.float64)
    row -= row.max()
    own = float(row[token])
    np.exp(row, out=row)
    return own - math.log(row.sum())


def penalize(logits: Floats, seen: NDArray[np.bool_], penalty: float) -> Floats:
    """Logits [V] with those of seen ids divided (positive) or multiplied (negative) by penalty.

    Each seen id is penalised once, however often it occurred (Keskar et al. 2019, with the sign
    taken into account).
    """
    penalized, ids = logits.copy(), np.flatnonzero(seen)
    of_seen, penalty = logits[ids], max(penalty, LEAST_PENALTY)
    penalized[ids] = np.where(of_seen > 0, of_seen / penalty, of_seen * penalty)
    return penalized


def candidates(logits: Floats, params: SamplingParams) -> tuple[NDArray[np.intp], Floats]:
    """Ids that remain after temperature and filters, ascending, and their weights (sum not 1)."""
    ids = np.arange(len(logits))
    if 0 < params.top_k < len(ids):  # first, so that few exponentials are taken
        ids = _largest(logits, params.top_k)
    weights = np.exp((logits[ids] - logits.max()) / params.temperature)
    if params.top_p < 1:
        mass = np.cumsum(np.sort(weights)[::-1])
        count = int(np.searchsorted(mass, (params.top_p - ROUNDING) * mass[-1])) + 1
        kept = _largest(weights, count)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0:
        likely = weights >= params.min_p * weights.max()
        ids, weights = ids[likely], weights[likely]
    return ids, weights


def draw(ids: NDArray[np.intp], weights: Floats, uniform: float) -> int:
    """The id at the given share, in [0, 1), of the running sum of weights."""
    mass = np.cumsum(weights)
    at = int(np.searchsorted(mass, uniform * mass[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def sample(
    logits: NDArray[np.float32],
    vocab_size: int,
    params: SamplingParams,
    seen: SeenTokens | None,
    uniforms: Uniforms,
) -> int:
    """The next token for one finite row of logits float32 [logits_width].

    Ids from `vocab_size` on cannot be drawn; `seen` is needed only with a repetition penalty.
    """
    row = logits[:vocab_size].astype(np.float64)
    if seen is not None and params.repetition_penalty != 1:
        row = penalize(row, seen.mask, params.repetition_penalty)
    if params.greedy:
        return int(row.argmax())
    return draw(*candidates(row, params), uniforms.draw())


def _largest(values: Floats, count: int) -> NDArray[np.intp]:
    """Indices, ascending, of the `count` largest values; of equal ones the first."""
    if count >= len(values):
        return np.arange(len(values))
    threshold = np.partition(values, len(values) - count)[len(values) - count]
    found = np.flatnonzero(values >= threshold)
    if len(found) == count:
        return found
    above = np.flatnonzero(values > threshold)
    equal = np.flatnonzero(values == threshold)[: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _real(name: str, value: Any, high: float, *, above: bool = False) -> float:
    """The value as a float; InputError unless it is a number in 0..high, `above`: but not 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InputError(f"{name} is {value!r}, must be a number")
    if not math.isfinite(value) or not 0 <= float(value) <= high or (above and value == 0):
        least = f"finite and {'above' if above else 'at least'} 0"
        bounds = least if math.isinf(high) else f"in 0..{high:g}"
        raise InputError(f"{name} is {value}, must be {bounds}")
    return float(value)
