"""Results of many calls that are added up: a few at a time, so that they are not all in memory at once."""

from __future__ import annotations

import pytest
import torch
from memory_in_use import most_in_use
from torch import Tensor

import dynajit
from dynajit.schedule import fuse
from dynajit.testing import assert_same

STEPS = 12


def products(x: Tensor, w: Tensor) -> Tensor:
    total = x[0] @ w
    for step in range(1, STEPS):
        total = total + x[step] @ w
    return total.tanh()


def weight_gradient(x: Tensor, w: Tensor) -> Tensor:
    w = w.detach().requires_grad_()
    h = x[0]
    for step in range(STEPS):
        h = torch.tanh(h @ w + x[step])
    return torch.autograd.grad(h.sum(), w)[0]


@pytest.mark.parametrize("function", [products, weight_gradient])
def test_a_few_at_a_time(function: object) -> None:
    x, w = torch.randn(STEPS, 64, 64), torch.randn(64, 64) / 8
    assert_same(function, x, w, backend="codegen", rtol=1e-4, atol=1e-4)  # type: ignore[arg-type]
    compiled = dynajit.compile(function)  # type: ignore[arg-type]
    compiled(x, w)
    compiled(x, w)
    saved = STEPS if function is weight_gradient else 0
    assert most_in_use(compiled, x, w) < (saved + fuse.SUMMED_AT_ONCE + 4) * w.nbytes
