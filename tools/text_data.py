"""Texts of the bundled model: reading, splitting, tokenizing, drawing windows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

STYLES = ("play", "bible", "speech", "tale", "novel")
MERGED_VOCAB = 2048
HELD_OUT_SHARE = 20  # one byte in twenty


@dataclass(frozen=True)
class Source:
    """One file of the data folder; the style is the token that its windows begin with."""

    path: str
    style: str
    licence: str = "public domain"

    @property
    def name(self) -> str:
        return Path(self.path).stem


TRAINING = (
    Source("shakespeare_complete/shakespeare.txt", "play"),
    Source("kjv/kjv.txt", "bible"),
    Source("sotu/state_of_the_union.txt", "speech", "US government works; ODC-PDDL and CC0"),
    Source("grimm/grimm.txt", "tale"),
    Source("moby_dick/moby_dick.txt", "novel", "public domain; ODC-PDDL and CC0"),
    Source("sherlock/sherlock.txt", "novel"),
)
OUTSIDE = (
    Source("canterbury_text/alice29.txt", "novel"),
    Source("canterbury_text/plrabn12.txt", "play"),
    Source("canterbury_text/lcet10.txt", "speech", "US government work"),
)


@dataclass(frozen=True)
class Text:
    """A file read with CR LF turned to LF; `split` is where its held-out part begins, in bytes."""

    source: Source
    content: bytes
    sha256: str  # of the file as stored
    split: int

    @property
    def training(self) -> bytes:
        return self.content[: self.split]

    @property
    def held_out(self) -> bytes:
        return self.content[self.split :]


def read_texts(folder: Path, sources: tuple[Source, ...]) -> list[Text]:
    """Reads the files; the last 5 % of each, from the next line on, is the held-out part."""
    texts = []
    for source in sources:
        raw = (folder / source.path).read_bytes()
        content = raw.replace(b"\r\n", b"\n")
        split = content.index(b"\n", len(content) - len(content) // HELD_OUT_SHARE) + 1
        texts.append(Text(source, content, hashlib.sha256(raw).hexdigest(), split))
    return texts


def train_tokenizer(texts: list[Text]) -> Tokenizer:
    """Byte-level BPE: 256 bytes, merges up to MERGED_VOCAB entries, then one token a style."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MERGED_VOCAB,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text.training.decode() for text in texts), trainer)
    tokenizer.add_special_tokens([f"<|{style}|>" for style in STYLES])
    if tokenizer.get_vocab_size() != MERGED_VOCAB + len(STYLES):
        raise ValueError(
            f"train_tokenizer: vocabulary has {tokenizer.get_vocab_size()} entries, "
            f"expected {MERGED_VOCAB + len(STYLES)}: too little text"
        )
    return tokenizer


def style_id(style: str) -> int:
    return MERGED_VOCAB + STYLES.index(style)


def encode(tokenizer: Tokenizer, text: bytes) -> Tensor:
    """Ids of a UTF-8 text, int64 [T]."""
    return torch.from_numpy(np.array(tokenizer.encode(text.decode()).ids, dtype=np.int64))
