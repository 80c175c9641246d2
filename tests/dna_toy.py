"""A small model of DNA with random weights, in memory and as a folder, and random sequences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from toy import CAUSAL, weights

from hyena_cpu.config import SpecialTokens, TokenizerConfig
from hyena_cpu.model import Model
from hyena_cpu.tokenizers.dna import DnaTokenizer
from hyena_cpu.weights.native import save_folder

CONFIG = replace(
    CAUSAL["order2"],
    vocab_size=12,
    logits_width=16,
    tokenizer=TokenizerConfig("dna"),
    special_tokens=SpecialTokens(),
    name="toy-dna",
)


def dna_model(**options: object) -> Model:
    return Model(weights(CONFIG), DnaTokenizer(), **{"threads": 1, **options})  # type: ignore[arg-type]


def dna_folder(path: Path) -> Path:
    save_folder(path, CONFIG, weights(CONFIG).tensors)
    return path


def bases(n: int, seed: int = 5) -> str:
    return "".join("ACGT"[i] for i in np.random.default_rng(seed).integers(0, 4, n))
