"""Trains the bundled text model `tiny-en`, or a twin with other layers; writes its model folder.

    pip install .[train]
    python tools/train_text.py --data DIR --out FOLDER

DIR holds shakespeare_complete/, kjv/, sotu/, grimm/, moby_dick/, sherlock/ and canterbury_text/.
The schedule runs by tokens seen and the windows come from a seeded CPU generator, so a run is the
same up to rounding on every machine, and twins of one seed see the same text in the same order.
`--resume` continues from the last checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from text_data import (
    TRAINING,
    Text,
    encode,
    read_texts,
    style_id,
    train_tokenizer,
)
from text_export import SHAPE, write_folder
from tokenizers import Tokenizer
from training import Task, parse_arguments, train
from windows import WindowSampler, score_windows

DEFAULTS = {
    "work": Path("train-tiny-en"),
    "tokens": 240e6,
    "batch": 16384,
    "muon_lr": 0.01,
    "adam_lr": 4e-3,
    "dropout": 0.1,
    "precision": "bfloat16",
    "evaluations": 20,
}


def main() -> None:
    options = parse_arguments(__doc__, DEFAULTS, SHAPE.layers)
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    texts = read_texts(options.data, TRAINING)
    vocabulary = options.work / "tokenizer.json"
    if not vocabulary.exists():
        train_tokenizer(texts).save(str(vocabulary))
    tokenizer = Tokenizer.from_file(str(vocabulary))
    styles = [style_id(text.source.style) for text in texts]
    parts = [encode(tokenizer, text.training) for text in texts]
    task = Task(
        shape=replace(SHAPE, layers=options.layers),
        sampler=WindowSampler(parts, styles, options.plain_share, options.seed, options.device),
        held_out=held_out_windows(tokenizer, texts, options.long_context),
        held_out_units=sum(len(text.held_out) for text in texts),
        unit="byte",
    )
    train(options, task, write_folder)


def held_out_windows(
    tokenizer: Tokenizer, texts: list[Text], length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scoring windows of all held-out parts, each with the style of its text."""
    windows = [
        score_windows(encode(tokenizer, text.held_out), style_id(text.source.style), length)
        for text in texts
    ]
    inputs, targets = zip(*windows, strict=True)
    return torch.cat(inputs), torch.cat(targets)


if __name__ == "__main__":
    main()
