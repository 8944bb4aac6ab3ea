"""Kernels that only read the same tensors are one if their loops find their places without divisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.loopir.lower_graph import lower
from dynajit.schedule.fuse import Group, fuse
from dynajit.testing import assert_same

IMAGE = torch.linspace(0, 90, 3 * 40 * 40).sin().view(3, 40, 40)


def down(x: Tensor) -> Tensor:
    return (x[:, 1:] - x[:, :-1]).abs()


def right(x: Tensor) -> Tensor:
    return (x[:, :, 1:] - x[:, :, :-1]).abs()


Fn = Callable[[Tensor], tuple[Tensor, ...]]
APART: dict[str, Fn] = {
    "stored": lambda x: (down(x), right(x)),
    "summed": lambda x: (down(x).sum(), right(x).sum()),
    "each row": lambda x: (down(x).amax((1, 2)), right(x).amax((1, 2))),
}
TOGETHER: dict[str, Fn] = {
    "equal parts": lambda x: (down(x).sum(), (x[:, 1:] * x[:, :-1]).sum()),
    "all of it, in other shapes": lambda x: (x.exp().sum(), x.view(80, 60).square().sum()),
    "one as it lies": lambda x: (x.view(30, 160).exp().amax((0, 1)), x.mul(torch.arange(40)).sum()),
}


def kernels(fn: Fn, x: Tensor) -> int:
    return sum(isinstance(unit, Group) for unit in fuse(lower(make_fx(fn, tracing_mode="fake")(x), "test")).units)


@pytest.mark.parametrize("name", APART)
def test_differences_of_both_directions_are_apart(name: str) -> None:
    assert kernels(APART[name], IMAGE) == 2
    assert_same(APART[name], IMAGE, graphs=1, breaks=0)


@pytest.mark.parametrize("name", TOGETHER)
def test_one_kernel(name: str) -> None:
    assert kernels(TOGETHER[name], IMAGE) == 1
    assert_same(TOGETHER[name], IMAGE, graphs=1, breaks=0)


def test_a_total_variation_and_its_gradient() -> None:
    def fn(x: Tensor) -> tuple[Any, ...]:
        loss = down(x).square().mean() + right(x).mean()
        return loss, torch.autograd.grad(loss, x)[0]

    assert_same(fn, IMAGE.double().requires_grad_(), graphs=1, breaks=0)
