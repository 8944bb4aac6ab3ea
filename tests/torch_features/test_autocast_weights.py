"""Autocast keeps casts of weights: what writes the weights meanwhile does not change them."""

from __future__ import annotations

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
