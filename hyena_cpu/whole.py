"""Whole sequences through a network: what it says of every position, and nothing remembered.

Shapes: T tokens, B sequences, D width, V = logits_width rows of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import plan_phases, planner, pooling
from .batches import grouped
from .checks import check_whole
from .context import split
from .errors import InputError, ModelError
from .network import Floats, Ids, Network


class WholeSequences(Network):
    """A network that takes in complete sequences. Arrays returned belong to the caller."""

    def logits(self, ids: ArrayLike) -> Floats:
        """float32 [T, V]: row t holds the scores of token t + 1."""
        ids = self.check_ids(ids)
        return self._logits_of(self._normed(self._whole([ids], logits_rows=len(ids))))

    def hidden(self, ids: ArrayLike, layer: int = -1) -> Floats:
        """float32 [T, D]: 0 the embedding, 1..n after block n, -1 after the final norm."""
        ids = self.check_ids(ids)
        x = self._whole([ids], self.depth_of(layer), hidden_rows=len(ids))
        return self._normed(x) if layer < 0 else x

    def hidden_blocks(
        self, ids: ArrayLike, layer: int = -1, rows: int = pooling.BLOCK_ROWS
    ) -> Iterator[Floats]:
        """`hidden` in pieces: float32 [<= rows, D], in order."""
        ids = self.check_ids(ids)
        x = self._whole([ids], self.depth_of(layer), hidden_rows=min(rows, len(ids)))
        for t in range(0, len(x), rows):
            block = x[t : t + rows]
            yield self._normed(block) if layer < 0 else block.copy()

    def hidden_each(self, sequences: Sequence[ArrayLike], layer: int = -1) -> list[Floats]:
        """`hidden` of each sequence: the same bits, in less time where many are short."""
        found = []
        for batch, x in self._batches(sequences, self.depth_of(layer), hidden=True):
            found += [self._normed(h) if layer < 0 else h.copy() for h in split(x, batch)]
        return found

    def logprob_blocks(self, ids: ArrayLike) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """(t, float64 [n, V]): natural logs of the softmax over all V rows, n positions from t on.

        Row t is what the model says of token t + 1; the last row is of one that is not there.
        """
        x = self._whole([self.check_ids(ids)])
        for t in range(0, len(x), plan_phases.HEAD_ROWS):
            yield t, self._logprobs_of(x[t : t + plan_phases.HEAD_ROWS])

    def token_logprobs(self, ids: ArrayLike) -> NDArray[np.float64]:
        """float64 [T - 1]: natural log of p(ids[t + 1] | ids[:t + 1]) over all V rows."""
        ids = self.check_ids(ids)
        return self._target_logprobs(self._whole([ids])[:-1], ids[1:])

    def token_logprobs_each(self, sequences: Sequence[ArrayLike]) -> list[NDArray[np.float64]]:
        """`token_logprobs` of each sequence: the same bits, in less time where many are short."""
        found = []
        for batch, x in self._batches(sequences):
            following = np.concatenate([np.append(ids[1:], 0) for ids in batch])
            scores = self._target_logprobs(x, following)
            found += [part[:-1].copy() for part in split(scores, batch)]
        return found

    def classify(self, sequences: Sequence[ArrayLike]) -> Floats:
        """float32 [B, labels] of a model with a classifier head; one row per sequence of ids.

        Pads inside a sequence are ordinary tokens, as in the originals (HyenaDNA).
        """
        head = self.config.classifier
        if head is None or self._classifier is None:
            raise ModelError(f"{self.name} has no classifier head")
        rows = []
        for sequence in sequences:
            ids = self.check_ids(sequence)
            h = self._normed(self._whole([ids]))
            rows.append(pooling.pooled(h, ids, head.pool, self.config.special_tokens.pad))
        h = np.stack(rows) if rows else np.zeros((0, self.config.d_model), np.float32)
        return self._classifier(h, self.threads)

    # ---- the forward pass

    def depth_of(self, layer: int) -> int:
        """Blocks to run for `layer` of `hidden`; InputError if the model has no such layer."""
        depth, layer = len(self.blocks), check_whole("layer", layer)
        if not -1 <= layer <= depth:
            raise InputError(f"layer is {layer}, must be in 0..{depth}, or -1 for the last norm")
        return depth if layer < 0 else layer

    def _whole(self, batch: list[Ids], depth: int | None = None, **what: Any) -> Floats:
        """`_rows` of complete sequences; `what` else is to be planned for."""
        longest, total = max(map(len, batch)), sum(map(len, batch))
        self.check_length(longest, -(-total // longest), depth=depth, **what)
        return self._rows(batch, depth=depth)

    def _batches(
        self, sequences: Sequence[ArrayLike], depth: int | None = None, *, hidden: bool = False
    ) -> Iterator[tuple[list[Ids], Floats]]:
        """`_whole` of consecutive sequences together: their ids, and rows end to end. hidden: the
        caller copies the rows.
        """
        checked = [self.check_ids(ids) for ids in sequences]
        for batch in grouped(checked, len, planner.batch_rows(self)):
            rows = sum(map(len, batch)) if hidden else 0
            yield batch, self._whole(batch, depth, hidden_rows=rows)
