"""Muon: momentum whose update is orthogonalised by a Newton-Schulz iteration (Jordan, 2024)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Quintic with the steepest slope at zero: singular values end near 1, not at 1.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """The nearest matrices with equal singular values, roughly; [N,R,C].

    In bfloat16, which is enough, on a GPU; few CPUs multiply faster in it than in float32.
    """
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """torch.optim.Muon with the matrices of one shape in one batch: a quarter of the kernels."""

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        groups: list[dict[str, Any]] = [{"params": group} for group in by_shape.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        for group in self.param_groups:
            matrices = group["params"]
            gradient = torch.stack([matrix.grad for matrix in matrices])  # [N,R,C]
            state = self.state[matrices[0]]  # the group's: optimizer state is kept by parameter
            if not state:
                state["momentum"] = torch.zeros_like(gradient)
            average = state["momentum"].lerp_(gradient, 1 - group["momentum"])
            update = orthogonalise(gradient.lerp(average, group["momentum"]))
            rows, columns = matrices[0].shape
            rate = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, list(update.float().unbind()), alpha=-rate)
