"""Results that are views of inputs are taken before the graph: passes come by them, and not to those detached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.report.counters import counters
from dynajit.testing import assert_same, compare


def detached(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (x * x).sum(), y.detach()


def read_inside(x: torch.Tensor, y: torch.Tensor) -> Any:
    turned = x.t()
    return (turned * 2).sin(), turned, y * 3


def of_a_view(x: torch.Tensor, y: torch.Tensor) -> Any:
    turned = x.t()
    rows = turned[1:]
    return (rows * y.t()[1:]).sum(), rows, turned


def of_both(x: torch.Tensor, y: torch.Tensor) -> Any:
    turned, row = x.t(), x[0]
    z = (row * 2 + y).sin()
    return z, turned, row, z.t(), y.view(-1)


def without_gradients_too(x: torch.Tensor, y: torch.Tensor) -> Any:
    with torch.no_grad():
        turned = x.t()
    return (x * y).sum(), turned, x.view(-1)


def all_of_them(x: torch.Tensor, y: torch.Tensor) -> Any:
    return (*x.unbind(0), (x * y).sum())


def views_alone(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.t(), y[0].expand(3, 4)


def itself(x: torch.Tensor, y: torch.Tensor) -> Any:
    same = x.contiguous()
    return same, (same * y).sum(), y.view_as(y)


def heard_inside(x: torch.Tensor, y: torch.Tensor) -> Any:
    flat = x.view(-1)
    flat.register_hook(lambda grad: grad * 2)
    return (flat * y.view(-1)).sum(), flat


def by_a_size(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.view(-1, x.shape[1] // 2), x.narrow(0, 1, y.shape[0] - 1), (x * y).sum()


def one_of_several(x: torch.Tensor, y: torch.Tensor) -> Any:
    left, right = x.chunk(2, -1)
    return left, right * (left @ y[:2, :2]).exp() + left.sin()


def one_of_several_again(x: torch.Tensor, y: torch.Tensor) -> Any:
    top, _ = x.split([1, x.shape[0] - 1])
    return top.view(-1), (x * y).sum(), top


def through_data(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x.data, (x * y).sum()


def beside_late_ones(x: torch.Tensor, y: torch.Tensor) -> Any:
    one, other = (x * 2).chunk(2)
    return x.t(), one, other, (one * other).sum() + y.sum()


def of_what_is_copied(x: torch.Tensor, y: torch.Tensor) -> Any:
    turned = y.t()
    x = x * 1
    x[0, 1:3] = turned[1, 1:3]
    return x, turned


_ROWS = torch.contiguous_format
PROGRAMS: list[Callable[..., Any]] = [
    *(detached, read_inside, of_a_view, of_both, without_gradients_too, all_of_them, views_alone, itself, heard_inside),
    *(by_a_size, through_data, beside_late_ones, of_what_is_copied),
]


def _told(told: list[Any], name: Any) -> Callable[[torch.Tensor | None], None]:
    """A hook: the order of a gradient in memory is not eager's."""
    return lambda grad: told.append((str(name), None if grad is None else grad.clone(memory_format=_ROWS)))


def _observed(function: Callable[..., Any], size: int, of_leaves: bool) -> list[Any]:
    """What backward passes from each result tell hooks and leave, and what comes of writing the results."""
    leaves = [torch.linspace(start, 1, size * 4).view(size, 4).requires_grad_() for start in (-1.0, -0.5)]
    told: list[Any] = []
    for number, leaf in enumerate(leaves):
        leaf.register_hook(_told(told, number))
    x, y = leaves if of_leaves else (leaf * 1 for leaf in leaves)
    results = function(x, y)
    for number, result in enumerate(results):
        if result.requires_grad:
            result.register_hook(_told(told, f"result {number}"))
    found: list[Any] = [
        (result.detach().clone(), result.requires_grad, result._is_view(), result.stride()) for result in results
    ]
    found.append([result.is_set_to(x) or result._base is x for result in results])
    for result in results:
        if result.requires_grad:
            result.sum().backward(retain_graph=True)
            # the hooks of several leaves are called in the order of the graph's inputs
            found.append(sorted(told, key=lambda pair: pair[0]))
            told.clear()
    for result in results:
        try:
            result.mul_(2)
        except RuntimeError as error:
            found.append(str(error).partition(".")[0])
    return [*found, *(leaf.grad for leaf in leaves), x.detach(), y.detach()]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("of_leaves", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_views_of_inputs_are_eagers(program: Callable[..., Any], of_leaves: bool, backend: str) -> None:
    compiled = dynajit.compile(program, backend=backend, dynamic=None)
    for size in (4, 4, 6, 8):
        compare(_observed(compiled, size, of_leaves), _observed(program, size, of_leaves), exact=False)


@pytest.mark.parametrize(
    "program", [detached, read_inside, of_a_view, of_both, views_alone, one_of_several, one_of_several_again]
)
def test_graphs_with_views_of_inputs_are_compiled(program: Callable[..., Any]) -> None:
    counters.clear()
    inputs = [torch.randn(4, 4).requires_grad_() for _ in range(2)]
    dynajit.compile(program, backend="codegen")(*inputs)
    assert not counters["as_captured"]


def test_views_of_what_the_graph_writes_stay_in_it() -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> Any:
        turned = y.t()
        y.mul_(2)
        return turned, (x * turned).sum(), x.t()

    assert_same(writes, torch.randn(3, 3).requires_grad_(), torch.randn(3, 3), graphs=1, breaks=0)


def test_gradients_of_views_can_be_differentiated_again() -> None:
    def penalised(function: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        loss, view = function(x)
        (first,) = torch.autograd.grad(loss, view, create_graph=True)
        return first.detach(), *torch.autograd.grad(first.square().sum(), x)

    def cubed(x: torch.Tensor) -> Any:
        view = x.t()
        return (view**3).sum(), view

    compare(penalised(dynajit.compile(cubed, backend="codegen")), penalised(cubed), exact=False)


class GivesNone(torch.autograd.Function):
    """Two results, of an input each; an unused one gives its input no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, one: torch.Tensor | None, other: torch.Tensor | None) -> Any:  # type: ignore[override]
        return None if one is None else one * 2, None if other is None else other * 3


def test_inputs_that_a_function_gives_none_are_told() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return GivesNone.apply(x, y)[0].sin()  # type: ignore[no-any-return]

    sides = []
    for function in (dynajit.compile(program, backend="codegen"), program):
        told: list[Any] = []
        leaves = [torch.ones(3).requires_grad_() for _ in range(2)]
        for number, leaf in enumerate(leaves):
            leaf.register_hook(_told(told, number))
        function(*leaves).sum().backward()
        sides.append((sorted(told, key=lambda pair: pair[0]), [leaf.grad for leaf in leaves]))
    compare(*sides, exact=False)
