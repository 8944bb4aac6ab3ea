"""Functions that make a class at each call are not compiled at each call."""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
import warnings
from typing import Any

import pytest
import torch

import dynajit
from dynajit import _C
from dynajit.capture.misses import MAX_MADE_ANEW


def statement(x: torch.Tensor) -> torch.Tensor:
    class Scaled:
        factor = 2

        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def value(self) -> torch.Tensor:
            return self.x * self.factor

    return Scaled(x).value() + 1


def data_class(x: torch.Tensor) -> torch.Tensor:
    @dataclasses.dataclass
    class Pair:
        x: torch.Tensor
        factor: int = 3

    pair = Pair(x)
    return pair.x * pair.factor


def named_tuple(x: torch.Tensor) -> torch.Tensor:
    made = collections.namedtuple("made", "x factor")  # type: ignore[misc]
    return made(x, 2).x * made(x, 2).factor


def enumeration(x: torch.Tensor) -> torch.Tensor:
    class Factor(enum.Enum):
        ONE = 1
        TWO = 2

    return x * Factor.TWO.value


def crossing_a_break(x: torch.Tensor) -> torch.Tensor:
    class Scaled:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    made = Scaled(x)
    print(end="")
    return made.x * 2


def calls_and_graphs(fn: Any, count: int) -> list[int]:
    """How many graphs were compiled by the end of each call; each result like eager's."""
    graphs: list[int] = [0]

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs[0] += 1
        return module.forward

    compiled = dynajit.compile(fn, backend=backend)
    after = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            x = torch.full((2,), float(number))
            assert torch.equal(compiled(x), fn(x))
            after.append(graphs[0])
    return after


@pytest.mark.parametrize("fn", [statement, data_class, named_tuple, enumeration, crossing_a_break])
def test_compiling_ends_soon(fn: Any) -> None:
    after = calls_and_graphs(fn, 3 * MAX_MADE_ANEW + 2)
    assert after[0] >= 1
    assert after[-1] == after[2 * MAX_MADE_ANEW]


@pytest.mark.parametrize("fn", [statement, data_class])
def test_classes_that_stay_inside_are_compiled_once(fn: Any) -> None:
    assert calls_and_graphs(fn, 2 * MAX_MADE_ANEW) == [1] * 2 * MAX_MADE_ANEW


def test_compiling_ends_soon_where_calls_differ_otherwise_too() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2

        class Unused(Kept):
            level = [1]  # which is not made in the graph

        return y + 1

    compiled = dynajit.compile(f, backend="eager")
    after = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(4 * MAX_MADE_ANEW):
            compiled(torch.ones(2, requires_grad=number == 0))
            after.append(dynajit.counters["frames"]["ok"])
    assert after[-1] == after[MAX_MADE_ANEW]


def test_it_is_said_of_each_code_once() -> None:
    """Also of one that lies where another lay of which it was said."""
    for _ in range(30):
        fresh = types.FunctionType(crossing_a_break.__code__.replace(), crossing_a_break.__globals__)
        compiled = dynajit.compile(fresh, backend="eager")
        with pytest.warns(UserWarning, match="its classes are made anew at each call"):
            for _ in range(2 * MAX_MADE_ANEW):
                compiled(torch.ones(2))
        del fresh, compiled
        dynajit.reset()


def test_it_is_said_why() -> None:
    compiled = dynajit.compile(crossing_a_break, backend="eager")
    with pytest.warns(UserWarning, match="its classes are made anew at each call"):
        for _ in range(2 * MAX_MADE_ANEW):
            compiled(torch.ones(2))


def test_classes_of_one_name_that_come_again_keep_their_variants() -> None:
    def make(factor: int) -> Any:
        class Scaled:
            def value(self, x: torch.Tensor) -> torch.Tensor:
                return x * factor

        return Scaled()

    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled = dynajit.compile(lambda scaled, x: scaled.value(x), backend=backend)
    kinds = [make(factor) for factor in range(5)]
    x = torch.ones(2)
    for kind in kinds[:2]:
        for _ in range(2):
            assert torch.equal(compiled(kind, x), kind.value(x))
    for kind in kinds:
        assert torch.equal(compiled(kind, x), kind.value(x))
    assert len(graphs) == len(kinds)


def scaled(x: torch.Tensor, by: Any) -> torch.Tensor:
    return x * by.factor


class Kept:
    factor = 3


@pytest.mark.parametrize("order", ["made anew first", "kept first"])
def test_what_is_given_other_classes_elsewhere_is_compiled_there(order: str) -> None:
    def f(x: torch.Tensor, kept: Kept) -> Any:
        class Made:
            factor = 2

        made = Made()
        dynajit.graph_break()
        objects = [made, kept] if order == "made anew first" else [kept, made]
        return [scaled(x, each) for each in objects]

    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(len(module.graph.nodes))
        return module.forward

    compiled, x, kept, after = dynajit.compile(f, backend=backend), torch.arange(3.0), Kept(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4 * MAX_MADE_ANEW):
            for found, expected in zip(compiled(x, kept), f(x, kept), strict=True):
                assert torch.equal(found, expected)
            after.append(len(graphs))
    assert any(not variant.data.eager for variant in _C.variants(scaled.__code__))
    assert after[-1] == after[2 * MAX_MADE_ANEW]
    dynajit.reset()
