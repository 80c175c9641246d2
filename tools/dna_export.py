"""Writes the model folder of `tiny-dna` from a finished run, with its measurements and card.

    python tools/dna_export.py --data DIR --work RUN --out FOLDER

repeats what train_dna.py does last: RUN holds best.safetensors and log.jsonl.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import torch
from dna_card import model_card
from dna_data import (
    BOS,
    OUTSIDE,
    TRAINING,
    N,
    Source,
    read_genome,
    reverse_complement,
    without_n,
)
from exporting import (
    Json,
    file_hashes,
    load_model,
    parse_arguments,
    read_log,
    write_json,
)
from markov import markov_bits
from text_model import Shape, TextModel, total_nats
from torch import Tensor
from windows import score_windows

from hyena_cpu.tokenizers.dna import TOKENS

NAME = "tiny-dna"
SHAPE = Shape(vocab=len(TOKENS), width=128, layers="HHHH", mlp=320)
WINDOW = 1024
SLICE = 58 * (WINDOW - 1)  # bases: what a test can afford
MARKOV_ORDERS = (2, 4, 5, 6, 7, 8, 10)
GENERATION = {"temperature": 1.0, "top_k": 4}
PROBE = "ATGAAACGCATTAGCACCACCATTACCACCACCATCACC"
PROTOCOL = """\
Weights: the stored float16 values. Arithmetic: float32; softmax over all rows of the logits.
Text: the letters of the FASTA record, one token a letter; a held-out text is the letters from \
`split` to the end, `slice` the first of those, `other_strand` the reverse complement of the \
slice.
Windows do not overlap, and each begins anew at position 0 with an empty state: the begin token, \
then the next 1,023 letters, fewer in the last window. Every letter is scored, the first of a \
window after the begin token alone; the begin token is not scored, nor is an N, which is context \
only.
`nats` is the sum of -ln p, `bases` the letters scored, `bits_per_base` nats / ln 2 / bases."""


def measure(model: TextModel, ids: Tensor) -> Json:
    """Bits a base of ids [T], by PROTOCOL."""
    nats = total_nats(model, *without_n(score_windows(ids, BOS, WINDOW)), batch=8)
    bases = int((ids != N).sum())
    return {"bases": bases, "nats": nats, "bits_per_base": nats / math.log(2) / bases}


def measure_all(model: TextModel, data: Path) -> Json:
    """The held-out part in three ways, and the outside genomes."""

    def outside(source: Source) -> Json:
        genome = read_genome(data, source)
        return {
            "file": source.path,
            "sha256": genome.sha256,
            "letters": len(genome.ids),
            **measure(model, genome.ids),
        }

    genome = read_genome(data, TRAINING)
    strands = [genome.training, reverse_complement(genome.training)]
    return {
        "held_out": {
            "file": TRAINING.path,
            "sha256": genome.sha256,
            "split": genome.split,
            **measure(model, genome.held_out),
            "slice": measure(model, genome.held_out[:SLICE]),
            "other_strand": measure(model, reverse_complement(genome.held_out[:SLICE])),
        },
        "outside": [outside(source) for source in OUTSIDE],
        "markov": {k: markov_bits(strands, genome.held_out, k) for k in MARKOV_ORDERS},
    }


@torch.no_grad()
def probe(model: TextModel) -> Json:
    """Logits after one short sequence, for a check that needs no data."""
    ids = [BOS, *map(TOKENS.index, PROBE)]
    return {"ids": ids, "last": model(torch.tensor([ids]))[0, -1].tolist()}


def write_folder(work: Path, data: Path, out: Path) -> None:
    """Measures the best weights of a run and writes config, weights, reference and card."""
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / "best.safetensors", out / "model.safetensors")
    model = load_model(out / "model.safetensors", SHAPE)
    config = SHAPE.config(NAME)
    config["tokenizer"] = {"kind": "dna"}
    config["special_tokens"] = {"bos": BOS, "eos": None, "pad": None, "styles": {}}
    reference = {"protocol": PROTOCOL, "window": WINDOW, **measure_all(model, data)}
    reference["logits"] = probe(model)
    write_json(
        out,
        {
            "config.json": config,
            "generation_config.json": GENERATION,
            "reference.json": reference,
        },
    )
    hashes = file_hashes(out, ["model.safetensors"])
    size = (out / "model.safetensors").stat().st_size
    card = model_card(read_log(work), reference, hashes, size)
    (out / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    print(f"held out {reference['held_out']['bits_per_base']:.6f} bits/base")


def main() -> None:
    options = parse_arguments(__doc__)
    write_folder(options.work, options.data, options.out)


if __name__ == "__main__":
    main()
