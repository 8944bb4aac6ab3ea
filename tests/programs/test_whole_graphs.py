"""Programs that `fullgraph=True` takes, since nothing in them needs the graph to end: one graph, no break."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cases import Case, Cases
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

cases = Cases()
numbers = torch.tensor([3, 1, 2])
floats = torch.tensor([[0.5, -1.0], [2.0, 0.0]])
leaf = torch.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("case", cases, ids=lambda case: case.fn.__name__)
def test_is_one_graph_and_eagers_answer(case: Case, backend: str) -> None:
    assert_same(case.fn, *case.args, fullgraph=True, backend=backend, **case.options)


# ------------------------------------------------------------------------------------------- what depends on data


@cases(numbers, then=[(torch.tensor([7, 0, 5]),)])
def items_of_a_list(x: Tensor) -> Any:
    return [2 * number + 1 for number in x.tolist()]


@cases(floats, then=[(floats + 1,)])
def factor_from_the_data(x: Tensor) -> Any:
    return x * x.max().item() + float(x[0, 0])


@cases(floats, then=[(floats - 1,), (floats + 9,)])
def rows_that_are_kept(x: Tensor) -> Any:
    kept = x[x[:, 0] > 0]
    return kept * 2, x.nonzero(), torch.unique(x.sign())


@cases(numbers, then=[(torch.tensor([1, 4, 4]),)])
def size_from_the_data(lengths: Tensor) -> Any:
    return torch.zeros(int(lengths.sum())) + 1


def test_a_branch_on_data_is_refused() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.sum().item() > 3 else x

    with pytest.raises(dynajit.exc.Unsupported, match="needs a tensor's values"):
        dynajit.compile(f, backend="eager", fullgraph=True)(floats)
    assert_same(f, floats, breaks=1)


@cases(np.arange(4), np.linspace(0.0, 1.0, 3), then=[(np.arange(1, 5), np.linspace(1.0, 2.0, 3))])
def lists_of_arrays(counts: Any, weights: Any) -> Any:
    return (counts * 2).tolist(), weights.max().item() * 2, weights.tolist()


# ------------------------------------------------------------------------------------------------------ language


@cases(floats)
def items_of_iterators(x: Tensor) -> Any:
    names, numbers, halves = iter(["query", "key", "value"]), (n * n for n in range(5)), map(str, range(4))
    found = ["key" in names, 4 in numbers, "9" in halves, (1, 2) in zip([1], [2], strict=True)]
    return x + sum(found), found, list(names), list(numbers), list(halves)


@cases(floats)
def results_made_by_hand(x: Tensor) -> Any:
    largest = x.max(1)
    shifted = type(largest)((largest.values + 1, largest.indices))
    return shifted, shifted.values * 2, torch.return_types.sort((x, x.long())).indices


@cases(floats)
def exceptions_as_results(x: Tensor) -> Any:
    end, missing = StopIteration(1, 2), NameError("n", 3)
    return x.sin(), end, end.value, missing.args, str(missing)


@cases(leaf, then=[(leaf * 2,)])
def wrapped_functions(x: Tensor) -> Any:
    from torch._higher_order_ops.wrap import wrap, wrap_with_autocast, wrap_with_set_grad_enabled

    factor = x.detach().mean()
    first = wrap(lambda a, power=1: a.sin() * factor**power, x, power=2)
    second = wrap_with_set_grad_enabled(False, lambda a: {"doubled": a * 2}, x)
    third = wrap_with_autocast("cpu", torch.bfloat16, True, True, torch.matmul, x, x)
    return first, second, third, torch.is_grad_enabled()


# -------------------------------------------------------------------------------------------- names of arguments


@cases(floats)
def entries_named_as_a_models_parameters(x: Tensor) -> Any:
    return dict(other=x + 1, kind=x, tx=2), dict([("self", x)], other=1)


@cases(floats)
def arguments_named_by_a_keyword_of_python(x: Tensor) -> Any:
    low = {"from": -2, "to": 7}
    return x.clone().random_(**low), x.clone().uniform_(**low), torch.empty(3).random_(**{"from": 1, "to": 3})


# ------------------------------------------------------------------------------------- objects that operations are given


class Slope:
    def __init__(self, below: float) -> None:
        self.below = below


class LeakyBy(torch.autograd.Function):
    """Its forward and its backward read an object, which the backward finds in `ctx`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Slope, shift: float) -> Tensor:
        ctx.slope = slope
        ctx.save_for_backward(x)
        return torch.where(x > 0, x, x * slope.below) + shift

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, gradient, gradient * ctx.slope.below), None, None


class Counting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, counted: Any) -> Tensor:
        counted.calls += 1
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * 2, None


SLOPE = Slope(0.25)


@cases(floats, then=[(floats - 1,)])
def an_object_for_a_function_of_autograd(x: Tensor) -> Any:
    x = x.clone().requires_grad_()
    y = LeakyBy.apply(x, SLOPE, 1.5)
    return y, torch.autograd.grad((y * y).sum(), x)


def test_objects_that_change_around_the_call() -> None:
    def before(x: Tensor, slope: Slope) -> Any:
        slope.below += 1
        return LeakyBy.apply(x, slope, 0.0)

    def after(x: Tensor, slope: Slope) -> Any:
        y = LeakyBy.apply(x, slope, 0.0)
        slope.below = 9.0
        return y

    def within(x: Tensor, counted: Any) -> Any:
        return Counting.apply(x, counted), counted.calls

    counted = Slope(0.0)
    counted.calls = 0  # type: ignore[attr-defined]
    assert_same(before, floats, Slope(0.25), never_repeats="it counts")
    assert_same(after, floats, Slope(0.25))
    assert_same(within, floats, counted, never_repeats="it counts")


# ------------------------------------------------------------------------------------------------ what is closed over


def test_a_container_that_holds_itself_is_closed_over() -> None:
    ring: list[Any] = [2.0]
    ring.append({"ring": ring, "pair": (ring, 1)})

    def make() -> Any:
        return lambda x: x * ring[1]["ring"][0]

    first, second = dynajit.compile(make(), backend="eager"), dynajit.compile(make(), backend="eager")
    assert torch.equal(first(floats), floats * 2)
    assert torch.equal(second(floats), floats * 2)


# ------------------------------------------------------------------------------------------------------- modules


class Fetched(dict[str, Any]):
    """A module's table of parameters that is asked for each, as those are that gather them from other processes."""

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self.fetched: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.fetched.append(name)
        return super().__getitem__(name)


def test_a_module_whose_parameters_are_in_a_table_of_its_own() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2, bias=False))
        for layer in layers:
            layer._parameters = Fetched(layer._parameters)
        return layers

    def asks(x: Tensor) -> Any:
        layer = compiled[0]
        return layer(x), hasattr(layer, "weight"), hasattr(layer, "gain"), compiled[1].bias is None

    compiled: Any = make()
    expected = asks(floats)
    fetched = [compiled[0]._parameters.fetched, compiled[1]._parameters.fetched]
    compiled = make()
    found = dynajit.compile(asks, backend="eager", fullgraph=True)(floats)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:] == (True, False, True)
    assert [compiled[0]._parameters.fetched, compiled[1]._parameters.fetched] == fetched
