"""Sizes of varying symbols that are 1 for the call at hand, as the trace relied on: they are broadcast."""

from __future__ import annotations

import torch

import dynajit


def _rows(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    return x + y[: n // 2].sin()


def _product(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
    return x + torch.bmm(y[0].expand(2, n % 3 + 1, 3), y.expand(2, 3, 3))


def test_size_that_is_one() -> None:
    for function in (_rows, _product):
        compiled = dynajit.compile(function)
        for n in (6, 8, 3, 2, 9):
            x, y = torch.randn(3, 3), torch.randn(3, 3)
            torch.testing.assert_close(compiled(x, y, n), function(x, y, n))
