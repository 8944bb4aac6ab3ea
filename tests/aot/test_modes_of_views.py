"""Views know the grad mode, and the operation, that made them: by that autograd refuses writes with a history."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit

VIEWS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "item": lambda y: (y[0],),
    "transposed": lambda y: (y.t(),),
    "one of several": lambda y: (y.unbind(0)[1],),
    "two of several": lambda y: y.chunk(2)[:2],
    "item of one of several": lambda y: (y.unbind(0)[1][1:],),
    "item of detached": lambda y: (y.detach()[0],),
    "expanded": lambda y: (y[:1].expand(4, 4),),
}
RESULTS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "alone": lambda views, y, w: views,
    "with its base": lambda views, y, w: (*views, y),
    "with what has a history": lambda views, y, w: (*views, views[0] * 2 + w.sum()),
}


def written(result: Tensor, w: Tensor) -> str:
    """What comes of a write with a history."""
    try:
        result.mul_(w.sum())
    except RuntimeError as error:
        return str(error)
    return f"{result.requires_grad}"


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("view", VIEWS)
def test_writes_are_refused_as_in_eager(view: str, result: str, requires_grad: bool) -> None:
    def program(x: Tensor, w: Tensor, before: bool, at_view: bool) -> tuple[Tensor, ...]:
        with torch.set_grad_enabled(before):
            y = x * 2
        with torch.set_grad_enabled(at_view):
            views = VIEWS[view](y)
        return RESULTS[result](views, y, w)

    def seen(function: Callable[..., tuple[Tensor, ...]], at_call: bool, *modes: bool) -> list[Any]:
        x, w = torch.ones(4, 4, requires_grad=requires_grad), torch.ones(4, requires_grad=True)
        found: list[Any] = []
        for at in range(3):
            with torch.set_grad_enabled(at_call):
                results = function(x, w, *modes)
            if at < len(results):
                found += [written(results[at], w), [each.requires_grad for each in results]]
        return found

    wrong = []
    for modes in itertools.product((True, False), repeat=3):
        dynajit.reset()
        if seen(dynajit.compile(program), *modes) != seen(program, *modes):
            wrong.append(modes)
    assert not wrong, "modes at the call, of what is viewed, of the view"
