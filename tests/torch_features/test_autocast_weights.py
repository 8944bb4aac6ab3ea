"""Autocast keeps casts of weights: what writes the weights meanwhile does not change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.testing import compare


def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3) / 10


def direct(model: nn.Linear) -> None:
    model.weight.add_(1.0)


def through_data(model: nn.Linear) -> None:
    model.weight.data[0] = 2.0


def in_a_list(model: nn.Linear) -> None:
    torch._foreach_mul_([model.weight, model.bias], 3.0)


def augmented(model: nn.Linear) -> None:
    weight = model.weight
    weight *= 2.0


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("write", [direct, through_data, in_a_list, augmented], ids=lambda write: write.__name__)
def test_written_inside(write: Any, backend: str) -> None:
    def f(model: nn.Linear, value: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = model(value)
            with torch.no_grad():
                write(model)
            second = model(value)
        return first, second, model(value)

    outcomes = []
    for run in (f, dynajit.compile(f, backend=backend)):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        outcomes.append([[part.detach() for part in run(model, x())] for _ in range(2)])
    compare(outcomes[1], outcomes[0], exact=False, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_written_between_contexts(backend: str) -> None:
    def f(model: nn.Linear, value: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(value).float().sum()
        with torch.no_grad():
            model.weight.add_(1.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss, model(value).float()

    outcomes = []
    for run in (f, dynajit.compile(f, backend=backend)):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        outcomes.append([[part.detach() for part in run(model, x())] for _ in range(3)])
    compare(outcomes[1], outcomes[0], exact=False, rtol=2e-2, atol=1e-2)


def by_optimizer(model: nn.Linear) -> None:
    torch.optim.SGD(model.parameters(), 0.5).step()


def by_hand(model: nn.Linear) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.sub_(weight.grad, alpha=0.5)


def not_at_all(model: nn.Linear) -> None:
    pass


Loss = Callable[[nn.Linear, torch.Tensor], torch.Tensor]


def steps(loss_of: Loss, model: nn.Linear, write: Any, **options: Any) -> list[Any]:
    """Two steps of training in one region, a third in another."""
    found: list[Any] = []
    for count in (2, 1):
        with torch.autocast("cpu", dtype=torch.bfloat16, **options):
            for _ in range(count):
                loss = loss_of(model, x())
                loss.backward()
                write(model)
                found += [loss.item(), loss_of(model, x()).item()]
    return found


def evaluated_first(loss_of: Loss, model: nn.Linear, write: Any, **options: Any) -> list[Any]:
    """Weights that autocast has cast without gradients get none."""
    with torch.autocast("cpu", dtype=torch.bfloat16, **options):
        with torch.no_grad():
            before = loss_of(model, x()).item()
        loss = loss_of(model, x())
        return [before, loss.item(), loss.requires_grad, nested(loss_of, model, write)]


def nested(loss_of: Loss, model: nn.Linear, write: Any, **options: Any) -> list[Any]:
    """The outermost region counts."""
    found: list[Any] = []
    with torch.autocast("cpu", dtype=torch.bfloat16, **options):
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, x())
            if loss.requires_grad:
                loss.backward()
                write(model)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                found += [loss.item(), loss_of(model, x()).item()]
    return found


def with_eager_code(loss_of: Loss, model: nn.Linear, write: Any, **options: Any) -> list[Any]:
    """What is not compiled goes on with what it would have, and the other way round."""
    found: list[Any] = []
    with torch.autocast("cpu", dtype=torch.bfloat16, **options):
        for _ in range(2):
            loss = loss_of(model, x())
            loss.backward()
            write(model)
            found += [loss.item(), model(x()).float().sum().item()]
    return found


def loss_of(model: nn.Linear, value: torch.Tensor) -> torch.Tensor:
    return model(value).float().square().sum()


def loss_after_a_break(model: nn.Linear, value: torch.Tensor) -> torch.Tensor:
    result = model(value)
    dynajit.graph_break()
    return result.float().square().sum()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("write", [by_optimizer, by_hand, not_at_all])
@pytest.mark.parametrize("way", [steps, evaluated_first, nested, with_eager_code])
def test_written_between_calls_in_one_region(way: Any, write: Any, enabled: bool) -> None:
    def outcomes(loss: Loss, run: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        return [run(loss, model, write, cache_enabled=enabled), *(weight.grad for weight in model.parameters())]

    for loss in (loss_of, loss_after_a_break):
        wanted = outcomes(loss, way)
        for compiled in ((dynajit.compile(loss), way), (loss, dynajit.compile(way))):
            for _ in range(2):
                compare(outcomes(*compiled), wanted, exact=False, rtol=2e-2, atol=1e-2)
