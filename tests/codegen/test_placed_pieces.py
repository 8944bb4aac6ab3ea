"""Pieces are computed where they lie in what they are put together to, and each of their elements once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check

from dynajit.testing import assert_same

A, B, S = (torch.linspace(-3, 3, 40 * n).reshape(40, n).roll(7, 0) for n in (32, 48, 1))
TABLE, ROWS = torch.randn(50, 32), torch.randint(-50, 50, (40,))
IMAGE = torch.randn(2, 8, 20, 20)
LAST = IMAGE.to(memory_format=torch.channels_last)

ONE_KERNEL: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "columns": (lambda a, b: torch.cat([F.gelu(a), b.sin()], 1), (A, B)),
    "rows": (lambda a, b: torch.cat([F.gelu(a), a.sin(), b[:, 16:].cos()], 0), (A, B)),
    "stack": (lambda a: torch.stack([a.sin(), F.gelu(a)]), (A,)),
    "gathered rows": (lambda t, i, a: torch.cat([t[i], a.exp()], 1), (TABLE, ROWS, A)),
    "gathered twice": (lambda t, i: torch.cat([t[i], t[i.flip(0)]], 1), (TABLE, ROWS)),
    "channels": (lambda x: torch.cat([F.silu(x), x.sin()], 1), (IMAGE,)),
    "channels last": (lambda x: torch.cat([F.silu(x), x.sin(), -x], 1), (LAST,)),
    "padded": (lambda x: F.pad(F.silu(x), (3, 0)), (IMAGE,)),
    "padded and cut": (lambda x: F.pad(F.silu(x), (-2, 5)), (IMAGE,)),
    "bfloat16": (lambda a, b: torch.cat([F.gelu(a), b.sin()], 1), (A.bfloat16(), B.bfloat16())),
    "other dtypes": (lambda a, b: torch.cat([((a.sin() > 0).int() * 3 - 1), (b.sin() > 0).int()], 1), (A, B)),
}

SEVERAL: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "rows that are the same": (lambda a, b, s: torch.cat([a * s.exp(), s.sigmoid().expand(-1, 20)], 1), (A, B, S)),
    "read across": (lambda a, b: torch.cat([F.gelu(a), b.sin().t()], 1), (A, torch.randn(9, 40))),
    "short": (lambda a: torch.cat([F.gelu(a[:, :5]), a[:, 5:9].sin()], 1), (A,)),
    "read twice": (lambda a: torch.cat([y := F.gelu(a), y.flip(1)], 1), (A,)),
    "repeated": (lambda a: F.pad(F.gelu(a), (1, 1)).repeat(3, 1), (A,)),
    "two sides": (lambda x: F.pad(F.silu(x), (1, 1, 1, 1)), (IMAGE,)),
    "of a softmax": (lambda a, b: torch.cat([a.softmax(1), b.softmax(1).sqrt()], 1), (A, B)),
    "of a norm": (lambda a, b: torch.cat([F.layer_norm(a, (32,)).tanh(), b], 1), (A, B)),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    function, args = ONE_KERNEL[name]
    check(function, *args, kernels=1, rtol=1e-2 if name == "bfloat16" else 1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEVERAL)
def test_right_in_any_case(name: str) -> None:
    function, args = SEVERAL[name]
    check(function, *args, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted({*ONE_KERNEL, *SEVERAL} - {"other dtypes"}))
def test_gradients(name: str) -> None:
    function, args = {**ONE_KERNEL, **SEVERAL}[name]
    tolerance = 2e-2 if name == "bfloat16" else 1e-4

    def trained(*args: torch.Tensor) -> Any:
        leaves = [each.detach().requires_grad_() if each.is_floating_point() else each for each in args]
        result = function(*leaves)
        return result, torch.autograd.grad(result.float().sin().sum(), [each for each in leaves if each.requires_grad])

    assert_same(trained, *args, backend="codegen", rtol=tolerance, atol=tolerance)


def test_a_row_that_there_is_not() -> None:
    """Each piece of the loop finds it."""
    for wrong in (ROWS + 80, ROWS - 80):
        assert_same(lambda t, i: torch.cat([t[i], t[i.clamp(-50, 49)].sin()], 1), TABLE, wrong, backend="codegen")
        assert_same(lambda t, i: torch.cat([t[i.clamp(-50, 49)].sin(), t[i]], 0), TABLE, wrong, backend="codegen")
