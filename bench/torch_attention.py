"""The other peer: causal attention of equal size in PyTorch, float32, eager.

Pre-norm blocks of D channels, heads of 64 with rotary positions, MLP of 4 D; random weights.
`scaled_dot_product_attention` takes PyTorch's flash kernel for CPUs, which holds no N x N scores.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (PyTorch's own convention)

HEAD = 64
VOCAB = 16


class TorchAttention:
    """`hidden`: whole sequences. `begin` and `step`: token by token on a cache of keys, values."""

    def __init__(self, width: int, depth: int, longest: int) -> None:
        self.width, self.heads, self.depth = width, width // HEAD, depth
        generator = torch.Generator().manual_seed(0)

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator) * columns**-0.5

        self.embedding = matrix(VOCAB, width)
        shapes = {
            "qkv": (3 * width, width),
            "out": (width, width),
            "up": (4 * width, width),
            "down": (width, 4 * width),
        }
        self.layers = [
            {name: (matrix(*shape), torch.zeros(shape[0])) for name, shape in shapes.items()}
            for _ in range(depth)
        ]
        self.ones, self.zeros = torch.ones(width), torch.zeros(width)
        rates = 10000.0 ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
        angles = torch.arange(longest, dtype=torch.float64)[:, None] * rates
        self.cos, self.sin = angles.cos().float(), angles.sin().float()
        self.cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.position = 0

    @torch.inference_mode()
    def hidden(self, ids: np.ndarray) -> np.ndarray:
        """ids [L] -> float32 [L, D] after the final norm."""
        return self._forward(ids, 0, None)[0].numpy()

    @torch.inference_mode()
    def begin(self, ids: np.ndarray, room: int) -> None:
        """Takes a prompt in, with a cache for `room` tokens more."""
        shape = (1, self.heads, len(ids) + room, HEAD)
        self.cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(self.depth)]
        self._forward(ids, 0, self.cache)
        self.position = len(ids)

    def fill(self, length: int, room: int) -> None:
        """A cache as after a prompt of `length` tokens, of random numbers, which cost a step what
        others would, with place for `room` tokens more.
        """
        shape = (1, self.heads, length + room, HEAD)
        draw = torch.Generator().manual_seed(1)
        self.cache = [
            (torch.randn(shape, generator=draw), torch.randn(shape, generator=draw))
            for _ in range(self.depth)
        ]
        self.position = length

    def back(self, length: int) -> None:
        """To where it had `length` tokens."""
        self.position = length

    @property
    def cache_bytes(self) -> int:
        """Of what has been filled so far."""
        each = sum(part.nbytes // part.shape[2] for pair in self.cache for part in pair)
        return each * self.position

    @torch.inference_mode()
    def step(self, token: int) -> np.ndarray:
        """One more token; logits [1, VOCAB]."""
        h = self._forward(np.array([token]), self.position, self.cache)
        self.position += 1
        return (h[0] @ self.embedding.T).numpy()

    def _forward(
        self, ids: np.ndarray, at: int, cache: list[tuple[torch.Tensor, torch.Tensor]] | None
    ) -> torch.Tensor:
        x = F.embedding(torch.from_numpy(ids.astype(np.int64))[None], self.embedding)
        for i, layer in enumerate(self.layers):
            kept = None if cache is None else cache[i]
            x = x + F.linear(self._attend(self._norm(x), layer, at, kept), *layer["out"])
            h = F.gelu(F.linear(self._norm(x), *layer["up"]), approximate="tanh")
            x = x + F.linear(h, *layer["down"])
        return self._norm(x)

    def _attend(
        self,
        x: torch.Tensor,
        layer: dict[str, tuple[torch.Tensor, torch.Tensor]],
        at: int,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        length = x.shape[1]
        q, k, v = F.linear(x, *layer["qkv"]).view(1, length, 3, self.heads, HEAD).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # [1, H, L, 64]
        q, k = self._turn(q, at), self._turn(k, at)
        if kept is not None:
            keys, values = kept
            keys[:, :, at : at + length], values[:, :, at : at + length] = k, v
            k, v = keys[:, :, : at + length], values[:, :, : at + length]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=at == 0)
        return y.transpose(1, 2).reshape(1, length, self.width)

    def _turn(self, x: torch.Tensor, at: int) -> torch.Tensor:
        """Rotary positions: the first half of a head turns with its second half."""
        rows = slice(at, at + x.shape[2])
        cos, sin = self.cos[rows], self.sin[rows]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self.ones, self.zeros, 1e-5)
