"""Byte-level BPE from a `tokenizer.json` (GPT-2 and its descendants, and the bundled model).

The merges are applied by the `tokenizers` library, imported when such a model is loaded; going
from ids to bytes is done here, because the library decodes only whole texts.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..errors import InputError, ModelError
from . import Ids, TokenStream

MAX_IDS = 1 << 24  # a file that claims larger ids is damaged, and would size a table

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
        _check_kind(text, path)
        self._tokenizer = _parse(text, path)
        # Either would silently cut or lengthen a prompt.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bytes = _token_bytes(self._tokenizer, path)
        self._ids_of_bytes = {b: i for i, b in reversed(self._bytes.items()) if len(b) == 1}
        self.vocab_size = max(self._bytes) + 1

    def encode(self, text: str | bytes) -> Ids:
        """int32 [T]. Bytes that are no UTF-8 become their single-byte tokens."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogateescape")
        ids: list[int] = []
        for i, part in enumerate(_STRAY_BYTE.split(text)):
            if i % 2:
                ids.append(self._id_of_byte(ord(part) - 0xDC00))
            elif part:
                ids.extend(self._encode_valid(part))
        return np.array(ids, np.int32)

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of these tokens; special tokens give their names."""
        try:
            return b"".join([self._bytes[token] for token in np.asarray(ids).tolist()])
        except KeyError as error:
            raise InputError(f"{self._path.name} has no text for token id {error}") from None

    def decode(self, ids: ArrayLike) -> str:
        """UTF-8 text; bytes that are none become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")

    def stream(self) -> TokenStream:
        """A decoder for tokens that arrive one by one."""
        return TokenStream(self)

    def _encode_valid(self, text: str) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except UnicodeEncodeError as error:
            raise InputError(
                f"the text holds a lone surrogate at character {error.start}: it is not Unicode"
            ) from None
        return ids

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


def _check_kind(text: str, path: Path) -> None:
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
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise ModelError(f"{path}: the tokenizer is damaged: {error}") from None


def _token_bytes(tokenizer: Any, path: Path) -> dict[int, bytes]:
    """Token id -> its bytes. Added tokens stand for their own text."""
    alphabet = byte_alphabet()
    added = tokenizer.get_added_tokens_decoder()
    table: dict[int, bytes] = {}
    for piece, token in sorted(tokenizer.get_vocab(True).items(), key=lambda item: item[1]):
        if token >= MAX_IDS:
            raise ModelError(f"{path}: token {piece!r} has id {token}, above {MAX_IDS - 1}")
        if token in table:
            raise ModelError(f"{path}: id {token} is given to two tokens, one of them {piece!r}")
        if token in added:
            table[token] = added[token].content.encode()
            continue
        try:
            table[token] = bytes([alphabet[character] for character in piece])
        except KeyError as error:
            raise ModelError(
                f"{path}: token {token} holds {error}, which is not in the byte alphabet"
            ) from None
    if not table:
        raise ModelError(f"{path}: the vocabulary is empty")
    return table
