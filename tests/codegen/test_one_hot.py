"""Sums of rows that have one element at most which is not zero are taken without a loop."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import check

aten = torch.ops.aten


def _gradient(x: torch.Tensor, target: torch.Tensor, grad: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    back = aten.nll_loss_backward(grad, x, target, None, 1, -100, total)
    return aten._log_softmax_backward_data(back, x, 1, torch.float32)


def test_gradient_of_cross_entropy() -> None:
    x = torch.randn(40, 50).log_softmax(1)
    target = torch.randint(50, (40,))
    target[3] = -100
    plan = check(_gradient, x, target, torch.tensor(2.0), torch.tensor(39.0))
    assert "reduction(+" not in plan.source


@pytest.mark.parametrize("classes", [1, 3, 17])
def test_sum_of_a_gathered_row(classes: int) -> None:
    """The place is not checked to be inside of this row: added up."""

    def f(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        own = torch.arange(classes)
        return torch.where(place[:, None] == own, x[:, None], 0.0).sum(1, keepdim=True)

    check(f, torch.randn(9), torch.tensor([0, 1, 2, 3, -1, 20, 0, 0, 1]))


def test_one_hot_rows() -> None:
    check(lambda x, t: (F.one_hot(t, 7).float() * x).sum(1, keepdim=True), torch.randn(5, 7), torch.arange(5))
