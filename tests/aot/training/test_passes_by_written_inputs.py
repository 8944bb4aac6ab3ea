"""Backward passes by tensors that a compiled graph wrote and computed on with: hooks, `retain_grad`, `grad` of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad

import dynajit

_Program = Callable[..., Any]
_Pass = Callable[[_Program, Tensor, Tensor], Any]


def _two_written(y: Tensor, w: Tensor) -> Tensor:
    y.sin_()
    z = y * w
    w.mul_(y)
    return (z * w).sum()


def _between(y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y.mul_(2)
    before = (y * w).sum()
    y.add_(w)
    return (y * y).sum(), before


_GRAPHS: dict[str, _Program] = {
    "once": lambda y, w: y.sin_() * w,
    "read as itself": lambda y, w: (y.sin_(), (y * w).sum())[1],
    "returned": lambda y, w: ((y.mul_(w) * 3).sum(), y),
    "twice": _between,
    "two": _two_written,
    "items": lambda y, w: (y.__setitem__(0, w[0]), (y * 3).sum())[1],
    "through a view": lambda y, w: (y[1:].mul_(w[0]), (y * 3).sum())[1],
    "a view from before": lambda y, w: (v := y[1:], y.mul_(2), (v * y[1:]).sum())[2],
    "relu": lambda y, w: torch.nn.functional.relu(y, inplace=True) @ w,
    "with dropout": lambda y, w: torch.nn.functional.dropout(torch.nn.functional.relu(y, inplace=True) * w, 0.5),
    "copied": lambda y, w: (y.add_(w), torch.zeros(4).copy_(y))[1],
    "nothing after": lambda y, w: (w.sum() * 2, y.mul_(3))[0],
}


def _loss(found: Any) -> Tensor:
    return found[0].sum() if isinstance(found, tuple) else found.sum()


def _retained(run: _Program, y: Tensor, w: Tensor) -> Any:
    y.retain_grad()
    w.retain_grad()
    _loss(run(y, w)).backward()  # type: ignore[no-untyped-call]
    return y.grad, w.grad


def _retained_after(run: _Program, y: Tensor, w: Tensor) -> Any:
    loss = _loss(run(y, w))
    y.retain_grad()
    w.retain_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return y.grad, w.grad


def _hooked_before(run: _Program, y: Tensor, w: Tensor) -> Any:
    found: list[Tensor] = []
    y.register_hook(found.append)  # type: ignore[no-untyped-call]
    _loss(run(y, w)).backward()  # type: ignore[no-untyped-call]
    return found


def _hooked_after(run: _Program, y: Tensor, w: Tensor) -> Any:
    found: list[Tensor] = []
    loss = _loss(run(y, w))

    def doubled(gradient: Tensor) -> Tensor:
        found.append(gradient)
        return gradient * 2

    y.register_hook(doubled)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    return found


def _asked(run: _Program, y: Tensor, w: Tensor) -> Any:
    return grad(_loss(run(y, w)), (y, w), allow_unused=True)


def _asked_twice(run: _Program, y: Tensor, w: Tensor) -> Any:
    (first,) = grad(_loss(run(y, w)), y, create_graph=True, allow_unused=True)
    return first, grad(first.sum(), w, allow_unused=True) if first is not None and first.requires_grad else None


_PASSES: dict[str, _Pass] = {
    "retain_grad": _retained,
    "retain_grad after": _retained_after,
    "hook": _hooked_before,
    "hook after": _hooked_after,
    "grad": _asked,
    "create_graph": _asked_twice,
}


@pytest.mark.parametrize("has_gradients", [True, False])
@pytest.mark.parametrize("name", _GRAPHS)
def test_as_in_eager(name: str, has_gradients: bool) -> None:
    """Of a tensor with a history, or one that gets it by the write."""
    graph = _GRAPHS[name]
    compiled = dynajit.compile(graph)
    for way, passing in _PASSES.items():
        expected, found = (_outcome(passing, run, has_gradients) for run in (graph, compiled))
        if isinstance(expected, str):
            assert (way, found) == (way, expected)
        else:
            torch.testing.assert_close(found, expected, msg=partial("{}: {}".format, way))


def _outcome(passing: _Pass, run: _Program, has_gradients: bool) -> Any:
    torch.manual_seed(0)
    x = torch.linspace(0.5, 2, 4, requires_grad=True)
    v = torch.linspace(-1, 1, 4, requires_grad=True)
    y = x * 2 if has_gradients else torch.linspace(1, 2, 4)
    try:
        found = passing(run, y, v * 1)
    except RuntimeError as error:
        return str(error)
    return found, x.grad, v.grad, y.detach()
