"""Steps of torch's optimizers on parameters that are spread over two processes: eager's parameters and states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, counted
from test_sharded import local, shard_fully, shard_tensors
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer

import dynajit

STEPS = 5
FORMS = {"fully_shard": shard_fully, "parallelize_module": shard_tensors}

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD, momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "SGD, lists": ("SGD", {"momentum": 0.9, "foreach": True}),
    "Adam": ("Adam", {"weight_decay": 0.1}),
    "Adam, amsgrad": ("Adam", {"amsgrad": True}),
    "AdamW": ("AdamW", {}),
    "AdamW, lists": ("AdamW", {"foreach": True}),
    "AdamW, fused": ("AdamW", {"fused": True}),
    "AdamW, a tensor": ("AdamW", {"lr": torch.tensor(0.01), "foreach": False}),
    "Adagrad": ("Adagrad", {}),
    "Adadelta": ("Adadelta", {}),
    "Adamax": ("Adamax", {}),
    "ASGD": ("ASGD", {}),
    "NAdam": ("NAdam", {}),
    "RAdam": ("RAdam", {}),
    "RMSprop": ("RMSprop", {"momentum": 0.5, "centered": True}),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def stepped(rank: int, form: str, name: str, how: str) -> tuple[Any, tuple[int, int]]:
    """Losses, local parts of parameters and of what the optimizer keeps; breaks, and captures after the second step."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    FORMS[form](model)
    kind, options = OPTIMIZERS[name]
    optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 0.01, **options})

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    call = dynajit.compile(step) if how == "compiled" else step
    losses = []
    with counted() as counts:
        for index in range(STEPS):
            loss = model(torch.randn(4, 6, generator=torch.Generator().manual_seed(index))).square().mean()
            loss.backward()
            losses.append(loss.item())
            call()
            if index == 1:
                early = len(counts.seen)
    assert all(parameter.grad is None for parameter in model.parameters())
    kept = [[local(part) for part in optimizer.state[p].values() if part is not None] for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    results = losses, [local(p) for p in model.parameters()], kept, versions
    return results, (counts.totals()[1], len(counts.seen) - early)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step(two: Ranks, form: str, name: str) -> None:
    expected = two.run(stepped, form, name, "eager")
    actual = two.run(stepped, form, name, "compiled")
    for (one, _), (other, counts) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        if form == "_divided" or not torch.accelerator.is_available():  # torch's averages wait for one
            assert counts == (0, 0)


def _clipped(model: nn.Module, optimizer: Any, average: Any) -> Any:
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return norm


def _averaged(model: nn.Module, optimizer: Any, average: Any) -> None:
    optimizer.step()
    with torch.no_grad():
        for kept, parameter in zip(average, model.parameters(), strict=True):
            kept.lerp_(parameter, 0.1)


def _scaled(model: nn.Module, optimizer: Any, average: Any) -> None:
    """Gradients divided by hand, weights by rows of another layout."""
    for parameter in model.parameters():
        parameter.grad.div_(2)
    optimizer.step()
    with torch.no_grad():
        for kept, parameter in zip(average, model.parameters(), strict=True):
            kept.copy_(parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter)
            parameter.data.mul_(0.999)


def trained(rank: int, form: str, name: str, how: str) -> tuple[Any, int]:
    """Losses, what steps give, parts of parameters and averages, versions; breaks."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    FORMS[form](model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = [parameter.detach().clone() for parameter in model.parameters()]
    if name == "_scaled":
        average = [part.full_tensor() if hasattr(part, "full_tensor") else part for part in average]  # type: ignore
    call = dynajit.compile(globals()[name]) if how == "compiled" else globals()[name]
    seen = []
    with counted() as counts:
        for index in range(STEPS):
            loss = model(torch.randn(4, 6, generator=torch.Generator().manual_seed(index))).square().mean()
            loss.backward()
            given = call(model, optimizer, average)
            seen.append([loss.item(), None if given is None else local(given)])
            optimizer.zero_grad()
    parts = [[local(part) for part in of] for of in (model.parameters(), average)]
    return (seen, parts, [part._version for part in (*model.parameters(), *average)]), counts.totals()[1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["_clipped", "_averaged", "_scaled"])
def test_what_stands_around_a_step(two: Ranks, form: str, name: str) -> None:
    expected = two.run(trained, form, name, "eager")
    actual = two.run(trained, form, name, "compiled")
    for (one, _), (other, breaks) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        assert breaks == 0


def _divided(model: nn.Module, inner: str, views: bool) -> Any:
    """Each rank steps a part of the parameters, and sends it to the others."""
    kind = getattr(torch.optim, inner)
    return ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=kind, parameters_as_bucket_view=views, lr=0.01
    ).step


def _now_and_then(model: nn.Module, inner: str, views: bool) -> Any:
    """Each rank steps by itself; every second time the parameters are averaged over the ranks."""
    optimizer = getattr(torch.optim, inner)(model.parameters(), lr=0.01)
    averager = PeriodicModelAverager(period=2, warmup_steps=1)
    return PostLocalSGDOptimizer(optim=optimizer, averager=averager).step


def communicated(rank: int, form: str, inner: str, views: bool, how: str) -> tuple[Any, tuple[int, int]]:
    """Losses and parameters; breaks, and captures after the third step."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    step = globals()[form](model, inner, views)
    call = dynajit.compile(lambda: step()) if how == "compiled" else step
    losses = []
    with counted() as counts:
        for index in range(STEPS):
            generator = torch.Generator().manual_seed(2 * index + rank)
            loss = model(torch.randn(4, 6, generator=generator)).square().mean()
            model.zero_grad()
            loss.backward()
            if form == "_divided":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
            losses.append(loss.item())
            call()
            if index == 2:
                early = len(counts.seen)
    return (losses, [p.detach().clone() for p in model.parameters()]), (counts.totals()[1], len(counts.seen) - early)


@pytest.mark.parametrize(
    ("form", "inner", "views"),
    [
        *(("_divided", *each) for each in (("SGD", False), ("AdamW", False), ("SGD", True))),
        *(("_now_and_then", inner, False) for inner in ("SGD", "AdamW")),
    ],
)
def test_steps_that_communicate(two: Ranks, form: str, inner: str, views: bool) -> None:
    expected = two.run(communicated, form, inner, views, "eager")
    actual = two.run(communicated, form, inner, views, "compiled")
    for (one, _), (other, counts) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        if form == "_divided" or not torch.accelerator.is_available():  # torch's averages wait for one
            assert counts == (0, 0)
