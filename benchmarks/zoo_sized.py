"""Models at the sizes that people use on one large GPU, for `zoo.py`.

In: nothing; torchvision's and transformers' are left out where these packages are missing. Out: `sized()`, names and
how each is made: a module, positional and keyword arguments. One more model: a function behind `@size`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from models_gpu import GPTBlock
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
SIZES: dict[str, tuple[str | None, Callable[[], Made]]] = {}


def size(name: str, package: str | None = None) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    """Registers a model. package: what it is made of besides torch."""

    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        SIZES[name] = package, make
        return make

    return register


def sized() -> Iterator[tuple[str, Callable[[], Made]]]:
    for name, (package, make) in SIZES.items():
        if package is None or importlib.util.find_spec(package):
            yield f"sized {name}", make


class Speech(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(80, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.places = nn.Parameter(torch.randn(1500, width) / 10)
        self.layers = nn.Sequential(*(GPTBlock(width, width // 64) for _ in range(layers)), nn.LayerNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(x)))).permute(0, 2, 1)
        return self.layers(x + self.places)


class Residual(nn.Module):
    def __init__(self, given: int, made: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, given), nn.Conv2d(given, made, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, made), nn.Conv2d(made, made, 3, padding=1)
        self.time = nn.Linear(time, made)
        self.short = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.short(x) + self.conv2(F.silu(self.norm2(y)))


class Across(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.rows = nn.GroupNorm(32, width), GPTBlock(width, width // 64)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, wide = x.shape
        y = self.rows(self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * wide, width))
        return x + y.reshape(batch, height, wide, width).permute(0, 3, 1, 2)


class Diffusion(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        first, time = widths[0], 4 * widths[0]
        self.first, self.last = nn.Conv2d(4, first, 3, padding=1), nn.Conv2d(first, 4, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        at = first
        for width in widths:
            self.down.append(nn.ModuleList([Residual(at, width, time), Across(width)]))
            self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            at = width
        for width in reversed(widths):
            self.up.append(nn.ModuleList([Residual(at + width, width, time), Across(width)]))
            at = width
        self.norm = nn.GroupNorm(32, first)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        x, kept = self.first(x), []
        for part in self.down:
            if isinstance(part, nn.ModuleList):
                x = part[1](part[0](x, t))
                kept.append(x)
            else:
                x = part(x)
        for residual, across in self.up:
            x = F.interpolate(x, scale_factor=2.0)
            x = across(residual(torch.cat([x, kept.pop()], 1), t))
        return self.last(F.silu(self.norm(x)))


class Wave(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=2 ** (i % 10), dilation=2 ** (i % 10)) for i in range(layers)
        )
        self.outs = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))
        self.last = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        total: Any = 0
        for gate, out in zip(self.gates, self.outs, strict=True):
            a, b = gate(x).chunk(2, 1)
            more, skip = out(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, total = (x + more) * 0.7, total + skip
        return self.last(F.relu(total))


class Messages(nn.Module):
    """Rows of two ends of each edge, a linear layer over both, sums into the ends."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.edges = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.rows = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for edge, row, norm in zip(self.edges, self.rows, self.norms, strict=True):
            sent = F.relu(edge(torch.cat([x[source], x[target]], -1)))
            total = torch.zeros_like(x).index_add(0, target, sent)
            x = norm(x + F.relu(row(total)))
        return x


class Recommender(nn.Module):
    """DLRM: bags of 26 tables and a net of the numbers, their products in pairs, a net above."""

    def __init__(self, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.below = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
        self.last = nn.Linear(512, 1)
        first, second = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, numbers: Tensor, *bags: Tensor) -> Tensor:
        below = self.below(numbers)
        parts = torch.stack([below, *(table(bag) for table, bag in zip(self.tables, bags, strict=True))], 1)
        products = (parts @ parts.transpose(1, 2))[:, self.first, self.second]
        return self.last(self.above(torch.cat([below, products], -1)))


def _classifier(name: str, batch: int) -> Made:
    import torchvision

    return torchvision.models.get_model(name, weights=None), (torch.randn(batch, 3, 224, 224),), {}


def _words(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(vocabulary, shape)


@size("BERT-large, 32 x 128", "transformers")
def _bert() -> Made:
    from transformers import BertConfig, BertModel

    large = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    return BertModel(large), (_words(30000, 32, 128),), {}


@size("T5-base, 16 x 128 and 16 x 64", "transformers")
def _t5() -> Made:
    from transformers import T5Config, T5Model

    base = T5Config(d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12)
    return T5Model(base), (), {"input_ids": _words(32000, 16, 128), "decoder_input_ids": _words(32000, 16, 64)}


@size("Swin-T, 64 x 3 x 224 x 224", "torchvision")
def _swin() -> Made:
    return _classifier("swin_t", 64)


@size("ConvNeXt-T, 64 x 3 x 224 x 224", "torchvision")
def _convnext() -> Made:
    return _classifier("convnext_tiny", 64)


@size("Qwen2, 12 layers of 1024, 4 x 1024", "transformers")
def _qwen() -> Made:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4}
    small = Qwen2Config(vocab_size=32000, num_hidden_layers=12, use_cache=False, **shape)
    return Qwen2ForCausalLM(small), (_words(32000, 4, 1024),), {}


@size("8 attention blocks of 256, 4 x 64 x 256")
def _blocks() -> Made:
    return nn.Sequential(*(GPTBlock(256, 4) for _ in range(8))), (torch.randn(4, 64, 256),), {}


@size("speech encoder, 12 layers of 768, 8 x 80 x 3000")
def _speech() -> Made:
    return Speech(768, 12), (torch.randn(8, 80, 3000),), {}


@size("EfficientNetV2-S, 64 x 3 x 224 x 224", "torchvision")
def _efficient_net() -> Made:
    return _classifier("efficientnet_v2_s", 64)


@size("ResNet-50, 128 x 3 x 224 x 224", "torchvision")
def _resnet() -> Made:
    return _classifier("resnet50", 128)


@size("diffusion U-Net, 8 x 4 x 64 x 64")
def _diffusion() -> Made:
    return Diffusion((256, 512)), (torch.randn(8, 4, 64, 64), torch.randn(8, 1024)), {}


@size("WaveNet, 20 layers of 128, 8 x 1 x 16000")
def _wave() -> Made:
    return Wave(128, 20), (torch.randn(8, 1, 16000),), {}


@size("graph net, 6 layers of 128, 50,000 rows, 400,000 edges")
def _messages() -> Made:
    source, target = torch.randint(50_000, (2, 400_000))
    return Messages(128, 6), (torch.randn(50_000, 128), source, target), {}


@size("DLRM, 26 bags of 100,000 x 64, 4096")
def _recommender() -> Made:
    bags = [torch.randint(100_000, (4096, 4)) for _ in range(26)]
    return Recommender(26, 100_000, 64), (torch.randn(4096, 13), *bags), {}


@size("Mixtral, 4 layers of 1024, 8 experts, 4 x 512", "transformers")
def _mixtral() -> Made:
    from transformers import MixtralConfig, MixtralModel

    shape = {"hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8}
    small = MixtralConfig(vocab_size=32000, num_hidden_layers=4, num_local_experts=8, use_cache=False, **shape)
    return MixtralModel(small), (_words(32000, 4, 512),), {}
