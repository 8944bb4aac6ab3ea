"""Programs as research code has them: exploration by a schedule, non-maximum suppression, modules made from a registry."""

import dataclasses
import enum
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.testing import CompileCounterWithBackend

REGISTRY: dict[str, type[nn.Module]] = {}


class Act(enum.Enum):
    RELU = "relu"
    GELU = "gelu"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) if self is Act.RELU else nn.functional.gelu(x)


@dataclasses.dataclass(frozen=True)
class Config:
    act: Act
    widths: tuple[int, ...] = (4, 8, 2)


def _register(name: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(cls: type[nn.Module]) -> type[nn.Module]:
        REGISTRY[name] = cls
        return cls

    return add


@_register("mlp")
class Mlp(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.act = config.act
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(config.widths, config.widths[1:], strict=False))

    def forward(self, x: torch.Tensor, hidden: list[torch.Tensor] | None = None) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
            if hidden is not None:
                hidden.append(x)
        last: torch.Tensor = self.layers[-1](x)
        return last


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("act", list(Act))
def test_a_registered_module_whose_activation_is_a_member(backend: str, act: Act) -> None:
    torch.manual_seed(0)
    module, counter = REGISTRY["mlp"](Config(act)), CompileCounterWithBackend(backend)
    compiled = dynajit.compile(module, backend=counter)
    for _ in range(2):
        x, mine, theirs = torch.randn(3, 4), [], []
        torch.testing.assert_close(compiled(x, mine), module(x, theirs))
        torch.testing.assert_close(mine, theirs)
    assert counter.frame_count == 1


def _explore(net: nn.Module, steps: list[int], state: torch.Tensor) -> Any:
    epsilon = 0.05 + 0.85 * math.exp(-steps[0] / 20)
    steps[0] += 1
    if random.random() > epsilon:
        with torch.no_grad():
            return net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(3)]])


def test_exploration_by_a_schedule_is_compiled_once_and_draws_as_eager_does() -> None:
    net, counter = nn.Linear(4, 3), CompileCounterWithBackend("eager")
    states = torch.randn(24, 1, 4)
    found = []
    for explore in (_explore, dynajit.compile(_explore, backend=counter)):
        random.seed(3)
        steps = [0]
        found.append(([explore(net, steps, state).item() for state in states], steps, random.random()))
    assert found[0] == found[1]
    assert counter.frame_count == 2  # the network; the tensor of a number that varies


def _suppress(boxes: torch.Tensor, scores: torch.Tensor, threshold: float = 0.5) -> torch.Tensor:
    order, keep = scores.argsort(descending=True), []
    while order.numel() > 0:
        first = order[0]
        keep.append(first.item())
        if order.numel() == 1:
            break
        one, rest = boxes[first], boxes[order[1:]]
        sides = (torch.minimum(one[2:], rest[:, 2:]) - torch.maximum(one[:2], rest[:, :2])).clamp(min=0)
        shared = sides.prod(1)
        areas = (rest[:, 2:] - rest[:, :2]).prod(1) + (one[2:] - one[:2]).prod()
        order = order[1:][shared / (areas - shared) <= threshold]
    return torch.tensor(keep)


@pytest.mark.filterwarnings("error")  # there is a warning at the limit of variants
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_non_maximum_suppression_is_not_compiled_for_each_number_of_boxes(backend: str) -> None:
    torch.manual_seed(1)
    compiled = dynajit.compile(_suppress, backend=backend)
    for count in (9, 12, 15, 20):
        corners = torch.rand(count, 2) * 4
        boxes, scores = torch.cat([corners, corners + 1 + torch.rand(count, 2)], 1), torch.rand(count)
        assert torch.equal(compiled(boxes, scores), _suppress(boxes, scores))
