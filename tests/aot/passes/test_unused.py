"""Operations that raise for some values raise where nothing needs what they give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same


def _read(x: Tensor, at: Tensor) -> Tensor:
    x[at]
    return x + 1


def _written(x: Tensor, at: Tensor) -> Tensor:
    made = torch.zeros(3)
    made[at] = 1.0
    return x + 1


def _divided(x: Tensor, at: Tensor) -> Tensor:
    at // (at - 5)
    return x + 1


def _used_by_what_nothing_needs(x: Tensor, at: Tensor) -> Tensor:
    (x[at].sum() * 2).sin()
    return x + 1


@pytest.mark.parametrize("f", [_read, _written, _divided, _used_by_what_nothing_needs])
@pytest.mark.parametrize("grad", [False, True])
def test_unused_operation_raises(f: Callable[[Tensor, Tensor], Tensor], grad: bool) -> None:
    def raised(f: Callable[[Tensor, Tensor], Tensor], at: int) -> str:
        with pytest.raises((IndexError, RuntimeError)) as caught:
            f(torch.ones(3, requires_grad=grad), torch.tensor([at]))
        return f"{caught.type.__name__}: {caught.value}"

    compiled = dynajit.compile(f, backend="codegen")
    result = compiled(torch.ones(3, requires_grad=grad), torch.tensor([1]))
    assert result.tolist() == [2.0] * 3
    assert result.requires_grad is grad
    assert raised(compiled, 5) == raised(f, 5)


def test_graph_without_results_raises() -> None:
    def f(x: Tensor) -> None:
        x[[0, -1]]

    assert_same(f, torch.ones(3))
    for backend in ("eager", "codegen"):
        with pytest.raises(IndexError):
            dynajit.compile(f, backend=backend)(torch.ones(0))
