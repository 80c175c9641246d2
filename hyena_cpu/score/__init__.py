"""How likely a model finds a sequence: sums and means of log-probabilities, natural logs, float64.

Token t is scored by what the model says after tokens 0 .. t - 1, softmax over all stored rows.
The first token has nothing before it and is not scored, unless a begin or style token is put
there; those are never scored themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from ..ids import several
from .positions import BASE_COLUMNS, TOKEN_COLUMNS, Part, base_parts, token_parts
from .rows import COLUMNS, TEXT_COLUMNS, Row, Strand, score_fasta, score_text, values
from .sums import OnProgress, Score, groups, score_each, tokens_of
from .windows import Alphabet, Setup, check, one_per_letter

if TYPE_CHECKING:
    from ..model import Model

__all__ = [
    "BASE_COLUMNS",
    "COLUMNS",
    "TEXT_COLUMNS",
    "TOKEN_COLUMNS",
    "OnProgress",
    "Part",
    "Row",
    "Score",
    "Setup",
    "Strand",
    "base_parts",
    "check",
    "one_per_letter",
    "score",
    "score_fasta",
    "score_text",
    "token_parts",
    "values",
]


def score(
    model: Model,
    sequences: str | bytes | ArrayLike | Sequence[str | bytes | ArrayLike],
    *,
    window: int | None = None,
    stride: int | None = None,
    bos: bool = False,
    style: str | None = None,
    alphabet: Alphabet = "all",
) -> list[Score]:
    """Scores of one text or of several (or of token ids), in order; see `Setup`.

    Raises:
        InputError: an option is out of range, or ids are unknown to the model.
        LimitError: a window is longer than the context.
        NumericError: a log-probability is not finite.
    """
    setup = Setup(window, stride, bos, style, alphabet=alphabet)
    check(model, setup)
    tokens = (tokens_of(model, text, setup) for text in several(sequences))
    return [one for group in groups(tokens, len) for one in score_each(model, group, setup)]
