"""Trains the bundled DNA model `tiny-dna` and writes its model folder.

    pip install .[train]
    python tools/train_dna.py --data DIR --out FOLDER

DIR holds dna_ecoli/, dna_lambda/ and dna_yeast_chrI/. The schedule runs by tokens seen and the
windows come from a seeded CPU generator, so a run is the same up to rounding on every machine.
`--resume` continues from the last checkpoint.
"""

from __future__ import annotations

from pathlib import Path

import torch
from dna_data import BOS, TRAINING, read_genome, training_strands
from dna_export import SHAPE, write_folder
from training import Task, parse_arguments, train
from windows import WindowSampler, score_windows

DEFAULTS = {
    "work": Path("train-tiny-dna"),
    "tokens": 9e6,
    "batch": 4096,
    "muon_lr": 0.02,
    "adam_lr": 4e-3,
    "dropout": 0.0,
    "flat_share": 0.55,
    "precision": "float32",
    "evaluations": 9,
    "log_every": 50,
    "n_share": 0.01,  # of the training letters: the genome has no N, and N needs a meaning
}


def main() -> None:
    options = parse_arguments(__doc__, DEFAULTS)
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    genome = read_genome(options.data, TRAINING)
    strands = training_strands(genome, options.n_share, options.seed)
    firsts = [BOS] * len(strands)
    task = Task(
        shape=SHAPE,
        sampler=WindowSampler(strands, firsts, options.plain_share, options.seed, options.device),
        held_out=score_windows(genome.held_out, BOS, options.long_context),
        held_out_units=len(genome.held_out),
        unit="base",
    )
    train(options, task, write_folder)


if __name__ == "__main__":
    main()
