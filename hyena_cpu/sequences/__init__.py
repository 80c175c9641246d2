"""Sequences of DNA: files of them, and the letters they are made of."""

from .fasta import GZIP_MAGIC, Meter, Record, read_bytes, read_fasta
from .letters import AMBIGUOUS, IUPAC, Dna, DnaPolicy, clean, reverse_complement

__all__ = [
    "AMBIGUOUS",
    "GZIP_MAGIC",
    "IUPAC",
    "Dna",
    "DnaPolicy",
    "Meter",
    "Record",
    "clean",
    "read_bytes",
    "read_fasta",
    "reverse_complement",
]
