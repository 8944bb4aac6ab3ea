"""Weights are updated and then differentiated by in one graph: it is compiled, and every step is eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dynajit
from dynajit.report import logs


class Programs:
    """Two networks, their optimizers, and steps that go on with weights just written."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
        self.second = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.optimizers = [torch.optim.Adam(self.first.parameters()), torch.optim.SGD(self.second.parameters(), lr=0.1)]
        self.rate = 0.9

    def evaluated_behind(self, x: Tensor) -> Tensor:
        self.optimizers[1].zero_grad()
        self.second(x).square().mean().backward()
        nn.utils.clip_grad_norm_(self.second.parameters(), 1.0)
        self.optimizers[1].step()
        return self.second(x).mean()

    def adversaries(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fake = self.first(x)
        loss = F.softplus(-self.second(x)).mean() + F.softplus(self.second(fake.detach())).mean()
        self.optimizers[1].zero_grad()
        loss.backward()
        self.optimizers[1].step()
        other = F.softplus(-self.second(fake)).mean()
        self.optimizers[0].zero_grad()
        other.backward()
        self.optimizers[0].step()
        return loss.detach(), other.detach()

    def by_hand(self, x: Tensor) -> Tensor:
        self.rate *= 0.9
        with torch.no_grad():
            decayed = [weight.mul_(self.rate).norm() for weight in self.second.parameters()]
        return self.second(x).mean() + decayed[0]

    def followed(self, x: Tensor) -> Tensor:
        loss = self.first(x).square().mean()
        self.optimizers[0].zero_grad()
        loss.backward()
        self.optimizers[0].step()
        for kept, new in zip(self.second.parameters(), self.first.parameters()):
            kept.data.copy_(0.9 * kept.data + 0.1 * new.data.flatten()[: kept.numel()].view_as(kept))
        return loss.detach()


def run(name: str, compile: Callable[..., Any]) -> Any:
    programs = Programs()
    step = compile(getattr(programs, name))
    generator = torch.Generator().manual_seed(3)
    results = []
    for _ in range(5):
        result = step(torch.randn(4, 6, generator=generator))
        if isinstance(result, Tensor) and result.requires_grad:
            result.backward()
        results.append(result)
    weights = [*programs.first.parameters(), *programs.second.parameters()]
    versions = [weight._version for weight in weights]
    return results, copy.deepcopy([(weight, weight.grad) for weight in weights]), versions


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("name", ["evaluated_behind", "adversaries", "by_hand", "followed"])
def test_steps_are_compiled(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    emit = logs.emit
    monkeypatch.setattr(logs, "emit", lambda channel, text, *rest: (texts.append(text), emit(channel, text, *rest)))
    found = run(name, lambda step: dynajit.compile(step, backend=backend))
    torch.testing.assert_close(found, run(name, lambda step: step), rtol=1e-4, atol=1e-5)
    assert not [text for text in texts if "runs as captured" in text]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_statistics_behind_an_update(backend: str) -> None:
    """Which inputs' writes are not counted goes by their places, and each piece has its own."""

    def step(weights: list[Tensor], x: Tensor, norm: nn.Module) -> Tensor:
        with torch.no_grad():
            for weight in weights:
                weight.mul_(0.5)
        return norm(x * weights[0] * weights[1]).square().mean()

    results = []
    for compile in (lambda fn: fn, lambda fn: dynajit.compile(fn, backend=backend)):
        torch.manual_seed(0)
        norm, weights, x = nn.BatchNorm1d(4), [torch.randn(4, requires_grad=True) for _ in range(3)], torch.randn(5, 4)
        compile(step)(weights, x, norm).backward()
        tensors = [*weights, *norm.buffers()]
        results.append([(each.detach(), each.grad, each._version) for each in tensors])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_what_comes_before_an_error_is_there() -> None:
    def step(weight: Tensor, x: Tensor, index: Tensor) -> Tensor:
        with torch.no_grad():
            weight.add_(1)
        return (weight * x)[index]

    for index in (torch.tensor([1]), torch.tensor([7])):
        outcomes = []
        for fn in (step, dynajit.compile(step)):
            weight = torch.zeros(3, requires_grad=True)
            try:
                outcomes.append((fn(weight, torch.ones(3), index).detach(), weight.detach()))
            except IndexError as error:
                outcomes.append((str(error), weight.detach()))
        assert str(outcomes[0]) == str(outcomes[1])
