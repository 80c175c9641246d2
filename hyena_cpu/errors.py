"""Error classes. The class decides the exit code of the command line."""

from __future__ import annotations


class HyenaError(Exception):
    """Base of every error raised on purpose: one sentence saying what, where, limit, remedy."""

    exit_code = 1


class ModelError(HyenaError):
    """A model folder is missing, damaged, unsupported, or asked for what it cannot do."""

    exit_code = 3


class InputError(HyenaError):
    """The user's data (prompt, tokens, sequence file) cannot be used."""

    exit_code = 4


class NumericError(HyenaError):
    """Numbers that are not finite, or a mismatch found by a check."""

    exit_code = 5


class LimitError(HyenaError):
    """Not enough memory allowed, or a length above the model's limit."""

    exit_code = 6
