"""Endless training rows of one MQAR setting, made a batch at a time.

The distribution is that of hyena_cpu.mqar, whose one draw a row is too slow for training: the
D largest of log p + Gumbel noise are D draws without replacement, in the order of drawing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hyena_cpu.mqar import UNSCORED, Setting


class RowSampler:
    """Batches of rows from a seed."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.random = np.random.default_rng(seed)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels, int64 [rows, N]; labels are UNSCORED but at the queries."""
        setting, pairs = self.setting, self.setting.pairs
        half = setting.vocab_size // 2
        keys = 1 + self._distinct(np.zeros(half - 1), rows)
        values = half + self._distinct(np.zeros(setting.vocab_size - half), rows)
        gaps = self._distinct(np.log(setting.distance_probabilities()), rows)
        inputs = np.zeros((rows, setting.length), np.int64)
        labels = np.full((rows, setting.length), UNSCORED, np.int64)
        inputs[:, 0 : 2 * pairs : 2] = keys
        inputs[:, 1 : 2 * pairs : 2] = values
        queries = 2 * pairs + 2 * gaps
        np.put_along_axis(inputs, queries, keys, axis=1)
        np.put_along_axis(labels, queries, values, axis=1)
        return torch.from_numpy(inputs), torch.from_numpy(labels)

    def _distinct(self, log_p: np.ndarray, rows: int) -> np.ndarray:
        """`pairs` indices into log_p for every row, without repeats."""
        drawn = self.random.standard_exponential((rows, len(log_p)), dtype=np.float32)
        noise = -np.log(np.maximum(drawn, np.finfo(np.float32).tiny))  # 0 comes up now and then
        score, pairs = log_p + noise, self.setting.pairs
        best = np.argpartition(-score, pairs - 1, axis=1)[:, :pairs]
        order = np.argsort(-np.take_along_axis(score, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)
