"""What the tokenizers share: their protocol, and decoding one token at a time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import as_array
from ..errors import InputError
from ..text_stream import Utf8Stream

Ids = NDArray[np.int32]


class Tokenizer(Protocol):
    """What every tokenizer offers; ids are int32 [T]."""

    @property
    def kind(self) -> str:
        """bytes, dna or hf: the name in `config.json`."""

    @property
    def vocab_size(self) -> int:
        """Ids from this one on have no text."""

    def encode(self, text: str | bytes) -> Ids:
        """Token ids int32 [T] of a text. Bytes are taken as they are, valid UTF-8 or not."""

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes these tokens stand for; InputError for an id without text."""

    def decode(self, ids: ArrayLike) -> str:
        """The text these tokens stand for; bytes that are no UTF-8 become U+FFFD."""

    def stream(self) -> TokenStream:
        """A decoder for tokens that arrive one by one."""


class TokenStream:
    """Tokens in, whole characters out; the pieces together equal `decode` of all tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = Utf8Stream()

    def push(self, token: int) -> str:
        """The characters this token completes, often none or several."""
        return self._utf8.push(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        """U+FFFD for a character left unfinished, else nothing."""
        return self._utf8.finish()


def with_text(ids: ArrayLike, vocab_size: int, whose: str) -> list[int]:
    """ids [T] as a list; InputError if they are no list of ids, or one has no text."""
    array = as_array("token ids", ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{whose} decodes a list of ids, not {array.dtype} of shape {list(array.shape)}"
        )
    tokens: list[int] = array.tolist()
    bad = next((t for t in tokens if not 0 <= t < vocab_size), None)
    if bad is not None:
        raise InputError(f"{whose} has no text for id {bad}; its ids are 0..{vocab_size - 1}")
    return tokens


def to_bytes(text: str | bytes) -> bytes:
    """UTF-8 bytes of a text; InputError for a lone surrogate (one that hides a byte is fine)."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text holds a lone surrogate at character {error.start}: it is not Unicode"
        ) from None
