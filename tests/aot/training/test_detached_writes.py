"""Detached tensors that are written with a history: they have it, and what shares their memory does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda y: y.detach(),
    "view of detach": lambda y: y.detach()[:3],
    "detach of view": lambda y: y[:3].detach(),
    "data": lambda y: y.data,
}
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "with a history": lambda t, x: t.add_(x),
    "without": lambda t, x: t.mul_(2),
    "of an item": lambda t, x: t.__setitem__(0, x[0]),
}
RESULTS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "what was written": lambda t, y, x: (t,),
    "what it was detached from": lambda t, y, x: (y * 2,),
    "both": lambda t, y, x: (t, y),
    "both read": lambda t, y, x: (t * 3, y * x),
}


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("way", WAYS)
def test_each_has_its_own_history(way: str, write: str, result: str) -> None:
    def program(x: Tensor, y: Tensor, made: bool) -> tuple[Tensor, ...]:
        if made:
            y = y * 1
        t = WAYS[way](y)
        WRITES[write](t, x)
        return RESULTS[result](t, y, x)

    def seen(function: Callable[..., tuple[Tensor, ...]], requires_grad: bool, made: bool) -> Any:
        x, y = torch.ones(3, requires_grad=True), torch.arange(3.0).requires_grad_(requires_grad)
        told: list[Any] = []
        for leaf in filter(lambda each: each.requires_grad, (x, y)):
            leaf.register_hook(lambda grad: told.append(None if grad is None else grad.tolist()))
        results = function(x, y, made)
        found: list[Any] = [(each.tolist(), each.requires_grad, each.is_leaf) for each in results]
        ends = [each.sum() for each in results if each.requires_grad]
        if ends:
            torch.autograd.backward(ends)
        return [*found, sorted(told, key=str), x.grad, y.tolist(), y.grad if y.is_leaf else None]

    compiled = dynajit.compile(program)
    for requires_grad in (True, False):
        for made in (True, False):
            assert str(seen(compiled, requires_grad, made)) == str(seen(program, requires_grad, made))
