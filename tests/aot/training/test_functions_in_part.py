"""autograd.Functions of several results, of which a backward pass starts from some: they see which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dynajit
from dynajit.report.counters import counters


class NotMaterialized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, one: Tensor | None, other: Tensor | None) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        return None if one is None else one * 2, None if other is None else other * 3


class NotLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return one + 1, other.cos()


def _apart(kind: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = kind.apply(x.sin(), y)
    return a.exp(), b * 2


def _with_a_write(kind: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x = x.sin()
    a, b = kind.apply(x, y)
    x.add_(1)
    return a.exp(), b * 2, x


def _joined(kind: Any, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b = kind.apply(x.sin(), y)
    return (a.exp() * b,)


def _gradients(f: Any, place: int) -> list[Tensor | None]:
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    f(x, y)[place].sum().backward()
    return [x.grad, y.grad]


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("kind", [NotMaterialized, NotLinear])
@pytest.mark.parametrize("program", [_apart, _with_a_write])
def test_gradients_of_some_results(program: Any, kind: Any, backend: str) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return program(kind, x, y)  # type: ignore[no-any-return]

    compiled = dynajit.compile(f, backend=backend)
    for place in (0, 1, 0):
        found, wanted = _gradients(compiled, place), _gradients(f, place)
        assert [each is None for each in found] == [each is None for each in wanted]
        torch.testing.assert_close(found, wanted)


def test_views_that_a_write_made_ambiguous_are_no_functions() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        t = x * y
        joined = torch.cat(t.chunk(3))
        t.sin_()
        return (joined,)

    torch.testing.assert_close(_gradients(dynajit.compile(f, backend="codegen"), 0), _gradients(f, 0))


@pytest.mark.parametrize("kind", [NotMaterialized, NotLinear])
def test_one_whose_results_all_have_a_gradient_is_compiled(kind: Any) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return _joined(kind, x, y)

    before = counters["as_captured"].copy()
    torch.testing.assert_close(_gradients(dynajit.compile(f, backend="aot_eager"), 0), _gradients(f, 0))
    assert counters["as_captured"] == before


def _detached_beside(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    y = y.detach()
    return NotMaterialized.apply(x, y)[1], y


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_results_have_a_history_where_no_gradient_gets_to_an_input(backend: str) -> None:
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    result, other = dynajit.compile(_detached_beside, backend=backend)(x * 1, y * 1)
    assert result.requires_grad and not other.requires_grad
    result.sum().backward()
    assert x.grad is None and y.grad is None


def _behind(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return NotMaterialized.apply(x.sin(), y)


def _behind_a_break(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.sin()
    dynajit.graph_break()
    return NotMaterialized.apply(x, y)


def _behind_a_region(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return NotMaterialized.apply(checkpoint(torch.sin, x, use_reentrant=False), y)


def _behind_several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x.sin(), (x * y).exp()
    dynajit.graph_break()
    return NotMaterialized.apply(a * b, y)


@pytest.mark.parametrize("order", [(1, 1), (1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("program", [_behind, _behind_a_break, _behind_a_region, _behind_several])
def test_a_pass_without_gradients_uses_up_what_it_comes_by(program: Any, order: tuple[int, int]) -> None:
    def outcomes(f: Any) -> list[Any]:
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        results, found = f(x, y), []
        for place in order:
            try:
                results[place].sum().backward()
            except RuntimeError as error:
                found.append(str(error)[:40])
            else:
                found.append([None if each.grad is None else round(each.grad.sum().item(), 4) for each in (x, y)])
        return found

    assert outcomes(dynajit.compile(program)) == outcomes(program)


class Dirty(torch.autograd.Function):
    """Writes its argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_a_function_writes_a_result_of_another(backend: str, place: int) -> None:
    """Its backward was lost: the graph after the first was compiled without gradients."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = NotMaterialized.apply(x, y)
        Dirty.apply(b)
        return a, b

    torch.testing.assert_close(_gradients(dynajit.compile(program, backend=backend), place), _gradients(program, place))
