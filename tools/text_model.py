"""The hybrid long-convolution model in PyTorch, for training.

Parameter names and shapes are those of the native model folder, so the state dict is the file.

Shapes: B windows, L tokens, D width, H heads, K taps, F transform size, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

# Written out because the default eps of nn.RMSNorm follows the dtype.
NORM_EPS = 2.0**-23


@dataclass(frozen=True)
class Shape:
    """Sizes of a model; the defaults are tiny-en."""

    vocab: int
    width: int = 192
    layers: str = "HHAH"  # H: order-2 Hyena, A: attention
    heads: int = 3
    mlp: int = 512
    taps: int = 1024
    filter_width: int = 32
    bands: int = 8
    window: int = 1024
    rotary_base: float = 10000.0

    def mixers(self) -> dict[str, dict[str, object]]:
        """The mixers of the native format, by letter."""
        hyena: dict[str, object] = {
            "kind": "hyena",
            "order": 2,
            "short_taps": 3,
            "short_bias": False,
            "bias": True,
            "skip": True,
            "filter": {
                "kind": "sine_window",
                "taps": self.taps,
                "width": self.filter_width,
                "bands": self.bands,
                "sine_layers": 2,
                "normalize": "time_l2",
            },
        }
        attention: dict[str, object] = {
            "kind": "attention",
            "heads": self.heads,
            "window": self.window,
            "rotary": {"base": self.rotary_base},
            "bias": False,
        }
        return {"H": hyena, "A": attention}

    def config(self, name: str) -> dict[str, object]:
        """The config.json of the native format, without tokenizer and special tokens."""
        mlp = {"kind": "swiglu", "width": self.mlp, "bias": False}
        mixers = self.mixers()
        return {
            "format_version": 1,
            "model_type": "hyena-cpu",
            "name": name,
            "d_model": self.width,
            "vocab_size": self.vocab,
            "logits_width": self.vocab,
            "max_length": None,
            "tie_embeddings": True,
            "norm": {"kind": "rmsnorm", "eps": NORM_EPS},
            "positions": None,
            "layers": [{"mixer": mixers[kind], "mlp": mlp} for kind in self.layers],
        }


def causal_convolution(u: Tensor, h: Tensor) -> Tensor:
    """Linear causal convolution of u [B,D,L] with h [D,K], K <= L, by one real FFT."""
    length = u.shape[-1]
    size = 1 << (length + h.shape[-1] - 2).bit_length()  # F >= L + K - 1
    spectrum = torch.fft.rfft(u, n=size) * torch.fft.rfft(h, n=size)
    y: Tensor = torch.fft.irfft(spectrum, n=size)
    return y[..., :length]


class SineWindowFilter(nn.Module):
    """h[c,t] = MLP(features(t / K))[c] * exp(-t * exp(log_rate[c])), unit energy over t."""

    features: Tensor
    steps: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        steps = torch.arange(shape.taps, dtype=torch.float32)[:, None]  # [K,1]
        time = steps / shape.taps
        angle = 2 * math.pi * time * torch.linspace(1e-4, shape.bands - 1, shape.bands)
        features = torch.cat([time, angle.cos(), angle.sin()], dim=1)  # [K, 1 + 2 bands]
        self.register_buffer("steps", steps, persistent=False)
        self.register_buffer("features", features, persistent=False)
        inner = shape.filter_width
        self.linear = nn.ModuleList(
            [
                nn.Linear(features.shape[1], inner),
                nn.Linear(inner, inner),
                nn.Linear(inner, shape.width, bias=False),
            ]
        )
        self.freq = nn.ParameterList([torch.full((inner,), 8.0), torch.ones(inner)])
        # Time constants from 2 taps to the whole filter, evenly spaced in their logarithm.
        self.log_rate = nn.Parameter(
            -torch.linspace(math.log(2.0), math.log(shape.taps), shape.width)
        )

    def forward(self) -> Tensor:
        z = torch.sin(self.freq[0] * self.linear[0](self.features))
        z = torch.sin(self.freq[1] * self.linear[1](z))
        h: Tensor = self.linear[2](z) * torch.exp(-self.steps * self.log_rate.exp())  # [K,D]
        h = h / (h.square().sum(dim=0).sqrt() + 1e-6)
        return h.t()  # [D,K]


class ShortConvolution(nn.Module):
    """Depthwise causal FIR filter; the last column of the weight meets the current token."""

    def __init__(self, channels: int, taps: int, bias: bool = False) -> None:
        super().__init__()
        weight = 0.1 * torch.randn(channels, taps)
        weight[:, -1] += 1.0
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # [B,L,C]
        taps = self.weight.to(x.dtype).unbind(dim=1)
        y = x * taps[-1]
        for delay, tap in enumerate(reversed(taps[:-1]), start=1):
            y = y + functional.pad(x, (0, 0, delay, 0))[:, : x.shape[1]] * tap
        return y if self.bias is None else y + self.bias


class Hyena(nn.Module):
    """Order 2: y = out(x0 * (h (*) (x1 v) + skip * (x1 v)))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.in_proj = nn.Linear(shape.width, 3 * shape.width)
        self.short_conv = ShortConvolution(3 * shape.width, taps=3)
        self.filter = SineWindowFilter(shape)
        self.skip = nn.Parameter(torch.ones(1, shape.width))
        self.out_proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:  # [B,L,D]
        x0, x1, v = self.short_conv(self.in_proj(x)).chunk(3, dim=-1)
        # bfloat16 has neither an FFT nor the digits for a sum over a thousand taps.
        with torch.autocast(x.device.type, enabled=False):
            u = (x1 * v).float().transpose(1, 2)  # [B,D,L]
            h = self.filter()[:, : x.shape[1]]
            y = causal_convolution(u, h) + self.skip.t() * u
        x0 = x0 * y.transpose(1, 2).to(x0.dtype)
        projected: Tensor = self.out_proj(x0)
        return projected


class Attention(nn.Module):
    """Causal attention with rotary positions (first half of a head paired with the second)."""

    cosine: Tensor
    sine: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out_proj = nn.Linear(shape.width, shape.width, bias=False)
        size = shape.width // shape.heads
        rate = shape.rotary_base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.arange(shape.window, dtype=torch.float64)[:, None] * rate  # [L, D / 2H]
        self.register_buffer("cosine", angle.cos().float(), persistent=False)
        self.register_buffer("sine", angle.sin().float(), persistent=False)

    def rotate(self, x: Tensor) -> Tensor:  # [B,H,L,D/H]
        cosine = self.cosine[: x.shape[2]].to(x.dtype)
        sine = self.sine[: x.shape[2]].to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cosine - b * sine, a * sine + b * cosine], dim=-1)

    def forward(self, x: Tensor) -> Tensor:  # [B,L,D]
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(
            self.rotate(q), self.rotate(k), v, is_causal=True
        )
        projected: Tensor = self.out_proj(y.transpose(1, 2).reshape(batch, length, width))
        return projected


class SwiGLU(nn.Module):
    """down(silu(gate) * value), gate and value being the two halves of up(x)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, 2 * shape.mlp, bias=False)
        self.down = nn.Linear(shape.mlp, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.up(x).chunk(2, dim=-1)
        projected: Tensor = self.down(functional.silu(gate) * value)
        return projected


class Block(nn.Module):
    """Pre-norm residual block: mixer, then MLP."""

    def __init__(self, kind: str, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(shape.width, eps=NORM_EPS)
        self.mixer = Hyena(shape) if kind == "H" else Attention(shape)
        self.norm2 = nn.RMSNorm(shape.width, eps=NORM_EPS)
        self.mlp = SwiGLU(shape)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:  # [B,L,D]
        x = x + functional.dropout(self.mixer(self.norm1(x)), self.dropout, self.training)
        return x + functional.dropout(self.mlp(self.norm2(x)), self.dropout, self.training)


class TextModel(nn.Module):
    """Token ids [B,L] to logits [B,L,V]; the head is the embedding."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Block(kind, shape, dropout) for kind in shape.layers)
        self.norm = nn.RMSNorm(shape.width, eps=NORM_EPS)
        nn.init.normal_(self.embedding.weight, std=0.02)
        for name, weight in self.block_matrices():
            nn.init.normal_(weight, std=0.02)
            if name.endswith(("out_proj.weight", "down.weight")):
                # Two additions a layer to the residual stream: keep its variance at one layer's.
                weight.data.mul_(1 / math.sqrt(2 * len(shape.layers)))

    def block_matrices(self) -> list[tuple[str, nn.Parameter]]:
        """The projections of mixers and MLPs: the weights that Muon trains."""
        ends = tuple(f"{part}.weight" for part in ("in_proj", "out_proj", "qkv", "up", "down"))
        return [(name, p) for name, p in self.named_parameters() if name.endswith(ends)]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x), self.embedding.weight)


@torch.no_grad()
def total_nats(model: TextModel, inputs: Tensor, targets: Tensor, batch: int = 32) -> float:
    """Sum of -ln p(target) over the targets that are not -100; both tensors [B,L]."""
    device = model.embedding.weight.device
    was_training = model.training
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    for first in range(0, len(inputs), batch):
        x, y = inputs[first : first + batch], targets[first : first + batch]
        logits = model(x.to(device)).float().flatten(0, 1)
        nats = functional.cross_entropy(
            logits, y.to(device).flatten(), ignore_index=-100, reduction="none"
        )
        total += nats.sum(dtype=torch.float64)
    model.train(was_training)
    return float(total)
