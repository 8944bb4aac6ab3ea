"""Generators that stand where a break left them: what follows of them is traced in one graph with their caller."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.arange(6.0).reshape(2, 3)


@contextlib.contextmanager
def scope(log: list[Any], x: Tensor) -> Iterator[Tensor]:
    log.append("enter")
    try:
        yield x * 2
    except KeyError as error:
        log.append(str(error))
    finally:
        log.append("leave")


@contextlib.contextmanager
def changing() -> Iterator[None]:
    try:
        yield
    except KeyError as error:
        raise ValueError("changed") from error


def numbers(x: Tensor, log: list[Any]) -> Iterator[Any]:
    total = x
    while True:
        try:
            value = yield total
            if value is None:
                return total + 1
            total = total + value
        except ValueError as error:
            log.append(str(error))
        except GeneratorExit:
            log.append("closed")
            raise


def counted(x: Tensor) -> Iterator[Tensor]:
    number = 0
    while number < 4:
        yield x + number
        number += 1


def context(x: Tensor) -> Any:
    log: list[Any] = []
    with scope(log, x) as y:
        x = x + y
        dynajit.graph_break()
        x = x * 2
    return x.sin(), log


def two_contexts(x: Tensor) -> Any:
    log: list[Any] = []
    with scope(log, x) as y, scope(log, x + 1) as z:
        x = x + y
        dynajit.graph_break()
        x = x * z
    return x.sin(), log


def inner(x: Tensor, log: list[Any]) -> Tensor:
    with scope(log, x) as y:
        x = x.cos()
        dynajit.graph_break()
        return x + y


def nested_contexts(x: Tensor) -> Any:
    log: list[Any] = []
    with scope(log, x) as y:
        z = inner(x, log)
        z = z * y
    return z.sin(), log


def exception_in_the_body(x: Tensor) -> Any:
    log: list[Any] = []
    with scope(log, x) as y:
        x = x + y
        dynajit.graph_break()
        x = x * 2
        raise KeyError("bad")
    return x.sin(), log


def exception_replaced(x: Tensor) -> Any:
    x = x + 1
    try:
        with changing():
            dynajit.graph_break()
            x = x * 2
            raise KeyError("k")
    except ValueError as error:
        return x.sin(), str(error), repr(error.__cause__), error.__context__ is error.__cause__


def consumed_outside(x: Tensor) -> Any:
    made = counted(x)
    first = next(made)
    dynajit.graph_break()
    return first, [each * 2 for each in made], sum(made)


def zipped(x: Tensor) -> Any:
    made = counted(x)
    first = next(made) * 2
    dynajit.graph_break()
    return first, [each * other for each, other in zip(made, [1, 2, 3, 4], strict=False)], next(made, None)


def returned(x: Tensor) -> Any:
    made, other = counted(x), counted(x * 2)
    y = next(made) + next(other)
    dynajit.graph_break()
    return y + next(made), made, next(other), other


def of_a_closure(x: Tensor) -> Any:
    count = 0

    def counting() -> Iterator[int]:
        nonlocal count
        for _ in range(1):
            count += 1
        yield count
        count += 1
        yield count
        count += 10

    made = counting()
    next(made)
    y = x * count
    dynajit.graph_break()
    next(made)
    return y * count, list(made), count


@pytest.mark.parametrize(
    "program",
    [
        context,
        two_contexts,
        nested_contexts,
        exception_in_the_body,
        exception_replaced,
        consumed_outside,
        zipped,
        of_a_closure,
    ],
)
def test_two_graphs(program: Callable[..., Any]) -> None:
    assert_same(program, X, graphs=2, breaks=1, recompiles=0)


def test_generators_that_leave_the_function() -> None:
    # how many breaks there are depends on when they die: a GeneratorExit is a break of its own
    assert_same(returned, X, graphs=2, recompiles=0)


def test_send_throw_and_close() -> None:
    def driven(x: Tensor) -> Any:
        log: list[Any] = []
        made: Any = numbers(x, log)
        next(made)
        dynajit.graph_break()
        first = made.send(x * 2)
        second = made.throw(ValueError("thrown"))
        third = made.send(3)
        dynajit.graph_break()
        made.close()
        other: Any = numbers(x, log)
        next(other)
        try:
            other.send(None)
        except StopIteration as end:
            return first, second, third, end.value, log

    assert_same(driven, X, breaks=2)


def test_it_goes_on_by_itself_where_it_was_moved_to() -> None:
    held: list[Any] = []

    def moved(x: Tensor) -> Any:
        made = counted(x)
        held.append(made)
        y = next(made)
        dynajit.graph_break()
        return y + next(made)

    for run in (moved, dynajit.compile(moved, backend="eager")):
        assert torch.equal(run(X), X + X + 1)
        made = held.pop()
        assert torch.equal(next(made), X + 2)
        assert torch.equal(next(made), X + 3)
        assert next(made, None) is None


def test_writes_between_its_yields_are_made_in_order() -> None:
    def writing(x: Tensor) -> Iterator[Tensor]:
        x.add_(1)
        yield x
        x.mul_(2)
        yield x
        x.sub_(1)

    def program(x: Tensor) -> Any:
        made = writing(x)
        first = next(made) + 0
        dynajit.graph_break()
        second = next(made) + 0
        return first, second, list(made), x

    assert_same(program, X.clone(), breaks=1)


def test_each_place_it_stands_at_is_guarded() -> None:
    def stepped(made: Iterator[Tensor], x: Tensor) -> Tensor:
        return next(made) + x

    def making(x: Tensor) -> Iterator[Tensor]:
        made = counted(x)
        next(made)
        dynajit.graph_break()
        return made

    make, step = dynajit.compile(making, backend="eager"), dynajit.compile(stepped, backend="eager")
    made = make(X)
    assert [step(made, X).tolist() for _ in range(3)] == [(X + X + number).tolist() for number in (1, 2, 3)]
    with pytest.raises(StopIteration):
        step(made, X)


def listed_after(x: Tensor) -> Any:
    found = counted(x)
    dynajit.graph_break()
    return list(found), list(found)


def one_after(x: Tensor) -> Any:
    found = counted(x)
    dynajit.graph_break()
    return next(found), found


def closed_after(x: Tensor) -> Any:
    found = counted(x)
    dynajit.graph_break()
    found.close()
    return x + 1, list(found)


def thrown_into_after(x: Tensor) -> Any:
    log: list[Any] = []
    found = numbers(x, log)
    dynajit.graph_break()
    try:
        found.throw(ValueError("not started"))
    except ValueError as error:
        log.append(str(error))
    return x + 1, log, list(found)


def sent_after(x: Tensor) -> Any:
    found = numbers(x, [])
    dynajit.graph_break()
    try:
        found.send(4)
    except TypeError as error:
        return str(error), next(found), found.send(x)


def nested_after(x: Tensor) -> Any:
    found = (item * 2 for item in [x, x + 1])
    dynajit.graph_break()
    return [a + b for a, b in zip(found, counted(x), strict=False)]


# inlined into its function, a comprehension leaves what it went over to die at a place of its own
INLINED = sys.version_info >= (3, 12)
NOT_STARTED = [(listed_after, 1), (one_after, 1), (closed_after, 1), (thrown_into_after, 1)]


@pytest.mark.parametrize(("program", "breaks"), [*NOT_STARTED, (sent_after, 2), (nested_after, 2 + INLINED)])
def test_a_generator_that_was_not_started_before_the_break(program: Any, breaks: int) -> None:
    given = program(X)
    again = list(given[1]) if program is one_after else None
    found = dynajit.explain(program)(X)
    if again is not None:
        compiled = dynajit.compile(program)(X)
        assert torch.equal(compiled[0], given[0]) and all(map(torch.equal, list(compiled[1]), again))
    else:
        assert_same(program, X)
    assert found.graph_break_count == breaks, found


def test_send_to_a_generator_that_was_not_started() -> None:
    def f(x: Tensor) -> Any:
        found = counted(x)
        try:
            found.send(x)
        except TypeError as error:
            return str(error), next(found)

    assert_same(f, X, graphs=1, breaks=0)
