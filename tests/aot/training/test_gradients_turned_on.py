"""Graphs that begin with gradients off, since a break stands inside of `no_grad`, and turn them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

Tensor = torch.Tensor


def scaled(y: Tensor) -> Tensor:
    return y.mul_(2)


def scaled_and_read(y: Tensor) -> Tensor:
    y.mul_(2)
    return y * 3


def a_part(y: Tensor) -> Tensor:
    y[0] = 0.5
    return y * y


def through_detach(y: Tensor) -> Tensor:
    y.detach().mul_(0.5)
    return y * 2


def through_a_view(y: Tensor) -> Tensor:
    y.view(-1)[1:].exp_()
    return y


def before_and_after(y: Tensor) -> Tensor:
    with torch.no_grad():
        y.add_(1)
    return y.sin_() * 2


def at_random(y: Tensor) -> Tensor:
    y += torch.rand(3)
    return y * y


WRITES = [scaled, scaled_and_read, a_part, through_detach, through_a_view, before_and_after, at_random]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_behind_a_break_in_no_grad_is_differentiated(write: Callable[[Tensor], Tensor], backend: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Any, bool]:
        y = x * 1
        with torch.no_grad():
            total = y.sum().item()
        result = write(y)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        return gradient, total, torch.is_grad_enabled()

    assert_same(program, torch.tensor([0.5, 2.0, 1.0], requires_grad=True), backend=backend)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("write", WRITES)
def test_gradients_are_on_in_a_part_of_a_call_without(write: Callable[[Tensor], Tensor], backend: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor, bool]:
        y = x * 3
        with torch.enable_grad():
            held = x * 1
            result = write(held)
        return y, result, result.requires_grad

    x = torch.tensor([0.5, 2.0, 1.0], requires_grad=True)
    with torch.no_grad():
        assert_same(program, x, backend=backend)
