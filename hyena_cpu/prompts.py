"""What a run is told, and the prompt made ready: its ids, tokens in front, room that is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import sampling
from .checks import MOST_TOKENS, check_whole
from .errors import InputError, LimitError, ModelError

if TYPE_CHECKING:
    from .model import Model

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Options:
    """What one run may be told. None means: the model's default."""

    max_new_tokens: int = 128
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repetition_last_n: int | None = None
    greedy: bool | None = None
    seed: int | None = None  # unsigned, 64 bits; None: a random one, which is reported
    stop: Sequence[str] = ()  # text that ends a run and is not shown
    ignore_eos: bool = False  # go on after the end token, which is then a token like any other
    bos: bool | None = None  # put the begin token first; None: only before an empty prompt
    style: str | None = None  # put the model's style token of this name first (after bos)
    ctx_size: int | None = None  # prompt and new tokens together; None: the model's limit
    truncate: Literal["error", "left", "right"] = "error"  # which end of a long prompt to drop

    def __post_init__(self) -> None:
        most = check_whole("max_new_tokens", self.max_new_tokens, 0, MOST_TOKENS)
        size = None if self.ctx_size is None else check_whole("ctx_size", self.ctx_size, 1)
        if self.truncate not in ("error", "left", "right"):
            raise InputError(f"truncate is {self.truncate!r}, must be error, left or right")
        # An iterator can be gone through once only.
        listed = isinstance(self.stop, Iterable) and not isinstance(self.stop, str | bytes)
        stop: tuple[Any, ...] = tuple(self.stop) if listed else ("",)
        if not all(isinstance(text, str) and text for text in stop):
            raise InputError("stop must be a list of strings, none of them empty")
        vars(self).update(max_new_tokens=most, ctx_size=size, stop=stop)

    def sampling_params(self, model: Model) -> sampling.SamplingParams:
        """These settings over the model's `generation_config.json`."""
        names = (*sampling.SamplingParams.__dataclass_fields__, "greedy")
        return sampling.resolve({name: getattr(self, name) for name in names}, model.generation)


@dataclass(frozen=True)
class Prompt:
    """A checked prompt: ids int32 [T], what was cut off, and how many tokens may follow.

    position: tokens before it, in the state that it continues.
    """

    ids: Ids
    dropped: int
    new_tokens: int
    position: int = 0


def prepare(model: Model, prompt: str | bytes | ArrayLike, options: Options) -> Prompt:
    """Token ids of the prompt, checked against the model and the context. Computes nothing."""
    if isinstance(prompt, str | bytes):
        text = model.tokenizer.encode(prompt)
    else:
        text = model.check_ids(prompt, empty=True)
    head = _head(model, options, empty=len(text) == 0)
    limit = _context(model, options.ctx_size)
    kept = _fit(text, len(head), limit, options)
    ids = np.concatenate([np.array(head, np.int32), kept])
    room = options.max_new_tokens if limit is None else limit - len(ids)
    return Prompt(
        ids=model.check_ids(ids),
        dropped=len(text) - len(kept),
        new_tokens=min(options.max_new_tokens, room),
    )


def append(model: Model, text: ArrayLike, options: Options, position: int) -> Prompt:
    """As `prepare`, for ids (maybe none) that follow a state at `position`. Nothing is added or
    cut off.
    """
    check_options_of_a_state(options)
    ids = model.check_ids(text, empty=True)
    limit = _context(model, options.ctx_size)
    room = options.max_new_tokens if limit is None else limit - position - len(ids)
    if room < 0:
        raise LimitError(
            f"the state has {position} tokens and the prompt {len(ids)}, but the context holds "
            f"{limit}: shorten the prompt"
        )
    return Prompt(ids, 0, min(options.max_new_tokens, room), position)


def check_options_of_a_state(options: Options) -> None:
    """InputError for an option that cannot act on a sequence that began in a state."""
    for name, value in (("bos", options.bos), ("style", options.style)):
        if value is not None:
            raise InputError(f"{name} cannot act: the sequence has begun in the state")
    if options.truncate != "error":
        raise InputError("truncate cannot act: what is in the state cannot be cut off")


def prefix_ids(model: Model, bos: bool, style: str | None) -> list[int]:
    """Ids of the begin token and of a style token; ModelError or InputError if it has none."""
    special = model.config.special_tokens
    ids = []
    if bos:
        if special.bos is None:
            raise ModelError(f"{model.name} has no begin token, so bos cannot be asked for")
        ids.append(special.bos)
    if style is not None:
        if style not in special.styles:
            known = ", ".join(special.styles) or "none"
            raise InputError(f"{model.name} has no style {style!r}; it has: {known}")
        ids.append(special.styles[style])
    return ids


def _head(model: Model, options: Options, *, empty: bool) -> list[int]:
    needs_bos = empty and options.style is None and options.bos is None
    if needs_bos and model.config.special_tokens.bos is None:
        raise InputError(
            f"the prompt is empty and {model.name} has no begin token: give at least one character"
        )
    ids = prefix_ids(model, bool(options.bos) or needs_bos, options.style)
    if empty and not ids:
        raise InputError("the prompt is empty: give at least one character or ask for bos")
    return ids


def _context(model: Model, ctx_size: int | None) -> int | None:
    limit = model.max_length
    if ctx_size is None:
        return limit
    if limit is not None and ctx_size > limit:
        raise LimitError(
            f"ctx_size is {ctx_size} but {model.name} takes at most {limit} tokens: lower it"
        )
    return ctx_size


def _fit(text: Ids, head: int, limit: int | None, options: Options) -> Ids:
    """The part of the prompt's text that the context takes, beside `head` special tokens."""
    if limit is None or head + len(text) <= limit:
        return text
    keep = max(limit - head - options.max_new_tokens, 1)
    if options.truncate == "error" or head + keep > limit:
        raise LimitError(
            f"the prompt has {head + len(text)} tokens but the context holds {limit}: shorten it "
            "or ask for truncation (truncate left or right)"
        )
    return text[len(text) - keep :] if options.truncate == "left" else text[:keep]
