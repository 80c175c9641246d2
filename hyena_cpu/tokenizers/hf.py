"""Byte-level BPE from a `tokenizer.json` (GPT-2 and its descendants, and the bundled model).

The merges are applied by the `tokenizers` library, imported when such a model is loaded; going
from ids to bytes is done here, because the library decodes only whole texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError, ModelError
from .base import Ids, TokenStream, to_bytes, with_text

MAX_IDS = 1 << 22  # a file that claims larger ids is damaged, and would size a table

PIECE = 1 << 18  # characters that the library is given at once, or a word more

# Before a space or line end that follows something else: GPT-2's pattern takes white space into a
# word only before it, and looks ahead but never back.
_CUT = re.compile("(?<=[!-~])(?=[ \n])")
_STRAY_BYTE = re.compile("([\udc80-\udcff])")  # how surrogateescape writes a byte that is no UTF-8


def byte_alphabet() -> dict[str, int]:
    """The 256 printable characters that byte-level BPE writes bytes with -> byte value.

    Printable Latin-1 stands for itself; the other 68 bytes take the code points from 256 on
    (Radford et al. 2019, the released GPT-2 encoder).
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


class BpeTokenizer:
    """A byte-level BPE tokenizer read from one file.

    Args:
        path: a `tokenizer.json`.

    Raises:
        ModelError: the file is missing, damaged, or not byte-level BPE.
    """

    kind = "hf"

    def __init__(self, path: Path) -> None:
        self._path = path
        text = _read(path)
        data = _checked(text, path)
        self._tokenizer = _parse(text, path)
        self._can_cut = _can_cut(data)
        # Either would silently cut or lengthen a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bytes = _token_bytes(self._tokenizer, path)
        self._ids_of_bytes = {b: i for i, b in enumerate(self._bytes) if len(b) == 1}
        self.vocab_size = len(self._bytes)

    def encode(self, text: str | bytes) -> Ids:
        """int32 [T]. Bytes that are no UTF-8 become their single-byte tokens."""
        whole = to_bytes(text).decode("utf-8", "surrogateescape")
        ids = [np.zeros(0, np.int32)]
        for i, part in enumerate(_STRAY_BYTE.split(whole)):
            if i % 2:
                ids.append(np.array([self._id_of_byte(ord(part) - 0xDC00)], np.int32))
            else:
                ids += [self._encoded(piece) for piece in self._pieces(part)]
        return np.concatenate(ids)

    def _encoded(self, text: str) -> Ids:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def _pieces(self, text: str) -> Iterator[str]:
        """The text cut where no token can reach across: the library takes some 170 bytes for each
        one that it works on.
        """
        begin = 0
        while self._can_cut and (cut := _CUT.search(text, begin + PIECE)):
            yield text[begin : cut.start()]
            begin = cut.start()
        if begin < len(text):
            yield text[begin:]

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of these tokens; special tokens give their names, unused ids nothing."""
        tokens = with_text(ids, self.vocab_size, self._path.name)
        return b"".join([self._bytes[t] for t in tokens])

    def decode(self, ids: ArrayLike) -> str:
        """UTF-8 text; bytes that are none become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> TokenStream:
        """A decoder for tokens that arrive one by one."""
        return TokenStream(self)

    def _id_of_byte(self, value: int) -> int:
        token = self._ids_of_bytes.get(bytes([value]))
        if token is None:
            raise InputError(
                f"the prompt holds byte 0x{value:02x}, which is not UTF-8, and this model's "
                "vocabulary has no token for it"
            )
        return token


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ModelError(f"{path}: the tokenizer file is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as UTF-8 text: {error}") from None


def _checked(text: str, path: Path) -> dict[str, Any]:
    """What the file says, if it is byte-level BPE."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON: {error}") from None
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise ModelError(f"{path}: is not a tokenizer file: it has no `model` object")
    if model.get("type", "BPE") != "BPE" or not _mentions_byte_level(data.get("decoder")):
        raise ModelError(
            f"{path}: only byte-level BPE tokenizers are supported, this one is "
            f"{model.get('type')!r} without a ByteLevel decoder"
        )
    return data


def _can_cut(data: dict[str, Any]) -> bool:
    """Whether texts are split by GPT-2's pattern, unchanged, and added tokens take no space."""
    split = data.get("pre_tokenizer")
    return (
        isinstance(split, dict)
        and split.get("type") == "ByteLevel"
        and split.get("use_regex", True) is True
        and split.get("add_prefix_space") is False
        and data.get("normalizer") is None
        and not any(
            token.get("lstrip") or token.get("rstrip") or re.search(r"\s", token["content"])
            for token in data.get("added_tokens") or []
        )
    )


def _mentions_byte_level(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    inner = decoder.get("decoders")
    parts = inner if isinstance(inner, list) else [decoder]
    return any(isinstance(part, dict) and part.get("type") == "ByteLevel" for part in parts)


def _parse(text: str, path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise ModelError(f"{path}: the tokenizer is damaged: {error}") from None


def _token_bytes(tokenizer: Any, path: Path) -> list[bytes]:
    """The bytes of every id; added tokens stand for their own text, unused ids for nothing."""
    alphabet = byte_alphabet()
    added = tokenizer.get_added_tokens_decoder()
    table: dict[int, bytes] = {}
    for piece, token in tokenizer.get_vocab(True).items():
        if token >= MAX_IDS:
            raise ModelError(f"{path}: token {piece!r} has id {token}, above {MAX_IDS - 1}")
        if token in table:
            raise ModelError(f"{path}: id {token} is given to two tokens, one of them {piece!r}")
        try:
            table[token] = (
                added[token].content.encode()
                if token in added
                else bytes([alphabet[character] for character in piece])
            )
        except KeyError as error:
            raise ModelError(
                f"{path}: token {token} holds {error}, which is not in the byte alphabet"
            ) from None
    if not table:
        raise ModelError(f"{path}: the vocabulary is empty")
    return [table.get(token, b"") for token in range(max(table) + 1)]
