"""hyena-cpu tokenize: show the tokens of a text."""

from __future__ import annotations

import argparse
import json

from ..progress import Progress
from .common import (
    Parser,
    add_dna_options,
    add_log_options,
    add_model_options,
    add_output_options,
    add_prompt_options,
    encode_prompt,
    exactly_one,
    load_model,
    output_format,
    read_prompt,
)
from .output import Output, to_json


def parser() -> Parser:
    """Options of the command."""
    p = Parser("tokenize", "Prints the token ids of a text and the piece each one stands for.")
    add_dna_options(add_prompt_options(p))
    add_model_options(p, threads=False, dtype=False, memory=False)
    add_output_options(p, ("text", "json", "jsonl"))
    add_log_options(p)
    return p


def run(args: argparse.Namespace) -> int:
    """Runs the command."""
    exactly_one(args, "text", "prompt", "file")
    form = output_format(args, "text")
    with Progress("loading", enabled=args.progress) as progress:
        model = load_model(args, progress.update)
    data = read_prompt(args, model)
    ids = encode_prompt(args, model, data).tolist()
    # A piece may be part of a character: its other bytes are shown as \xNN.
    pieces = [model.tokenizer.decode_bytes([i]).decode("utf-8", "backslashreplace") for i in ids]
    with Output(args.output) as out:
        if form == "json":
            out.write(
                to_json({"model": model.name, "count": len(ids), "ids": ids, "pieces": pieces})
            )
            return 0
        for token, piece in zip(ids, pieces, strict=True):
            if form == "jsonl":
                out.write(to_json({"id": token, "piece": piece}))
            else:
                out.write(f"{token}\t{json.dumps(piece, ensure_ascii=False)}\n")
    return 0
