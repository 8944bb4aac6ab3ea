"""Results that other results of the same graph were computed from: hooks on them, and gradients asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.aot.training.double_backward import DoubleBackward


def _two(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin() * 2
    return y, (y * y).sum() + x.sum()


def _chain(x: Tensor) -> tuple[Tensor, ...]:
    first = x.exp()
    second = first.sin() + x
    third = second * first
    return first, second, third, third.sum()


def _branches(x: Tensor) -> tuple[Tensor, ...]:
    y = x.tanh()
    return y, y.cos(), y * x, x + 1


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    first, second = torch.var_mean(x * 2, 0)  # of one operation
    return first, (first * second.exp()).sum(), second


def _infinite(x: Tensor) -> tuple[Tensor, ...]:
    y = (x - x).sqrt()  # its derivative is infinite
    return y, (y * 3).sum() + x.sum()


def _drawing(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.nn.functional.dropout(x.cos(), 0.5)
    return y, (y * y).sum()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2 * ctx.saved_tensors[0]


def _function(x: Tensor) -> tuple[Tensor, ...]:
    y = _Product.apply(x)
    return y, y.sum()


def _chunks(x: Tensor) -> tuple[Tensor, ...]:
    mean, spread = (x.sin() * 2).chunk(2)  # as a variational autoencoder's code
    code = mean + spread.exp() * torch.rand_like(spread)
    return mean, spread, code, (code * mean).sum()


def _first_of_chunks(x: Tensor) -> tuple[Tensor, ...]:
    mean, spread = (x.sin() * 2).chunk(2)
    return mean, mean.exp().sum() + x.sum(), spread


def _views(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.exp()
    first, rest = whole[:1], whole[1:]
    return first, (first * rest).sum() + whole.sum(), whole, rest


def _view_of_a_view(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.exp()
    turned = whole.t()
    flat = turned[0]
    return whole, flat.square() * turned[1], turned, flat


def _through_results(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.exp()
    view = whole.unsqueeze(0)
    outer = view.square() * whole
    return whole, outer, view, outer.sum() * whole.sum()


def _views_twice(x: Tensor) -> tuple[Tensor, ...]:
    first, second = (x * 2).unbind()
    third, fourth = torch.stack([first * second, second]).unbind()
    return third, (third * fourth).sum(), fourth


def _unread(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.exp()
    first, rest = whole[:1], whole[1:]
    positive = (rest > 0).sum()
    return first, (whole * positive).sum(), whole, rest


_PROGRAMS = (_two, _chain, _branches, _parts, _infinite, _drawing, _function)
_OF_VIEWS = (_chunks, _first_of_chunks, _views, _view_of_a_view, _through_results, _views_twice, _unread)


def _sees(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    for result in results[:-1]:
        # eager's hooks are given None where a pass comes by another result of the same operation
        result.register_hook(lambda grad: None if grad is None else told.append(grad.clone()))
    results[-1].sum().backward()


def _changes(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    results[0].register_hook(lambda grad: None if grad is None else grad * 10)
    results[1].sum().backward()


def _keeps(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    for result in results:
        result.retain_grad()
    sum(result.sum() for result in results).backward()  # type: ignore[union-attr]
    told.extend(result.grad for result in results)


def _asks(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    told.extend(torch.autograd.grad(results[1].sum(), [results[0], x], retain_graph=True, allow_unused=True))
    told.extend(torch.autograd.grad(results[-1].sum(), results[0], retain_graph=True, materialize_grads=True))
    results[1].sum().backward()


def _into(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    results[1].sum().backward(inputs=[results[0]])
    told.append(results[0].grad)


def _twice(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    first = torch.autograd.grad(results[1].sum(), [results[0], x], create_graph=True, allow_unused=True)
    told.extend(first)
    ends = [grad.square().sum() for grad in first if grad is not None and grad.requires_grad]
    if ends:
        told.extend(torch.autograd.grad(ends, [x], allow_unused=True))


def _of_several(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    hook = torch.autograd.graph.register_multi_grad_hook(results[:2], told.extend)
    results[1].sum().backward()
    hook.remove()


def _no_one(results: tuple[Tensor, ...], x: Tensor, told: list[Any]) -> None:
    results[0].register_hook(told.append).remove()
    results[1].sum().backward()


_PASSES = (_sees, _changes, _keeps, _asks, _into, _twice, _of_several, _no_one)


def _observed(run: Callable[..., Any], passes: Callable[..., None]) -> list[Any]:
    torch.manual_seed(0)
    leaf = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
    told: list[Any] = []
    passes(run(leaf), leaf, told)
    told.append(torch.get_rng_state())
    return [*told, leaf.grad]


@pytest.mark.parametrize("passes", _PASSES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("program", [*_PROGRAMS, *_OF_VIEWS], ids=lambda function: function.__name__)
def test_gradients_get_to_results_between(program: Callable[..., Any], passes: Callable[..., None]) -> None:
    wanted = _observed(program, passes)
    compiled = dynajit.compile(program, backend="codegen")
    for _ in range(2):
        found = _observed(compiled, passes)
        assert len(found) == len(wanted)
        for own, theirs in zip(found, wanted, strict=True):
            if theirs is None:
                assert own is None
            else:
                torch.testing.assert_close(own, theirs, equal_nan=True)


def test_a_pass_that_nobody_hears_of_runs_the_compiled_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any) -> None:
        raise AssertionError("the graph runs again")

    compiled = dynajit.compile(_chain, backend="codegen")
    monkeypatch.setattr(DoubleBackward, "_again", refused)
    for at in range(4):
        _observed(compiled, lambda results, x, told: results[at].sum().backward())  # noqa: B023


def test_a_second_pass_to_a_result_whose_graph_is_gone_raises() -> None:
    compiled = dynajit.compile(_two, backend="codegen")
    y, z = compiled(torch.ones(3, requires_grad=True))
    z.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(z, y)


def test_second_derivatives_where_a_result_is_a_view_and_numbers_are_drawn() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        drawn = torch.rand_like(x.exp()) * x.exp()
        return drawn.square(), y.t(), x.exp().t()

    def observed(run: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        x, y = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_(), torch.ones(2, 3, requires_grad=True)
        results = run(x, y)
        torch.rand(3)
        ends = [result.square().sum() for result in results]
        first = torch.autograd.grad(ends, [x, y], create_graph=True)
        second = torch.autograd.grad([grad.square().sum() for grad in first], [x, y])
        return [*results, *first, *second, torch.rand(3)]

    torch.testing.assert_close(observed(dynajit.compile(program, backend="codegen")), observed(program))
