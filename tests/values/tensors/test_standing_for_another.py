"""`detach_` and `set_` of tensors that the function made: in the graph, with eager's aliases and histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


def detached(x: Tensor) -> Any:
    y = (x * 2).detach_()
    return y + x, y.requires_grad, y.is_leaf, y.grad_fn


def detached_behind_a_use(x: Tensor) -> Any:
    y = x.sin()
    z = y * 3
    same = y.detach_()
    y.add_(1)
    return z + y, same is y, y


def detached_without_gradients(x: Tensor) -> Any:
    y = x.detach() * 2
    return y.detach_() + 1, y


def detached_in_a_loop(x: Tensor) -> Any:
    state = torch.zeros(4)
    total = x * 0
    for _ in range(3):
        state = (state + x).tanh()
        total = total + state
        state.detach_()
    return total, state


def detached_input(x: Tensor) -> Any:
    return (x * 2).sum(), x.clone().requires_grad_().detach_().requires_grad


def detached_view(x: Tensor) -> Any:
    y = x * 2
    try:
        y.view(2, 2).detach_()
    except RuntimeError as error:
        return str(error), y


def set_to(x: Tensor) -> Any:
    y = torch.empty(0)
    z = y.set_(x.detach())
    z.mul_(2)
    return y.shape, y is z, x * 1


def set_to_a_view(x: Tensor) -> Any:
    w = x.detach() * 1
    y = torch.zeros(2)
    before = y.view(-1)
    y.set_(w[::2])
    y += 5
    return w, y, before, y.stride()


def set_and_given(x: Tensor) -> Any:
    w = x.detach() * 1
    return torch.empty(0).set_(w), w


def set_to_another_kind(x: Tensor) -> Any:
    try:
        torch.empty(0, dtype=torch.int64).set_(x.detach())
    except RuntimeError:
        return x * 2


def set_to_a_storage(x: Tensor) -> Any:
    return torch.empty(0).set_(x.detach().untyped_storage(), 1, (2,), (1,)) * 2


def parameter_detached(x: Tensor) -> Any:
    p = torch.nn.Parameter(x.detach() * 2)
    same = p.detach_()
    return p, same is p, p.requires_grad, type(p)


def parameter_set_to(x: Tensor) -> Any:
    p = torch.nn.Parameter(torch.empty(0), requires_grad=False)
    p.set_(x.detach() * 2)
    return p, type(p), x * 1


WHOLE = [detached, detached_behind_a_use, detached_without_gradients, detached_in_a_loop]
WHOLE += [set_to, set_to_a_view, set_and_given, parameter_detached, parameter_set_to]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", WHOLE)
def test_in_one_graph(fn: Callable[[Tensor], Any], backend: str) -> None:
    assert_same(fn, torch.arange(4.0, requires_grad=True), repeat=3, graphs=1, breaks=0, backend=backend)


@pytest.mark.parametrize("fn", [detached_input, detached_view, set_to_another_kind, set_to_a_storage])
def test_same_as_eager(fn: Callable[[Tensor], Any]) -> None:
    assert_same(fn, torch.arange(4.0, requires_grad=True), repeat=3)
