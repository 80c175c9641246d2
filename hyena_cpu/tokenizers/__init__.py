"""Text to token ids and back. Three kinds: bytes, dna, hf (byte-level BPE).

Every tokenizer is lossless on what it can write: ids become bytes, bytes become text by UTF-8.
No special token is ever added by `encode`.
"""

from __future__ import annotations

from pathlib import Path

from ..config import TokenizerConfig
from ..errors import ModelError
from .base import Ids, Tokenizer, TokenStream

__all__ = ["Ids", "TokenStream", "Tokenizer", "from_config"]


def from_config(config: TokenizerConfig, folder: Path, vocab_size: int | None = None) -> Tokenizer:
    """The tokenizer a model folder names.

    Args:
        config: its kind and, for hf, the file beside `config.json`.
        folder: the model folder.
        vocab_size: ids the model knows; a tokenizer with more is refused.

    Raises:
        ModelError: the tokenizer file is missing or damaged, or has ids the model lacks.
    """
    tokenizer = _build(config, folder)
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise ModelError(
            f"{folder}: the tokenizer has ids up to {tokenizer.vocab_size - 1} but the model's "
            f"vocabulary ends at {vocab_size - 1}: they do not belong together"
        )
    return tokenizer


def _build(config: TokenizerConfig, folder: Path) -> Tokenizer:
    if config.kind == "bytes":
        from .bytes import ByteTokenizer

        return ByteTokenizer()
    if config.kind == "dna":
        from .dna import DnaTokenizer

        return DnaTokenizer()
    from .hf import BpeTokenizer

    name = config.file or "tokenizer.json"
    if Path(name).name != name or "\\" in name:
        raise ModelError(f"{folder}: tokenizer.file {name!r} must be a file name in that folder")
    return BpeTokenizer(folder / name)
