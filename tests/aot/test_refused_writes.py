"""Writes that autograd has rules of its own for, and results written over what they are computed from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch

import dynajit


def _rows(x: torch.Tensor) -> torch.Tensor:
    for row in x.unbind():
        with contextlib.suppress(RuntimeError):
            row /= 2
    return x


def _half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2)
    first.t().mul_(2)
    return first + second


def _over(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), contextlib.suppress(RuntimeError):
        torch.add(x[::2][:1], 1, out=x)
    return x


def _resized(x: torch.Tensor) -> torch.Tensor:
    part = x.detach()[-1:]
    torch.mul(x.detach(), 2, out=part)
    return part


def _seen(f: Callable[[torch.Tensor], torch.Tensor], requires_grad: bool) -> tuple[object, ...]:
    x = torch.arange(8.0).view(4, 2).requires_grad_(requires_grad)
    try:
        result: object = f(x).tolist()
    except RuntimeError as error:
        result = str(error)
    return result, x.tolist()


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("f", [_rows, _half, _over, _resized])
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_write(f: Callable[[torch.Tensor], torch.Tensor], backend: str, requires_grad: bool) -> None:
    dynajit.reset()
    assert _seen(dynajit.compile(f, backend=backend), requires_grad) == _seen(f, requires_grad)
