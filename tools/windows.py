"""Windows of token ids, for training and for scoring."""

from __future__ import annotations

import torch
from torch import Tensor


class WindowSampler:
    """Draws training windows, each within one file, uniformly over the text.

    The draws come from a CPU generator, so that a seed gives the same windows on every machine.
    All windows but a `plain_share` begin with the style token of their file (for DNA the begin
    token), which takes the place of the token before the window.
    """

    def __init__(
        self, parts: list[Tensor], styles: list[int], plain_share: float, seed: int, device: str
    ) -> None:
        self.lengths = torch.tensor([len(part) for part in parts])
        self.offsets = self.lengths.cumsum(0) - self.lengths
        self.styles = torch.tensor(styles)
        self.tokens = torch.cat(parts).to(device)
        self.plain_share = plain_share
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, windows: int, length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, both [windows, length]."""
        places = self.lengths - length  # starts of length + 1 tokens within each file
        ends = places.cumsum(0)
        spot = torch.randint(int(ends[-1]), (windows,), generator=self.generator)
        file = torch.searchsorted(ends, spot, right=True)
        start = spot - (ends - places)[file] + self.offsets[file]
        plain = torch.rand(windows, generator=self.generator) < self.plain_share
        style = self.styles[file].masked_fill(plain, -1)

        plan = torch.stack([start, style])
        device = self.tokens.device
        if device.type == "cuda":
            plan = plan.pin_memory()
        start, style = plan.to(device, non_blocking=True)
        ids = self.tokens[start[:, None] + torch.arange(length + 1, device=device)]
        ids[:, 0] = torch.where(style < 0, ids[:, 0], style)
        return ids[:, :-1], ids[:, 1:]


def score_windows(ids: Tensor, style: int, length: int) -> tuple[Tensor, Tensor]:
    """Cuts ids [T] into windows of the style token and length - 1 scored tokens.

    Returns inputs and targets [windows, length - 1]; targets past the end of the text are -100.
    """
    scored = length - 1
    rows = -(-len(ids) // scored)
    targets = torch.full((rows * scored,), -100)
    targets[: len(ids)] = ids
    targets = targets.view(rows, scored)
    first = torch.full((rows, 1), style)
    return torch.cat([first, targets[:, :-1].clamp(min=0)], dim=1), targets


def plain_windows(ids: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Cuts ids [T] into windows of `length` tokens whose first one is not scored.

    Returns inputs and targets [windows, length - 1]; targets past the end of the text are -100.
    """
    rows = -(-len(ids) // length)
    padded = torch.full((rows * length,), -100)
    padded[: len(ids)] = ids
    windows = padded.view(rows, length)
    return windows[:, :-1].clamp(min=0), windows[:, 1:]
