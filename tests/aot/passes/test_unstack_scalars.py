"""Numbers that a graph stacks to take them apart again."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.aot.passes.unstack_scalars import unstack_scalars

aten = torch.ops.aten


def calls(function: Any, *args: torch.Tensor) -> list[str]:
    """The operators of the function's graph after the rewrite, whose results are compared."""
    gm = make_fx(function, tracing_mode="fake")(*args)
    expected = function(*args)
    made = unstack_scalars(gm)
    torch.testing.assert_close(made(*args), expected)
    return [str(node.target) for node in made.graph.nodes if node.op == "call_function"]


def test_items_are_what_was_stacked() -> None:
    def scaled(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        first, second = torch.stack([a * 2, b]).unbind()
        return [x * first, x + second]

    found = calls(scaled, torch.randn(4), torch.tensor(3.0), torch.tensor(5.0))
    assert found == ["aten.mul.Tensor", "aten.mul.Tensor", "aten.add.Tensor"]


def test_a_stack_that_is_read_otherwise_stays() -> None:
    def scaled(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        stacked = torch.stack([a, b])
        return [x * stacked.unbind()[1], stacked]

    assert "aten.stack.default" in calls(scaled, torch.randn(4), torch.tensor(3.0), torch.tensor(5.0))


def test_items_that_are_returned_are_views_of_it() -> None:
    def apart(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.stack([a, b]).unbind())

    assert "aten.unbind.int" in calls(apart, torch.tensor(3.0), torch.tensor(5.0))


def test_rows_have_strides_of_their_own() -> None:
    def rows(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [row + 1 for row in torch.stack([a, b]).unbind()]

    assert "aten.unbind.int" in calls(rows, torch.randn(3), torch.randn(3))
