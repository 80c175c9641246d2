"""From a prompt to text: the loop of draw, decode, look for a stop, step.

A run is prepared once (`prepare`), taken in once, and continued by as many samples as wanted
(`samples`); `stream` and `generate` are the one-sample forms.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from . import sampling
from .closing import Closing
from .errors import InputError
from .prompts import Ids, Options, Prompt, prepare
from .step_plan import LONGEST_HORIZON
from .text_stream import StopStrings
from .tokenizers import TokenStream

if TYPE_CHECKING:
    from .model import Model
    from .state import State

FinishReason = Literal["stop", "length", "cancelled"]


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


def samples(
    model: Model,
    prompt: Prompt,
    options: Options,
    count: int = 1,
    *,
    state: State | None = None,
    keep: bool = False,
) -> Iterator[TextStream]:
    """Takes in the prompt once and yields `count` independent continuations of it.

    Sample i draws with the random numbers of (seed, i): the same text whatever `count` is.
    `state` is what the prompt continues (see `prompts.append`); it is used up. keep: `final_state`
    will be asked for, so that the prompt is taken in even if no token is to follow.

    Raises:
        InputError: the state's next token, or what a penalty goes by, is not known.
        LimitError: all that does not fit `max_memory`.
    """
    params = options.sampling_params(model)
    seed = sampling.choose_seed(options.seed)
    before = np.zeros(0, np.int32) if state is None else state.tokens
    if before is None and params.repetition_penalty != 1:
        raise InputError(
            "repetition_penalty must be 1 here: it goes by the tokens so far, and the state does "
            "not hold them"
        )
    ids = None if before is None else np.concatenate([before, prompt.ids])
    begin = time.perf_counter()
    if prompt.new_tokens or keep:
        length, what = call_of(model, prompt, count, keep)
        model.check_length(length, state=True, **what)
        state = _taken_in(model, prompt, state, keep)
    else:
        state = None
    prompt_ms = 1e3 * (time.perf_counter() - begin)
    for i in range(count):
        own = state.fork() if state is not None and i < count - 1 else state
        yield TextStream(model, own, prompt, ids, options, params, seed, i, prompt_ms)


def drops_history(model: Model, prompt: Prompt, keep: bool = False) -> bool:
    """Whether a run lets go of its history: where that does not change a bit of what it writes.

    As many tokens as are summed up for in advance do not need it; with `keep` others may follow.
    """
    planned = 0 < prompt.new_tokens <= LONGEST_HORIZON
    return planned and not keep and model.decode != "direct" and len(prompt.ids) > 0


def call_of(
    model: Model, prompt: Prompt, count: int = 1, keep: bool = False
) -> tuple[int, dict[str, Any]]:
    """The tokens of a run and, for `planner.plan`, what it does: take in the prompt, and continue
    copies of its state, one after the other.
    """
    length = prompt.position + len(prompt.ids) + prompt.new_tokens
    new = max(1, len(prompt.ids))
    room = max(0, length - prompt.position - new)
    ahead = room if drops_history(model, prompt, keep) else None
    what = {"new": new, "room": room, "ahead": ahead, "logits_rows": 1, "copies": min(count - 1, 1)}
    return length, what


def _taken_in(model: Model, prompt: Prompt, state: State | None, keep: bool) -> State:
    """The state after the prompt, with room for what follows."""
    if len(prompt.ids) or state is None:
        history: Literal["keep", "drop"] = "drop" if drops_history(model, prompt, keep) else "keep"
        return model.prefill(prompt.ids, state, max_new_tokens=prompt.new_tokens, history=history)
    if state.logits is None:
        raise InputError(
            "the state was saved at its beginning or after a rewind, so its next token is not "
            "known: give a prompt"
        )
    state.reserve(prompt.new_tokens)
    return state


class TextStream(Closing):
    """A run under way: an iterator of `Piece`s. Made by `stream` and `samples`.

    After the last piece `finish_reason` and `stop_text` are set; `tokens`, `logprobs` and `text`
    are always up to date. `close` ends it early.
    """

    def __init__(
        self,
        model: Model,
        state: State | None,
        prompt: Prompt,
        ids: Ids | None,  # of the whole sequence so far, if they are known
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
        self._texts: list[str] = []  # of `text`: to append to a long string copies it
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
        if params.repetition_penalty != 1 and ids is not None:
            last_n = params.repetition_last_n
            self._seen = sampling.SeenTokens(self._vocab_size, last_n, ids.tolist())
        self._begin = prompt.position + len(prompt.ids)
        self._uniforms = sampling.Uniforms(seed, sample, self._begin)
        self._state, self._ids = state, ids
        self._pieces = self._run(state)

    @property
    def text(self) -> str:
        """The text so far."""
        self._texts = ["".join(self._texts)]
        return self._texts[0]

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
            self._texts.append(self._rest())
            self.finish_reason = "cancelled"

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

    def final_state(self) -> State:
        """The state after the prompt and all of `tokens`, of a run that is over (`keep`)."""
        state = self._state
        if state is None or self.finish_reason is None:
            raise InputError("final_state: the run is not over, or was not told to keep its state")
        # The last token was drawn, but nothing had to be known after it.
        for token in self.tokens[state.position - self._begin :]:
            self._model.step(state, token)
        if self._ids is not None:
            state.tell(np.concatenate([self._ids, np.array(self.tokens, np.int32)]))
        return state

    def _run(self, state: State | None) -> Generator[Piece, None, None]:
        if state is None or state.logits is None or self.prompt.new_tokens == 0:
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
                self._texts.append(text)
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
        self._texts.append(text)
        return text

    def _rest(self) -> str:
        """Text held back so far, released because nothing follows."""
        if self._decoder is None:
            return ""
        text = self._stops.push(self._decoder.finish())
        return text + self._stops.finish()


def _timings(name: str, count: int, ms: float) -> dict[str, float | int | None]:
    """The keys that llama.cpp's server uses; rates are None where nothing was done."""
    return {
        f"{name}_n": count,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / count if count else None,
        f"{name}_per_second": 1e3 * count / ms if count and ms > 0 else None,
    }
