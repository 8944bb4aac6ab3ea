"""Halves of joint graphs of many equal layers are made of those of a few, and are what the whole would have had."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from torch import nn
from torch.fx import GraphModule
from torch.fx.node import map_arg
from torch.utils.checkpoint import checkpoint

import dynajit
from dynajit.aot import autograd, compile_joint
from dynajit.aot.layers import look_of
from dynajit.aot.training.few_halves import KEPT
from dynajit.graph.meta import memory, value_of

WIDTH, COUNT = 8, KEPT + 4


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def attend(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        attended = torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v
        return x + F.dropout(F.gelu(self.out(attended)), self.dropout, self.training), k + 1, v.exp()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.attend(x, scale)[0]


class Net(nn.Module):
    def __init__(self, count: int = COUNT, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(count))
        self.head, self.scale = nn.Linear(WIDTH, 3), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> Any:
        x, scale = self.first(x), torch.full((), 0.5)
        for block in self.blocks:
            x = block(x, scale)
        return self.head(x)


class Caching(Net):
    """Each layer gives two results of the graph."""

    def forward(self, x: torch.Tensor) -> Any:
        x, kept = self.first(x), []
        for block in self.blocks:
            x, *more = block.attend(x, torch.full((), 0.5))
            kept += more
        return self.head(x), kept


class HiddenStates(Net):
    """What each layer hands on is a result, whose gradient is added to the one from the next layer."""

    def forward(self, x: torch.Tensor) -> Any:
        every = [self.first(x)]
        for block in self.blocks:
            every.append(block(every[-1], torch.full((), 0.5)))
        return every


class Frozen(Net):
    """Some weights of each layer have no gradients, nor does what the first reads."""

    def __init__(self) -> None:
        super().__init__()
        for part in (self.first, *(block.out for block in self.blocks)):
            part.requires_grad_(False)


class Scaled(Net):
    """All layers read a weight, whose gradients are added up."""

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x, self.scale)
        return x


class Weighed(Net):
    """The layers' weights are read once more at the end."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), torch.stack([block.out.weight.sum() for block in self.blocks])


class Mixing(Net):
    """Each layer mixes along another dimension; small weights are saved as copies, made before all layers."""

    def __init__(self, bias: bool = True, **options: Any) -> None:
        super().__init__(**options)
        self.mixes = nn.ModuleList(nn.Linear(5, 5, bias) for _ in self.blocks)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block, mix in zip(self.blocks, self.mixes, strict=True):
            x = x + F.gelu(mix(block.norm(x).transpose(1, 2))).transpose(1, 2)
            x = x + F.gelu(block.out(x))
        return self.head(x)


class Turning(Mixing):
    """The gradient of what each layer hands on lies in memory as its transposition leaves it."""

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for mix in self.mixes:
            x = F.gelu(mix(x.transpose(1, 2)).transpose(1, 2).contiguous()).sin().cos()
        return self.head(x)


class LookingBack(Net):
    """Each layer reads what the two before it give."""

    def forward(self, x: torch.Tensor) -> Any:
        before, x = x, self.first(x)
        for block in self.blocks:
            x, before = block(x + before, torch.full((), 0.5)), x
        return x


class OneOfThem(Net):
    """One layer's result is a result."""

    def forward(self, x: torch.Tensor) -> Any:
        found = []
        for at, block in enumerate(self.blocks):
            x = block(x, torch.full((), 0.5))
            found += [x] if at == KEPT else []
        return x, *found


class Checkpointed(Net):
    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, torch.full((), 0.5), use_reentrant=False)
        return self.head(x)


class Tied(Net):
    """Every other layer has the first one's weights."""

    def forward(self, x: torch.Tensor) -> Any:
        for at, block in enumerate(self.blocks):
            x = (block if at % 2 else self.blocks[0])(x, torch.full((), 0.5))
        return x


@pytest.fixture
def grown(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Of each graph whose halves are made of those of a few layers, how many were left out."""
    found: list[int] = []
    grow = autograd.grown

    def counting(few: Any, *halves: Any) -> Any:
        made = grow(few, *halves)
        found.append(few.more)
        return made

    monkeypatch.setattr(autograd, "grown", counting)
    yield found


def shown(gm: GraphModule) -> list[Any]:
    """What a graph computes, and which values share memory."""
    number = {node: f"#{at}" for at, node in enumerate(gm.graph.nodes)}
    memories: dict[Any, int] = {}
    return [
        (
            node.op,
            None if node.op == "placeholder" else node.target,
            repr(map_arg((node.args, node.kwargs), number.__getitem__)) if node.op != "placeholder" else "",
            look_of(value_of(node)) if isinstance(value_of(node), torch.Tensor) else None,
            memories.setdefault(memory(node), len(memories)) if memory(node) is not None else None,
        )
        for node in gm.graph.nodes
    ]


def trained(net: nn.Module, x: torch.Tensor) -> tuple[Any, list[Any]]:
    """Results and gradients of two steps; the graphs that were compiled."""
    graphs: list[Any] = []

    def backend(gm: GraphModule, inputs: list[Any]) -> Any:
        def keep(part: GraphModule, inputs: Any, phase: str) -> Any:
            part.graph.lint()
            graphs.append((phase, shown(part)))
            return part.forward

        return compile_joint(gm, inputs, keep)

    net = copy.deepcopy(net)
    dynajit.reset()
    compiled, made = dynajit.compile(net, backend=backend), []
    for step in range(2):
        torch.manual_seed(step)
        results = torch.utils._pytree.tree_leaves(compiled(x))
        sum(((at + 1) * one.square()).sum() for at, one in enumerate(results)).backward()
        made.append((results, [None if p.grad is None else p.grad.clone() for p in net.parameters()]))
    return made, graphs


FEW = [Net(), Net(dropout=0.3), Net(count=COUNT + 7), Caching(), LookingBack(), Frozen(), Scaled(), HiddenStates()]
WHOLE = [
    Mixing(),
    Turning(bias=False, count=2 * COUNT),
    Weighed(),
    OneOfThem(),
    Checkpointed(),
    Tied(),
    Net(count=KEPT + 1),
]


def name(net: Any) -> str:
    return f"{type(net).__name__}-{len(net.blocks)}-{net.blocks[0].dropout}"


@pytest.mark.parametrize("net", [*FEW, *WHOLE], ids=name)
def test_the_same_halves(net: Net, grown: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the node and to the bit."""
    x = torch.randn(2, 5, WIDTH)
    made, graphs = trained(net, x)
    few = len(grown)
    monkeypatch.setattr(autograd, "with_few_calls", lambda *args: None)
    apart, whole = trained(net, x)
    torch.testing.assert_close(made, apart, rtol=0, atol=0)
    assert [phase for phase, _ in graphs] == [phase for phase, _ in whole]
    for (_, one), (_, other) in zip(graphs, whole, strict=True):
        assert one == other
    assert few == (net in FEW) and len(grown) == few


@pytest.mark.parametrize(("budget", "left_out"), [(1.0, COUNT - KEPT), (0.5, 0)])
def test_a_memory_budget_is_of_the_whole(budget: float, left_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that is partitioned has all its layers: a budget is not shared out over a few of them."""
    layers: list[int] = []
    partition = autograd._partition

    def noting(*args: Any, **kwargs: Any) -> Any:
        joint = next(each for each in args if isinstance(each, GraphModule))
        layers.append(sum("native_layer_norm.default" in str(node.target) for node in joint.graph.nodes))
        return partition(*args, **kwargs)

    monkeypatch.setattr(autograd, "_partition", noting)
    with functorch_config.patch(activation_memory_budget=budget):
        trained(Net(), torch.randn(2, 5, WIDTH))
    assert layers == [COUNT - left_out]
