"""One token per base: the ids of HyenaDNA."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from .base import Ids, TokenStream, with_text

Special = Literal["hf", "cls-sep"]  # what other programs put around a sequence: see `add_special`
SPECIAL = ("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]")
BASES = "ACGTN"
TOKENS = (*SPECIAL, *BASES)
CLS, SEP, UNK = 0, 1, 6

_TABLE = np.full(256, UNK, np.int32)
_TABLE[np.frombuffer(BASES.encode(), np.uint8)] = np.arange(len(SPECIAL), len(TOKENS))
_SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


class DnaTokenizer:
    """[CLS] 0, [SEP] 1, [BOS] 2, [MASK] 3, [PAD] 4, [RESERVED] 5, [UNK] 6, A C G T N 7..11.

    Every other character, lower-case letters included, is [UNK]. The bracketed names are single
    tokens where they occur literally.
    """

    kind = "dna"
    vocab_size = len(TOKENS)

    def encode(self, text: str | bytes) -> Ids:
        """int32 [T], one id per character or bracketed name."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        if "[" not in text:
            return _characters(text)
        parts = [
            np.array([SPECIAL.index(part)], np.int32) if part in SPECIAL else _characters(part)
            for part in _SPECIAL_PATTERN.split(text)
        ]
        return np.concatenate(parts)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """ASCII names of the tokens, nothing between them."""
        return self.decode(ids).encode()

    def decode(self, ids: ArrayLike) -> str:
        """Names of the tokens, nothing between them; InputError for an id above 11."""
        return "".join([TOKENS[t] for t in with_text(ids, len(TOKENS), "the DNA tokenizer")])

    def stream(self) -> TokenStream:
        """A decoder for tokens that arrive one by one."""
        return TokenStream(self)


def add_special(ids: Ids, style: Special) -> Ids:
    """The special tokens that other programs put around a sequence.

    hf: ids [SEP], as the Hugging Face port and the later original tokenizer.
    cls-sep: [CLS] ids [SEP], as the standalone original.
    """
    before = [CLS] if style == "cls-sep" else []
    return np.concatenate([before, ids, [SEP]]).astype(np.int32)


def _characters(text: str) -> Ids:
    # One byte per character: what Latin-1 lacks becomes "?", which is [UNK] as well.
    return _TABLE[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
