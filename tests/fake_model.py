"""A model without weights for tests of everything around the model.

Logits depend on the last token and the position only, so texts are cheap, repeatable and known:
`FakeModel(script="abc")` says the script with near certainty, then its end token for ever.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path

import numpy as np

from hyena_cpu.config import SpecialTokens, TokenizerConfig
from hyena_cpu.errors import LimitError
from hyena_cpu.ids import token_ids
from hyena_cpu.tokenizers import Tokenizer, from_config


class FakeConfig:
    """The parts of a ModelConfig that text code reads."""

    def __init__(self, kind: str | None, vocab_size: int, logits_width: int) -> None:
        self.tokenizer = None if kind is None else TokenizerConfig(kind)  # type: ignore[arg-type]
        self.special_tokens = SpecialTokens()
        self.vocab_size = vocab_size
        self.logits_width = logits_width


class FakeState:
    """Position and logits; `fork` is a copy."""

    def __init__(self) -> None:
        self.position = 0
        self.logits: np.ndarray | None = None

    def fork(self) -> FakeState:
        return copy.deepcopy(self)


class FakeModel:
    """See the module. `delay` seconds a step; `poison` is the position whose logits hold a NaN."""

    def __init__(
        self,
        kind: str | None = "bytes",
        *,
        script: str | None = None,
        prompt_length: int = 0,
        vocab_size: int = 256,
        logits_width: int = 264,
        max_length: int | None = None,
        bos: int | None = None,
        eos: int | None = None,
        styles: dict[str, int] | None = None,
        generation: dict | None = None,
        delay: float = 0.0,
        poison: int | None = None,
        folder: Path = Path(),
    ) -> None:
        self.config = FakeConfig(kind, vocab_size, logits_width)
        self.config.special_tokens = SpecialTokens(bos=bos, eos=eos, styles=styles or {})
        self.tokenizer: Tokenizer | None = None
        if self.config.tokenizer is not None:
            self.tokenizer = from_config(self.config.tokenizer, folder)
        self.vocab_size, self.max_length, self.causal = vocab_size, max_length, True
        self.generation = generation or {}
        self.name, self.num_parameters, self.numerics = "fake", 0, {"dtype": "none"}
        self.fingerprint, self.decode = "fake", "auto"
        self.notes: list[str] = []
        self.calls: list[str] = []
        self._script, self._begin = script, prompt_length
        self._delay, self._poison = delay, poison

    def check_ids(self, ids: object, *, empty: bool = False) -> np.ndarray:
        return token_ids(ids, self.config.logits_width, empty=empty)

    def check_length(self, length: int, **_what: object) -> None:
        if self.max_length is not None and length > self.max_length:
            raise LimitError(f"{length} tokens, at most {self.max_length}")

    def prefill(self, ids, state=None, *, max_new_tokens=None, history="keep") -> FakeState:  # noqa: ARG002
        self.calls.append("prefill")
        state = FakeState() if state is None else state
        self.reserved = max_new_tokens
        for token in self.check_ids(ids):
            state.logits = self._logits(int(token), state.position)
            state.position += 1
        if self.max_length is not None and state.position > self.max_length:
            raise LimitError(f"{state.position} tokens, at most {self.max_length}")
        return state

    def step(self, state: FakeState, token: int) -> np.ndarray:
        self.calls.append("step")
        time.sleep(self._delay)
        state.logits = self._logits(token, state.position)
        state.position += 1
        return state.logits

    def token_logprobs(self, ids) -> np.ndarray:
        return np.concatenate(
            [
                rows[np.arange(n), ids[t + 1 : t + 1 + n]]
                for t, block in self.logprob_blocks(ids)
                for n in [min(len(block), len(ids) - 1 - t)]
                for rows in [block[:n]]
            ]
        )

    def token_logprobs_each(self, sequences) -> list[np.ndarray]:
        self.calls.append(f"each {len(sequences)}")
        return [self.token_logprobs(ids) for ids in sequences]

    def logprob_blocks(self, ids):
        if self.max_length is not None and len(ids) > self.max_length:
            raise LimitError(f"{len(ids)} tokens, at most {self.max_length}")
        for t in range(0, len(ids), 16):
            part = ids[t : t + 16]
            rows = np.stack([self._logits(int(i), t + k) for k, i in enumerate(part)])
            rows = rows.astype(np.float64)
            rows -= rows.max(1, keepdims=True)
            yield t, rows - np.log(np.exp(rows).sum(1, keepdims=True))

    def _logits(self, token: int, position: int) -> np.ndarray:
        if self._script is None:
            rng = np.random.default_rng([token, position])
            row = 2 * rng.normal(size=self.config.logits_width).astype(np.float32)
        else:
            row = np.zeros(self.config.logits_width, np.float32)
            at = position + 1 - self._begin
            tokens = self.tokenizer.encode(self._script) if self.tokenizer else []
            target = tokens[at] if 0 <= at < len(tokens) else self.config.special_tokens.eos
            if target is not None:
                row[target] = 30
        if position == self._poison:
            row[1] = np.nan
        return row
