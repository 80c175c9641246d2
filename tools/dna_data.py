"""Sequences of the bundled DNA model: reading, splitting, both strands, runs of N."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyena_cpu.tokenizers.dna import SPECIAL, TOKENS, DnaTokenizer

BOS = SPECIAL.index("[BOS]")
A, C, G, T, N = (TOKENS.index(base) for base in "ACGTN")
HELD_OUT_SHARE = 20  # one base in twenty


@dataclass(frozen=True)
class Source:
    """One FASTA file of the data folder, gzip or not, with one record."""

    path: str
    what: str


TRAINING = Source(
    "dna_ecoli/GCF_000005845.2_ASM584v2_genomic.fna.gz",
    "Escherichia coli K-12 MG1655, NC_000913.3 (RefSeq)",
)
OUTSIDE = (
    Source("dna_lambda/lambda.fa", "bacteriophage lambda, J02459.1 (GenBank)"),
    Source(
        "dna_yeast_chrI/genome.fa",
        "Saccharomyces cerevisiae R64-1-1, chromosome I, repeats masked by N (Ensembl)",
    ),
)


@dataclass(frozen=True)
class Genome:
    """A sequence as ids, int64 [T]; `split` is the base where its held-out part begins."""

    source: Source
    ids: Tensor
    sha256: str  # of the file as stored

    @property
    def split(self) -> int:
        return len(self.ids) - len(self.ids) // HELD_OUT_SHARE

    @property
    def training(self) -> Tensor:
        return self.ids[: self.split]

    @property
    def held_out(self) -> Tensor:
        return self.ids[self.split :]


def read_genome(folder: Path, source: Source) -> Genome:
    """Reads a FASTA file; lower case (soft masking) is read as upper case."""
    raw = (folder / source.path).read_bytes()
    text = gzip.decompress(raw) if source.path.endswith(".gz") else raw
    header, *lines = text.splitlines()
    if not header.startswith(b">") or any(line.startswith(b">") for line in lines):
        raise ValueError(f"{source.path}: expected one FASTA record")
    ids = DnaTokenizer().encode(b"".join(lines).upper()).astype(np.int64)
    return Genome(source, torch.from_numpy(ids), hashlib.sha256(raw).hexdigest())


def reverse_complement(ids: Tensor) -> Tensor:
    """The other strand of ids [T], read from its own start."""
    complement = torch.arange(len(TOKENS))
    complement[[A, C, G, T]] = torch.tensor([T, G, C, A])
    return complement[ids.flip(0)]


def with_runs_of_n(ids: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A copy of ids [T] with about `share` of its bases in runs of N: one base, or 2 to 128."""
    lengths = torch.tensor([1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 128])
    count = round(share * len(ids) / float(lengths.float().mean()))
    length = lengths[torch.randint(len(lengths), (count,), generator=generator)]
    start = torch.randint(len(ids) - int(lengths.max()), (count,), generator=generator)
    covered = ids.clone()
    for first, size in zip(start.tolist(), length.tolist(), strict=True):
        covered[first : first + size] = N
    return covered


def training_strands(genome: Genome, n_share: float, seed: int) -> list[Tensor]:
    """Both strands of the training part, each with its own runs of N."""
    generator = torch.Generator().manual_seed(seed)
    strands = [genome.training, reverse_complement(genome.training)]
    return [with_runs_of_n(strand, n_share, generator) for strand in strands]


def without_n(windows: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs and targets with the targets that are N turned to -100, so that they do not count."""
    inputs, targets = windows
    return inputs, targets.masked_fill(targets == N, -100)
