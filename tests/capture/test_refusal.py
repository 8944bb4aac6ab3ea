"""Exceptions that leave a function under `fullgraph=True`: the graph before is whole, and the exception is eager's."""

import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.exc import Unsupported
from dynajit.outcomes import compare
from dynajit.report import breaks
from dynajit.values.core.registry import builtin
from dynajit.values.core.value import GraphBreak, Tracer, Value

OUTSIDE = ValueError("made before")


def in_the_function(x: Tensor, n: int) -> Any:
    y = x.mul_(2)
    if n > 2:
        raise ValueError(f"{n} is too much")
    return y * n


def checked(x: Tensor, n: int) -> Tensor:
    x.add_(1)
    if n > 2:
        raise ValueError(f"{n} is too much")
    return x


def in_a_call(x: Tensor, n: int) -> Any:
    return checked(x.mul_(2), n).cos()


def in_a_loop(x: Tensor, n: int) -> Any:
    for i in range(4):
        x.add_(1)
        if i == n:
            raise KeyError(i)
    return x


def in_nested_loops(x: Tensor, n: int) -> Any:
    for i in range(3):
        for part in [x]:
            part.add_(i)
            if i == 2:
                checked(part, n)
    return x


def under_no_grad(x: Tensor, n: int) -> Any:
    with torch.no_grad():
        x.add_(1)
        if n > 2:
            raise ValueError("inside")
    return x


class Scope:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> bool:
        return False


def in_a_users_with(x: Tensor, n: int) -> Any:
    with Scope():
        x.add_(1)
        checked(x, n)
    return x


def in_a_try(x: Tensor, n: int) -> Any:
    try:
        checked(x, n)
    finally:
        x.mul_(3)
    return x


def raised_again(x: Tensor, n: int) -> Any:
    try:
        checked(x, n)
    except ValueError:
        x.mul_(3)
        raise
    return x


def with_a_cause(x: Tensor, n: int) -> Any:
    try:
        checked(x, n)
    except ValueError as error:
        raise KeyError("another") from error
    return x


def from_outside(x: Tensor, n: int) -> Any:
    x.add_(1)
    if n > 2:
        raise OUTSIDE
    return x


def caused_from_outside(x: Tensor, n: int) -> Any:
    x.add_(1)
    if n > 2:
        raise KeyError from OUTSIDE
    return x


def shapes_that_do_not_fit(x: Tensor, n: int) -> Any:
    return x.add_(1) @ torch.ones(n, 3)


def unknown_key(x: Tensor, n: int) -> Any:
    x.add_(1)
    return {1: x}[n]


def unknown_attribute(x: Tensor, n: int) -> Any:
    x.add_(1)
    return x if n == 1 else x.nothing  # type: ignore[attr-defined]


def unhashable(x: Tensor, n: int) -> Any:
    x.add_(1)
    return x if n == 1 else {[]: 1}


def other_arguments(x: Tensor, n: int) -> Any:
    x.add_(1)
    return checked(*[x, 1, 1][:n])


def check_that_does_not_hold(x: Tensor, n: int) -> Any:
    x.add_(1)
    torch._check(n < 2, lambda: "too much")
    return x


def parts(x: Tensor, n: int) -> Iterator[Tensor]:
    yield x.add_(1)
    checked(x, n)


def in_a_generator(x: Tensor, n: int) -> Any:
    return list(parts(x, n))


def divided(x: Tensor, a: int) -> Tensor:
    return x / (1 // a)


def in_a_callback(x: Tensor, n: int) -> Any:
    x.add_(1)
    return [*map(functools.partial(divided, x), [2 - n // 2 * 2, 1])]


def unbound(x: Tensor, n: int) -> Any:
    x.add_(1)
    y = 0
    if n > 1:
        del y
    return x * y


class Net(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        y = x.add_(1)
        if n > 2:
            raise NotImplementedError(str(tuple(y.shape)))
        return y


NET = Net()


def in_a_module(x: Tensor, n: int) -> Any:
    return NET(x, n)


# and how many graphs an exception takes: one more where a handler or a generator goes on with tensors
PROGRAMS: dict[Callable[..., Any], int] = {
    in_the_function: 1,
    in_a_call: 1,
    in_a_loop: 1,
    in_nested_loops: 1,
    under_no_grad: 1,
    in_a_users_with: 1,
    in_a_try: 2,
    raised_again: 2,
    with_a_cause: 1,
    from_outside: 1,
    caused_from_outside: 1,
    shapes_that_do_not_fit: 1,
    unknown_key: 1,
    unknown_attribute: 1,
    unhashable: 1,
    other_arguments: 1,
    check_that_does_not_hold: 1,
    in_a_generator: 2,
    in_a_callback: 1,
    unbound: 1,
    in_a_module: 1,
}


def outcome(fn: Callable[..., Any], n: int) -> tuple[Any, ...]:
    """The result, or the exceptions with the places that they went through; and what became of the argument."""
    OUTSIDE.__traceback__ = OUTSIDE.__context__ = None
    x = torch.ones(1, 3)
    try:
        return fn(x, n), x
    except Exception as raised:
        error: BaseException | None = raised
        told: list[Any] = []
        while error is not None:
            places = traceback.extract_tb(error.__traceback__)
            own = [(place.name, place.lineno) for place in places if place.filename == __file__]
            told.append((type(error), str(error), [place for place in own if place[0] != "outcome"]))
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return told, x


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_exception_is_eagers_and_the_graph_before_it_whole(program: Any, fullgraph: bool) -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return module.forward

    compiled = dynajit.compile(program, fullgraph=fullgraph, backend=backend)
    for n, count in ((3, PROGRAMS[program]), (3, 0), (1, None), (3, 0), (1, 0)):
        before = len(graphs)
        found, expected = outcome(compiled, n), outcome(program, n)
        compare(found, expected)
        if count is not None and fullgraph:
            assert len(graphs) - before == count, n


def caught_in_the_function(x: Tensor) -> Any:
    try:
        return x.sin() @ torch.ones(7)
    except RuntimeError:
        return x.cos()


def test_an_exception_that_the_function_catches_may_still_be_a_break() -> None:
    with pytest.raises(Unsupported, match="the operation raises"):
        dynajit.compile(caught_in_the_function, fullgraph=True)(torch.ones(3))


def raises_nothing(x: Tensor) -> Tensor:
    return x


@builtin(raises_nothing)
def _said_to_raise(tx: Tracer, x: Value) -> Value:
    raise GraphBreak(breaks.OP_RAISES, "said to raise")


@pytest.mark.parametrize("inside", [False, True])
def test_a_line_that_raises_nothing_after_all_is_the_break_that_it_was(inside: bool) -> None:
    def inner(x: Tensor) -> Tensor:
        return raises_nothing(x.sin()).cos()

    def outer(x: Tensor) -> Tensor:
        return inner(x) + 1

    compiled = dynajit.compile(outer if inside else inner, fullgraph=True)
    for _ in range(2):
        with pytest.raises(Unsupported, match="said to raise") as error:
            compiled(torch.ones(3))
        assert "raises_nothing(x.sin())" in error.value.user_line
        assert error.value.kind == "operation-raises"
