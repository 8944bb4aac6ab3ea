"""What `yield from` hands on: exceptions thrown, values sent, the value that StopIteration carries."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from cases import Case, Cases

import dynajit

cases = Cases()
x = torch.arange(3.0)


def inner(log: list[Any]) -> Any:
    try:
        log.append((yield 1))
        yield 2
    except ValueError as error:
        log.append(error.args)
        yield "caught inside"
    finally:
        log.append("left")
    return 9


def outer(log: list[Any]) -> Any:
    try:
        found = yield from inner(log)
        log.append(found)
        yield "after"
    except ValueError:
        yield "caught outside"
    except KeyError:
        yield "key"


@cases(x)
def thrown_into_the_inner_one(x: torch.Tensor) -> Any:
    log: list[Any] = []
    generator = outer(log)
    found = [next(generator), generator.throw(ValueError("q")), *generator]
    other = outer(log)
    found += [next(other), other.throw(KeyError("k")), next(other, "ended")]
    return found, log, x + 1


@cases(x)
def closed_and_sent_through(x: torch.Tensor) -> Any:
    log: list[Any] = []
    generator = outer(log)
    found = [next(generator), generator.send("hello")]
    generator.close()
    ended = outer(log)
    next(ended)
    with contextlib.suppress(TypeError):
        ended.throw(TypeError("through both"))
    return found, log, x + 1


class Counting:
    """An iterator of its own kind, with everything that `yield from` asks for."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.count = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> int:
        self.count += 1
        if self.count > 2:
            raise StopIteration("the end")
        return self.count

    def send(self, value: Any) -> Any:
        self.log.append(("sent", value))
        return value

    def throw(self, *error: Any) -> Any:
        raise StopIteration("thrown")

    def close(self) -> None:
        self.log.append("closed")


def through_counting(log: list[Any]) -> Any:
    log.append((yield from Counting(log)))
    yield "after"


@cases(x)
def an_iterator_of_the_programs_own(x: torch.Tensor) -> Any:
    log: list[Any] = []
    found = list(through_counting(log))
    generator = through_counting(log)
    found += [next(generator), generator.send(7), generator.throw(ValueError("v"))]
    closed = through_counting(log)
    next(closed)
    closed.close()
    return found, log, x + 1


def echo() -> Any:
    value = yield 1
    return value


def of_echo() -> Iterator[Any]:
    found = yield from echo()
    yield found


@cases(x)
def what_is_sent_comes_back_as_the_value(x: torch.Tensor) -> Any:
    generator: Any = of_echo()
    return next(generator), generator.send(x * 2)


@cases(x)
def a_list_takes_no_exception(x: torch.Tensor) -> Any:
    def over() -> Any:
        try:
            yield from [1, 2]
        except ValueError as error:
            yield error.args

    generator = over()
    return next(generator), generator.throw(ValueError("v")), next(generator, None), x + 1


@cases(x)
def the_iterators_own_stop(x: torch.Tensor) -> Any:
    numbers = Counting([])
    found: list[Any] = [next(numbers), next(numbers)]
    try:
        next(numbers)
    except StopIteration as error:
        found.append((error.args, error.value))
    return found, next(numbers, None), x + 1


def counted(to: int) -> Iterator[int]:
    yield from range(to)


def nested(to: int) -> Iterator[int]:
    for each in counted(to):
        yield each
        yield from counted(each)


@cases(x)
def left_where_it_delegates(x: torch.Tensor) -> Any:
    chained = (each for each in nested(4) if each > 1)
    return next(n for n in counted(5) if n > 1) + next(nested(3)) + next(chained) * x


layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))


@cases(x)
def a_models_first_parameter(x: torch.Tensor) -> Any:
    kind = next(each.dtype for each in layers.parameters() if each.is_floating_point())
    return layers(x.to(kind)), next(iter(layers.named_modules()))[0]


@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_program(case: Case) -> None:
    case.check()


def test_an_inner_generator_whose_close_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append((args.exc_type, type(args.object))))

    class Broken:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            return 1

        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError

    def outer(x: torch.Tensor) -> Iterator[Any]:
        dynajit.graph_break()
        yield from Broken()  # type: ignore[misc]

    def f(x: torch.Tensor) -> Any:
        made = outer(x)
        found = next(made)
        made.close()
        return x + found

    expected, seen = f(torch.ones(2)), told[:]
    told.clear()
    assert dynajit.compile(f, backend="eager")(torch.ones(2)).equal(expected)
    assert [kind for kind, _ in told] == [kind for kind, _ in seen] == [ZeroDivisionError]
