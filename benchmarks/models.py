"""The programs that the demo runs: small versions of real models with random weights, and functions.

In: a name. Out: a `Program`, whose `build()` makes the callable and its inputs, the same ones each time (seed 0), so
that eager and every compiler get a copy of their own. Nothing is downloaded. One more program: a function with the
decorator `@program`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclasses.dataclass
class Case:
    """A callable with its inputs. `state` gives the tensors that a call changes; `grad`: it needs autograd."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    state: Callable[[], list[Tensor]] = list
    grad: bool = False

    def call_with(self, fn: Callable[..., Any]) -> Any:
        return fn(*self.args, **self.kwargs)


@dataclasses.dataclass
class Program:
    """A named program; `quick` ones are part of the demo's short form."""

    name: str
    make: Callable[[], Case]
    quick: bool

    def build(self) -> Case:
        torch.manual_seed(0)
        return self.make()


PROGRAMS: dict[str, Program] = {}


def program(name: str, *, quick: bool = False) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(make: Callable[[], Case]) -> Callable[[], Case]:
        PROGRAMS[name] = Program(name, make, quick)
        return make

    return register


# ------------------------------------------------------------------------------------------------ functions


@program("softmax(x @ y)", quick=True)
def _softmax_matmul() -> Case:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x @ y, dim=1)

    return Case(f, (torch.randn(100, 100), torch.randn(100, 100)))


@program("a / (abs(a) + 1) * b", quick=True)
def _softsign() -> Case:
    def f(a: Tensor, b: Tensor) -> Tensor:
        return a / (torch.abs(a) + 1) * b

    return Case(f, (torch.randn(1000, 1000), torch.randn(1000, 1000)))


@program("relu(x * w + b) * 0.5", quick=True)
def _scaled_relu() -> Case:
    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(x * w + b) * 0.5

    return Case(f, (torch.randn(1000, 1000), torch.randn(1000), torch.randn(1000)))


# ------------------------------------------------------------------------------------------------ hand-written networks


class NormGeluMLP(nn.Module):
    """Residual blocks of layer norm, linear, GELU, linear."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            x = x + down(F.gelu(up(norm(x))))
        return x


@program("LayerNorm-GELU MLP", quick=True)
def _mlp() -> Case:
    return Case(NormGeluMLP().eval(), (torch.randn(64, 256),))


class Residual(nn.Module):
    """Two 3x3 convolutions with batch norm and a shortcut (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


@program("ResNet (3 stages)")
def _resnet() -> Case:
    stem = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    stages = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)]
    model = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return Case(model.eval(), (torch.randn(8, 3, 32, 32),))


@program("SGD training step")
def _sgd_step() -> Case:
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs = (torch.randn(128, 64), torch.randint(0, 10, (128,)))
    return Case(step, inputs, state=lambda: list(model.parameters()), grad=True)


# ------------------------------------------------------------------------------------------------ transformers

VOCABULARY = 2000


def _tokens(batch: int, length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


@program("BERT (4 layers)")
def _bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=768
    )
    mask = torch.ones(4, 64, dtype=torch.long)
    mask[0, -9:] = 0
    return Case(BertForMaskedLM(config).eval(), (), {"input_ids": _tokens(4, 64), "attention_mask": mask})


@program("GPT-2 (4 layers)", quick=True)
def _gpt2() -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=192, n_layer=4, n_head=4, n_positions=256, bos_token_id=1, eos_token_id=2
    )
    return Case(GPT2LMHeadModel(config).eval(), (), {"input_ids": _tokens(4, 64)})


@program("Llama (4 layers)")
def _llama() -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=256,
    )
    return Case(LlamaForCausalLM(config).eval(), (), {"input_ids": _tokens(4, 64)})


@program("ViT (4 layers)")
def _vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=96,
        patch_size=8,
        num_labels=20,
    )
    return Case(ViTForImageClassification(config).eval(), (), {"pixel_values": torch.randn(2, 3, 96, 96)})


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a model's result: sequences, mappings, model outputs and key-value caches are looked into."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors_in(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    if hasattr(value, "layers"):
        return [tensor for layer in value.layers for tensor in (layer.keys, layer.values)]
    return []
