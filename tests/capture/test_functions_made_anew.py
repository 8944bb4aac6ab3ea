"""Functions that are made anew and compiled each time share what they compile, and differ where they differ."""

import gc
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

import dynajit
from dynajit import _C
from dynajit.config import config
from dynajit.testing import CompileCounter

Made = Callable[[torch.Tensor], torch.Tensor]


class Factor:
    def __init__(self, factor: float) -> None:
        self.factor = factor


def plain(i: int) -> Made:
    return lambda x: x + 1


def scaled(weight: Any) -> Made:
    return lambda x: x * weight


def with_tensor(i: int) -> Made:
    return scaled(torch.full((3,), float(i)))


def with_rows(i: int) -> Made:
    return scaled(torch.full((i + 2, 3), float(i)))


def with_number(i: int) -> Made:
    return scaled(i)


def with_fraction(i: int) -> Made:
    return scaled(i / 3)


def with_object(i: int) -> Made:
    held = Factor(i)
    return lambda x: x * held.factor


def with_function(i: int) -> Made:
    inner = scaled(torch.full((3,), float(i)))
    return lambda x: inner(x) + 1


def with_defaults(i: int) -> Made:
    def f(x: torch.Tensor, weight: Any = torch.full((3,), float(i)), *, more: Any = (i, "a")) -> torch.Tensor:  # noqa: B008
        return x * weight + more[0]

    return f


def with_container(i: int) -> Made:
    weights = {"a": [torch.full((3,), float(i))]}
    return lambda x: x * weights["a"][0]


def with_itself(i: int) -> Made:
    def f(x: torch.Tensor, left: int = 2) -> torch.Tensor:
        return f(x + 1, left - 1) if left else x

    return f


def with_break(i: int) -> Made:
    weight = torch.full((3,), float(i))

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + weight
        dynajit.graph_break()
        return y * weight

    return f


def as_method(i: int) -> Made:
    def f(self: Factor, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + i % 2

    return f.__get__(METHODS_OBJECT)


METHODS_OBJECT = Factor(2.0)
# how many graphs ten of them make; numbers vary before that is found out
GRAPHS = {
    plain: 1,
    with_tensor: 1,
    with_rows: 2,
    with_number: 5,
    with_fraction: 5,
    with_object: 5,
    with_function: 1,
    with_container: 1,
    with_defaults: 5,
    with_itself: 1,
    with_break: 2,
    as_method: 5,
}


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_made_anew_and_compiled(make: Callable[[int], Made]) -> None:
    backend, x = CompileCounter(), torch.randn(3)
    for turn in range(10):
        function = make(turn)
        assert torch.equal(dynajit.compile(function, backend=backend)(x), function(x)), turn
    assert backend.frame_count <= GRAPHS[make]
    for turn in range(10):
        function = make(turn)
        assert torch.equal(dynajit.compile(function, backend=backend)(x), function(x)), turn
    assert backend.frame_count <= GRAPHS[make]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("make", [with_object, with_number])
def test_however_their_objects_share_addresses(make: Callable[[int], Made], seed: int) -> None:
    """An object may have the address of one that is no more, at some of the calls, or at all of them."""
    backend, x, random, others = CompileCounter(), torch.randn(3), Random(seed), []
    for turn in range(30):
        others += [Factor(i) for i in range(random.randrange(4))]
        if random.random() < seed / 20:
            del others[random.randrange(4) :]
        function = make(turn % 10)
        assert torch.equal(dynajit.compile(function, backend=backend)(x), function(x)), turn
        del function
    assert backend.frame_count <= GRAPHS[make]


@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_many_that_are_all_kept(make: Callable[[int], Made]) -> None:
    """None of them runs into the limit for what the others are."""
    backend, x = CompileCounter(), torch.randn(3)
    functions = [make(turn) for turn in range(2 * config.recompile_limit)]
    made = [dynajit.compile(function, backend=backend, fullgraph=make is not with_break) for function in functions]
    for _ in range(2):
        for function, compiled in zip(functions, made, strict=True):
            assert torch.equal(compiled(x), function(x))
        graphs = backend.frame_count
    for function, compiled in zip(functions, made, strict=True):
        assert torch.equal(compiled(x), function(x))
    assert backend.frame_count == graphs


def test_variants_that_cannot_be_shared_are_no_error_under_fullgraph() -> None:
    def make(count: int) -> Made:
        def f(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = x + 1
            return x

        return f

    for turn in range(3 * config.recompile_limit):
        compiled = dynajit.compile(make(turn), backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), float(turn)))
        del compiled
    assert len(_C.variants(make(0).__code__)) <= 2 * config.recompile_limit


def test_cells_that_change_after_the_compile() -> None:
    weight: Any = torch.ones(2)

    def make() -> Made:
        return lambda x: x * weight

    compiled = []
    for value in (torch.ones(2), 3, 2.5, torch.full((2,), 7, dtype=torch.int64), True):
        weight = value
        compiled.append(dynajit.compile(make(), backend="eager"))
        for function in compiled:
            assert torch.equal(function(torch.ones(2)), torch.ones(2) * value)


@pytest.mark.parametrize("held", [lambda: Factor(2.0), lambda: torch.ones(3), lambda: torch.nn.Linear(3, 3)])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_nothing_that_it_closes_over_lives_longer(backend: str, held: Callable[[], Any]) -> None:
    def make(value: Any) -> Made:
        def f(x: torch.Tensor) -> torch.Tensor:
            y = x * (value.factor if isinstance(value, Factor) else value(x) if callable(value) else value)
            dynajit.graph_break()
            return y + 1

        return f

    value = held()
    gone = weakref.ref(value)
    dynajit.compile(make(value), backend=backend)(torch.randn(3))
    del value
    gc.collect()
    assert gone() is None
