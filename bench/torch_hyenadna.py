"""The peer: HyenaDNA in PyTorch, eager float32, structured as its authors run it.

Filters are computed in every forward, convolutions are real FFTs of 2 L,
and activations travel as whole [B, L, D] arrays. Takes the tensors of `shapes.hyenadna`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)


class TorchHyenaDna:
    """Callable: ids [L] -> hidden states [L, D] after the final norm."""

    def __init__(self, tensors: Mapping[str, np.ndarray], depth: int) -> None:
        self.t = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
        self.depth = depth

    @torch.no_grad()
    def __call__(self, ids: np.ndarray) -> np.ndarray:
        x = F.embedding(torch.from_numpy(ids.astype(np.int64))[None], self.t["embedding.weight"])
        for i in range(self.depth):
            x = x + self.mixer(f"layers.{i}.mixer", self.norm(f"layers.{i}.norm1", x))
            h = F.gelu(
                self.linear(f"layers.{i}.mlp.up", self.norm(f"layers.{i}.norm2", x)),
                approximate="tanh",
            )
            x = x + self.linear(f"layers.{i}.mlp.down", h)
        return self.norm("norm", x)[0].numpy()

    def mixer(self, name: str, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        p = self.linear(f"{name}.in_proj", x).transpose(1, 2)  # [B, 3 D, L]
        taps = self.t[f"{name}.short_conv.weight"][:, None]
        p = F.conv1d(p, taps, self.t[f"{name}.short_conv.bias"], padding=2, groups=p.shape[1])
        outer, inner, v = p[..., :length].chunk(3, dim=1)
        v = v * inner
        n = 2 * length
        spectrum = torch.fft.rfft(self.filter(f"{name}.filter", length), n=n) / n
        y = torch.fft.irfft(torch.fft.rfft(v, n=n) * spectrum, n=n, norm="forward")[..., :length]
        y = (y + v * self.t[f"{name}.skip"][0][:, None]) * outer
        return self.linear(f"{name}.out_proj", y.transpose(1, 2))

    def filter(self, name: str, length: int) -> torch.Tensor:
        """Taps [D, L]."""
        a = self.t[f"{name}.features"][:length]
        for k in range(3):
            a = torch.sin(self.t[f"{name}.freq.{k}"] * self.linear(f"{name}.linear.{k}", a))
        h = a @ self.t[f"{name}.linear.3.weight"].T
        decay = torch.exp(-self.t[f"{name}.times"][:length, None] * self.t[f"{name}.deltas"].abs())
        return (h * (decay + 0.05)).T

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.t[f"{name}.weight"], self.t[f"{name}.bias"])

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self.t[f"{name}.weight"], self.t[f"{name}.bias"], 1e-5)
