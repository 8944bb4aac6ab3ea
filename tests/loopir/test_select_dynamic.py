"""Gradients of one row of a tensor whose sizes are known when the graph runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynajit


@pytest.mark.parametrize(
    "take", [lambda x: x[1], lambda x: x[:, 1], lambda x: x[-1], lambda x: x[:, -2], lambda x: x[1:], lambda x: x[-2:]]
)
def test_gradient_of_a_part(take: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (take(x) * 2).std(-1)

    compiled = dynajit.compile(f, dynamic=True)
    for size in (4, 3, 5):
        x = torch.randn(size, size + 1, requires_grad=True)
        (wanted,) = torch.autograd.grad(f(x).sum(), x)
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(found, wanted)


def test_row_written_into_a_tensor() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.select_scatter(x * 2, y, 0, 1) + torch.select_scatter(x, y, 0, -1)

    compiled = dynajit.compile(f, dynamic=True)
    for size in (4, 3, 5):
        x, y = torch.randn(size, 2), torch.randn(2)
        torch.testing.assert_close(compiled(x, y), f(x, y))
