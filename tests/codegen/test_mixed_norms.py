"""Norms of low precision with weights of float32: no further from the result in float64 than eager's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import dynajit

NORMS = {
    "group norm": lambda shape: nn.GroupNorm(2, shape[1]),
    "group norm of one group": lambda shape: nn.GroupNorm(1, shape[1]),
    "layer norm": lambda shape: nn.LayerNorm(shape[-1]),
    "layer norm of three dimensions": lambda shape: nn.LayerNorm(shape[1:]),
    "batch norm": lambda shape: nn.BatchNorm2d(shape[1]),
    "instance norm": lambda shape: nn.InstanceNorm2d(shape[1], affine=True),
}


def results(norm: nn.Module, fn: Any, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """What it gives, and the gradients of its input and weights."""
    x = x.clone().requires_grad_()
    norm.zero_grad()
    y = fn(x)
    y.backward(grad.to(y.dtype))
    return [y, *(leaf.grad.clone() for leaf in (x, *norm.parameters()) if leaf.grad is not None)]


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_no_digits_are_lost(name: str, dtype: torch.dtype, channels_last: bool) -> None:
    torch.manual_seed(0)
    shape = (3, 8, 6, 5)
    norm = NORMS[name](shape)
    for weight in norm.parameters():
        nn.init.uniform_(weight)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, grad = torch.randn(shape).to(dtype).contiguous(memory_format=layout), torch.randn(shape).to(dtype)
    exact = copy.deepcopy(norm).double()
    wanted = results(exact, exact, x.double(), grad.double())
    eager = results(norm, norm, x, grad)
    found = results(norm, dynajit.compile(norm), x, grad)
    for ours, theirs, right in zip(found, eager, wanted, strict=True):
        assert ours.dtype is theirs.dtype
        off, allowed = ((side.double() - right).abs().max() for side in (ours, theirs))
        assert off <= 2 * allowed + 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_statistics_have_the_dtype_that_eager_gives_them(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.native_layer_norm(x, (4,), w, None, 1e-5)

    x, w = torch.randn(2, 4).to(dtype), torch.randn(4)
    assert [one.dtype for one in dynajit.compile(f)(x, w)] == [one.dtype for one in f(x, w)]
