"""Kernels that store over what they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.loopir.lower_graph import forget, lower
from dynajit.loopir.nodes import Tensor
from dynajit.schedule.fuse import fuse, values_in
from dynajit.schedule.in_place import taken_over


def _taken(fn: Callable[..., Any], *args: torch.Tensor) -> int:
    """How many tensors are stored over others."""
    try:
        program = lower(make_fx(fn, tracing_mode="fake")(*args), "test")
        schedule = fuse(program)
        kept: set[Tensor] = {value.root for value in values_in(program.outputs)}
        kept.update(program.sources[name] for name in program.inputs)
        return len(taken_over(schedule.units, schedule.reads, schedule.stored_in, kept))
    finally:
        forget()


x, w, b = torch.randn(6, 8), torch.randn(8, 16), torch.randn(16)


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        pytest.param(lambda x, w, b: (torch.relu(x @ w + b),), 1, id="an activation of a product"),
        pytest.param(lambda x, w, b: (F.gelu(x.view(2, 3, 8) @ w) @ w.t(),), 1, id="seen through a view"),
        pytest.param(lambda x, w, b: (F.gelu(x.view(2, 3, 8) @ w),), 0, id="returned in another shape"),
        pytest.param(lambda x, w, b: ((x @ w).t().contiguous() + 1,), 0, id="in another order"),
        pytest.param(lambda x, w, b: ((x @ w).relu(), x @ w + 1), 2, id="each its own product"),
        pytest.param(lambda x, w, b: (lambda y: (y, y.relu()))(x @ w), 0, id="the product is returned"),
        pytest.param(lambda x, w, b: (lambda y: (y.relu(), y @ y.t()))(x @ w), 0, id="a later call reads it"),
        pytest.param(lambda x, w, b: (x.relu(),), 0, id="an input"),
        pytest.param(lambda x, w, b: (torch.roll(x @ w, 1, 1) + 1,), 0, id="read elsewhere"),
        pytest.param(lambda x, w, b: ((x @ w).softmax(1),), 0, id="rows"),
    ],
)
def test_what_is_stored_over(fn: Callable[..., Any], count: int) -> None:
    assert _taken(fn, x, w, b) == count


def test_results_stay_what_they_are() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.relu(x @ w + b)
        second = F.gelu((first @ w.t()).view(2, 3, 8)) * 2
        third = (second.view(6, 8) @ w).t() + 1
        return first, second, third, (x @ w + torch.roll(x @ w, 1, 0)).sin()

    compiled = dynajit.compile(fn)
    for _ in range(3):
        expected, made = fn(x, w, b), compiled(x, w, b)
        for ours, theirs in zip(made, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride() and ours._base is None
