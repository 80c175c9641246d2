"""From a prompt to text: the loop of draw, decode, look for a stop, step.

A run is prepared once (`prepare`), taken in once, and continued by as many samples as wanted
(`samples`); `stream` and `generate` are the one-sample forms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import sampling
from .errors import InputError, LimitError, ModelError
from .text_stream import StopStrings
from .tokenizers import TokenStream

if TYPE_CHECKING:
    from .model import Model
    from .state import State

Ids = NDArray[np.int32]
FinishReason = Literal["stop", "length", "cancelled"]


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
        if self.max_new_tokens < 0:
            raise InputError(f"max_new_tokens is {self.max_new_tokens}, must be at least 0")
        if self.ctx_size is not None and self.ctx_size < 1:
            raise InputError(f"ctx_size is {self.ctx_size}, must be at least 1")
        if self.truncate not in ("error", "left", "right"):
            raise InputError(f"truncate is {self.truncate!r}, must be error, left or right")
        if isinstance(self.stop, str) or not all(self.stop):
            raise InputError("stop must be a list of strings, none of them empty")

    def sampling_params(self, model: Model) -> sampling.SamplingParams:
        """These settings over the model's `generation_config.json`."""
        names = (*sampling.SamplingParams.__dataclass_fields__, "greedy")
        return sampling.resolve({name: getattr(self, name) for name in names}, model.generation)


@dataclass(frozen=True)
class Prompt:
    """A checked prompt: ids int32 [T], what was cut off, and how many tokens may follow."""

    ids: Ids
    dropped: int
    new_tokens: int


@dataclass(frozen=True)
class Piece:
    """One emitted token and the text that is certain since then (often none, or more than its own).

    `logprob` is the natural log of the token's probability under the model itself, before any
    sampling setting. A closing piece without a token only releases text that was held back.
    """

    token: int | None
    text: str
    logprob: float | None


@dataclass(frozen=True)
class Result:
    """A finished run. `tokens` holds every emitted token, those of a stop string included; the end
    token is not emitted. `logprob_mean` is None if nothing was emitted. Times are milliseconds.
    """

    text: str
    tokens: list[int]
    finish_reason: FinishReason
    stop_text: str | None
    seed: int
    logprob_mean: float | None
    prompt_tokens: int
    completion_tokens: int
    timings: dict[str, float | int | None]


def stream(model: Model, prompt: str | bytes | ArrayLike, **options: Any) -> TextStream:
    """Takes in the prompt and returns the iterator of `Piece`s that continues it.

    Args:
        model: a loaded model.
        prompt: text, bytes, or token ids [T] (taken as they are).
        options: the fields of `Options`.

    Raises:
        InputError: the prompt is empty, holds unknown ids, or an option is out of range.
        LimitError: the prompt is longer than the context.
        NumericError: (while iterating) a logit is not finite.
    """
    chosen = Options(**options)
    return next(samples(model, prepare(model, prompt, chosen), chosen))


def generate(model: Model, prompt: str | bytes | ArrayLike, **options: Any) -> Result:
    """Continues the prompt to its end; arguments and errors are those of `stream`."""
    pieces = stream(model, prompt, **options)
    for _ in pieces:
        pass
    return pieces.result()


def prepare(model: Model, prompt: str | bytes | ArrayLike, options: Options) -> Prompt:
    """Token ids of the prompt, checked against the model and the context. Computes nothing."""
    if isinstance(prompt, str | bytes):
        text = model.tokenizer.encode(prompt)
    else:
        text = model.check_ids(prompt) if np.size(prompt) else np.zeros(0, np.int32)
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


def samples(model: Model, prompt: Prompt, options: Options, count: int = 1) -> Iterator[TextStream]:
    """Takes in the prompt once and yields `count` independent continuations of it.

    Sample i draws with the random numbers of (seed, i): the same text whatever `count` is.
    """
    params = options.sampling_params(model)
    seed = sampling.choose_seed(options.seed)
    begin = time.perf_counter()
    state = None
    if prompt.new_tokens:
        state = model.prefill(prompt.ids, max_new_tokens=prompt.new_tokens)
    prompt_ms = 1e3 * (time.perf_counter() - begin)
    for i in range(count):
        own = state.fork() if state is not None and i < count - 1 else state
        yield TextStream(model, own, prompt, options, params, seed, i, prompt_ms)


class TextStream:
    """A run under way: an iterator of `Piece`s. Made by `stream` and `samples`.

    After the last piece `finish_reason` and `stop_text` are set; `tokens`, `logprobs` and `text`
    are always up to date. `close` ends it early.
    """

    def __init__(
        self,
        model: Model,
        state: State | None,
        prompt: Prompt,
        options: Options,
        params: sampling.SamplingParams,
        seed: int,
        sample: int,
        prompt_ms: float,
    ) -> None:
        self.prompt = prompt
        self.params = params
        self.seed = seed
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._eos = None if options.ignore_eos else model.config.special_tokens.eos
        self._stops = StopStrings(options.stop)
        self._prompt_ms = prompt_ms
        self._predicted_ms = 0.0
        # Rows the tokenizer has no text for are as undrawable as padded ones.
        self._vocab_size = model.vocab_size
        self._decoder: TokenStream | None = None
        if model.config.tokenizer is not None:
            self._vocab_size = min(model.vocab_size, model.tokenizer.vocab_size)
            self._decoder = model.tokenizer.stream()
        self._seen: sampling.SeenTokens | None = None
        if params.repetition_penalty != 1:
            last_n = params.repetition_last_n
            self._seen = sampling.SeenTokens(self._vocab_size, last_n, prompt.ids.tolist())
        self._uniforms = sampling.Uniforms(seed, sample, len(prompt.ids))
        self._pieces = self._run(state)

    @property
    def stop_text(self) -> str | None:
        """The stop string that ended the run."""
        return self._stops.hit

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        begin = time.perf_counter()
        try:
            return next(self._pieces)
        finally:
            self._predicted_ms += 1e3 * (time.perf_counter() - begin)

    def close(self) -> None:
        """Ends the run; text that was held back for a stop string is added to `text`."""
        self._pieces.close()
        if self.finish_reason is None:
            self.text += self._rest()
            self.finish_reason = "cancelled"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def result(self) -> Result:
        """Everything about the run; one that is not finished counts as cancelled."""
        self.close()
        assert self.finish_reason is not None
        count = len(self.tokens)
        return Result(
            text=self.text,
            tokens=list(self.tokens),
            finish_reason=self.finish_reason,
            stop_text=self.stop_text,
            seed=self.seed,
            logprob_mean=sum(self.logprobs) / count if count else None,
            prompt_tokens=len(self.prompt.ids),
            completion_tokens=count,
            timings=_timings("prompt", len(self.prompt.ids), self._prompt_ms)
            | _timings("predicted", count, self._predicted_ms),
        )

    def _run(self, state: State | None) -> Iterator[Piece]:
        if state is None or state.logits is None:
            self.finish_reason = "length"
            return
        logits = state.logits
        for left in range(self.prompt.new_tokens, 0, -1):
            sampling.check_finite(logits, state.position)
            token = sampling.sample(
                logits, self._vocab_size, self.params, self._seen, self._uniforms
            )
            if token == self._eos:
                self.finish_reason = "stop"
                text = self._rest()
                self.text += text
                if text:
                    yield Piece(None, text, None)
                return
            text = self._take(token, sampling.logprob(logits, token), last=left == 1)
            yield Piece(token, text, self.logprobs[-1])
            if self.finish_reason is not None:
                return
            logits = self._model.step(state, token)

    def _take(self, token: int, logprob: float, *, last: bool) -> str:
        """Books one token and returns the text it makes certain."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self._seen is not None:
            self._seen.add(token)
        text = "" if self._decoder is None else self._stops.push(self._decoder.push(token))
        if last and self._stops.hit is None:
            text += self._rest()
            self.finish_reason = "length"
        if self._stops.hit is not None:
            self.finish_reason = "stop"
        self.text += text
        return text

    def _rest(self) -> str:
        """Text held back so far, released because nothing follows."""
        if self._decoder is None:
            return ""
        text = self._stops.push(self._decoder.finish())
        return text + self._stops.finish()


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


def _timings(name: str, count: int, ms: float) -> dict[str, float | int | None]:
    """The keys that llama.cpp's server uses; rates are None where nothing was done."""
    return {
        f"{name}_n": count,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / count if count else None,
        f"{name}_per_second": 1e3 * count / ms if count and ms > 0 else None,
    }
