"""One token per byte, ids 0..255."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .base import Ids, TokenStream, to_bytes, with_text


class ByteTokenizer:
    """Ids are byte values; text is its UTF-8 bytes."""

    kind = "bytes"
    vocab_size = 256

    def encode(self, text: str | bytes) -> Ids:
        """int32 [T], one id per byte."""
        return np.frombuffer(to_bytes(text), np.uint8).astype(np.int32)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes themselves; InputError for an id above 255."""
        return bytes(with_text(ids, self.vocab_size, "a byte tokenizer"))

    def decode(self, ids: ArrayLike) -> str:
        """UTF-8 text; bytes that are none become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> TokenStream:
        """A decoder for tokens that arrive one by one."""
        return TokenStream(self)
