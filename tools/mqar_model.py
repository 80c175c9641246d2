"""The two-layer recall models in PyTorch, for training.

x += mixer(norm1(x)) twice, without MLPs, as the authors' figure 2 (arXiv 2312.04927); embedding and
head are tied. Parameter names and shapes are those of the native model folder.

Shapes: B rows, L tokens, D width, K taps.
"""

from __future__ import annotations

import math

import torch
from text_model import Attention, Hyena, Shape, ShortConvolution, causal_convolution
from torch import Tensor, nn
from torch.nn import functional

from hyena_cpu.config import FORMAT_VERSION, ModelConfig
from hyena_cpu.config_json import parse

MIXERS = {  # A: attention, H: order-2 Hyena, b and B: BaseConv with 3 taps and with a long filter
    "attention": "AA",
    "hybrid": "bA",
    "base_conv": "bB",
    "hyena": "HH",
}
NORM_EPS = 1e-5
SHORT_TAPS = 3
FILTER_WIDTH = 16  # hidden units of BaseConv's filter MLP
FREQUENCY = 1e-4  # of its one band
EMBEDDING_SCALE = 0.05


class ReluFilter(nn.Module):
    """h[c,t] = W2 relu(W1 z[t] + b1) + b2 with z[t] = [t / (K-1), cos(f w), -sin(f w)]."""

    features: Tensor

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        steps = torch.arange(taps, dtype=torch.float64)
        angle = FREQUENCY * 2 * math.pi * steps / taps
        features = torch.stack([steps / (taps - 1), angle.cos(), -angle.sin()], dim=1).float()
        self.register_buffer("features", features)  # [K,3]
        self.linear = nn.ModuleList(
            [nn.Linear(features.shape[1], FILTER_WIDTH), nn.Linear(FILTER_WIDTH, width)]
        )

    def forward(self) -> Tensor:
        h: Tensor = self.linear[1](self.linear[0](self.features).relu())
        return h.t()  # [D,K]


class BaseConv(nn.Module):
    """y = conv(u) * projection(u) + u; a long convolution adds u to conv(u) too."""

    def __init__(self, shape: Shape, long: bool) -> None:
        super().__init__()
        self.projection = nn.Linear(shape.width, shape.width)
        self.long = long
        if long:
            self.filter = ReluFilter(shape.width, shape.taps)
        else:
            self.short_conv = ShortConvolution(shape.width, SHORT_TAPS, bias=True)

    def forward(self, u: Tensor) -> Tensor:  # [B,L,D]
        if self.long:
            h = self.filter()[:, : u.shape[1]]
            conv = causal_convolution(u.transpose(1, 2), h).transpose(1, 2) + u
        else:
            conv = self.short_conv(u)
        y: Tensor = conv * self.projection(u) + u
        return y


def mixer(kind: str, shape: Shape) -> nn.Module:
    """The mixer of one letter."""
    if kind in "bB":
        return BaseConv(shape, long=kind == "B")
    return Hyena(shape) if kind == "H" else Attention(shape)


class Layer(nn.Module):
    """Pre-norm residual mixer."""

    def __init__(self, kind: str, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width, eps=NORM_EPS)
        self.mixer = mixer(kind, shape)

    def forward(self, x: Tensor) -> Tensor:  # [B,L,D]
        y: Tensor = x + self.mixer(self.norm1(x))
        return y


class RecallModel(nn.Module):
    """Token ids [B,L] to logits at chosen positions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        nn.init.normal_(self.embedding.weight, std=EMBEDDING_SCALE)
        self.layers = nn.ModuleList(Layer(kind, shape) for kind in shape.layers)
        self.norm = nn.LayerNorm(shape.width, eps=NORM_EPS)

    def forward(self, ids: Tensor, chosen: Tensor) -> Tensor:
        """Logits [n, V] where `chosen` (bool [B,L]) says so: the others ask for nothing."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return functional.linear(self.norm(x[chosen]), self.embedding.weight)


def recall_shape(name: str, vocabulary: int, length: int, width: int) -> Shape:
    """The sizes of the model `name` for rows of `length` tokens; filters are as long as these."""
    return Shape(
        vocab=vocabulary,
        width=width,
        layers=MIXERS[name],
        heads=1,
        mlp=0,
        taps=length,
        window=length,
    )


def config(name: str, shape: Shape) -> ModelConfig:
    """The model as the native format describes it."""
    filter = {"kind": "relu_mlp", "taps": shape.taps, "width": FILTER_WIDTH, "bands": 1}
    known = shape.mixers()
    mixers = {
        "H": known["H"],
        "A": {**known["A"], "window": None},
        "b": {"kind": "base_conv", "short_taps": SHORT_TAPS},
        "B": {"kind": "base_conv", "filter": filter},
    }
    return parse(
        {
            "format_version": FORMAT_VERSION,
            "model_type": "hyena-cpu",
            "name": name,
            "d_model": shape.width,
            "vocab_size": shape.vocab,
            "logits_width": shape.vocab,
            "max_length": None,
            "tie_embeddings": True,
            "norm": {"kind": "layernorm", "eps": NORM_EPS},
            "layers": [{"mixer": mixers[kind], "mlp": None} for kind in shape.layers],
        }
    )
