"""Gradients of one row of a tensor whose sizes are known when the graph runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.loopir.size import UNBOUNDED, Size, SizeSymbol


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


def _written(x: torch.Tensor, place: Any) -> torch.Tensor:
    y = x.clone()
    y[place] = 9.0
    return y


@pytest.mark.parametrize(
    "function",
    [
        *(lambda x, n: _written(x, n), lambda x, n: _written(x, (slice(None), n))),
        *(lambda x, n: _written(x, slice(n, None)), lambda x, n: _written(x, slice(None, n))),
        *(lambda x, n: x[n] * 2, lambda x, n: x[n:] + 1, lambda x, n: x[-n] + x[n - 1]),
        *(lambda x, n: x.roll(n, 0) + 1, lambda x, n: torch.nn.functional.pad(x, (n, 3)) + 1),
        *(lambda x, n: torch.arange(n, 5) // 2, lambda x, n: x.flatten()[n // 2] + n % 3),
        *(lambda x, n: x.tril(n) * n, lambda x, n: torch.where(torch.arange(x.shape[1]) > n, x, n)),
    ],
)
def test_numbers_of_the_programs_of_either_sign(function: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """Nothing but a guard says that a number isn't negative."""
    compiled = dynajit.compile(function)
    for size, n in ((5, 2), (6, 1), (7, -1), (8, -2), (6, 0)):
        x, mine = (torch.arange(size * size * 1.0).reshape(size, size).requires_grad_() for _ in range(2))
        wanted, found = function(x, n), compiled(mine, n)
        torch.testing.assert_close(found, wanted)
        if wanted.requires_grad:
            wanted.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(mine.grad, x.grad)


def test_what_is_known_of_numbers_without_bounds() -> None:
    number, negative = (Size({(SizeSymbol("s1", -UNBOUNDED, -1, high),): 1}) for high in (None, -1))
    assert not any((number <= 0, number >= 0, -number >= 0, -number <= 0, number * number >= 0))
    assert negative < 0 and -negative > 0 and not negative > -5 and not -negative * number >= 0
