"""Breaks while a generator gives another iterator's values: `yield from`, with what is sent, thrown and returned."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from resume_harness import skipped
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter, assert_same


def told(*values: Any) -> None:
    print("told", *values)


def inner(x: Tensor, n: int = 3) -> Generator[Any, Any, list[Any]]:
    got = []
    try:
        for i in range(n):
            sent = yield x + i
            told("inner", sent)
            got.append(sent)
    except ValueError as error:
        told("caught", error)
        yield x * 100
    finally:
        told("end of inner")
    return got


def outer(x: Tensor) -> Generator[Any, Any, Any]:
    x = x.sin()
    first = yield from inner(x)
    told("outer", first)
    last = yield from [x * 2, x * 3]
    try:
        caught = yield from inner(x * 10, 2)
    except KeyError as error:
        caught = ["key", str(error)]
    yield caught
    return first, last


def in_a_loop(x: Tensor) -> Any:
    found = []
    for y in outer(x):
        found.append(y * 2 if isinstance(y, Tensor) else y)
        told("loop")
    return found


def sent_and_thrown(x: Tensor) -> Any:
    generator = outer(x)
    a = next(generator)
    told("started")
    b = generator.send(5)
    told("sent")
    return a, b, generator.throw(ValueError("v")), list(generator)


def thrown_past_it(x: Tensor) -> Any:
    generator = outer(x)
    a = next(generator)
    told("started")
    for _ in range(5):
        b = next(generator)
    return a, b, generator.throw(KeyError("k")), list(generator)


def closed(x: Tensor) -> Any:
    generator = outer(x)
    a = next(generator)
    told("started")
    generator.close()
    return a, list(generator)


def two_deep(x: Tensor) -> Any:
    def around(x: Tensor) -> Generator[Any, Any, Any]:
        result = yield from outer(x)
        told("around", len(result))
        return result

    generator, found = around(x), []
    found.append(next(generator))
    told("started")
    try:
        while True:
            found.append(generator.send(1) if len(found) < 3 else next(generator))
    except StopIteration as end:
        return found, end.value


@pytest.mark.parametrize("fn", [in_a_loop, sent_and_thrown, thrown_past_it, closed, two_deep])
def test_like_eager(fn: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.linspace(-1.0, 2.0, 6)
    assert_same(fn, x)
    capsys.readouterr()
    fn(x)
    printed = capsys.readouterr().out
    report = dynajit.explain(fn, backend="eager")(x)
    assert capsys.readouterr().out == printed
    assert not skipped(report)


def test_all_is_compiled() -> None:
    def steps(x: Tensor) -> Generator[Tensor, None, None]:
        x = x * 2
        told("in the middle")
        yield x + 1

    def handed_on(x: Tensor) -> Generator[Tensor, None, None]:
        yield from steps(x)

    def fn(x: Tensor) -> Tensor:
        for y in handed_on(x.sin()):
            z = y.cos()
        return z

    counter, x = CompileCounter(), torch.ones(3)
    assert torch.equal(dynajit.compile(fn, backend=counter)(x), fn(x))
    assert counter.op_count == 4


def test_it_leaves_the_function() -> None:
    def fn(x: Tensor) -> Any:
        generator = outer(x)
        return next(generator), generator

    x = torch.linspace(-1.0, 2.0, 6)
    first, rest = dynajit.compile(fn, backend="eager")(x)
    expected_first, expected = fn(x)
    assert torch.equal(first, expected_first)
    for found, wanted in zip(rest, expected, strict=True):
        assert torch.equal(found, wanted) if isinstance(found, Tensor) else found == wanted


def multiples(x: Tensor, count: int) -> Iterator[Tensor]:
    for number in range(count):
        x = x * 2
        print(number)
        yield x + number


def consumed(x: Tensor, count: int) -> Tensor:
    x = x.sin()
    for part in multiples(x, count):
        x = x + part
    return x.cos()


def pairs(items: Any, x: Tensor) -> Iterator[Any]:
    for place, item in enumerate(items):
        try:
            for inner in item:
                yield place, inner * x
        except TypeError as error:
            yield place, str(error)
        finally:
            print("behind", place)


class Ends:
    """An iterator of the program's that raises."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if not self.count:
            raise KeyError("no more")
        self.count -= 1
        return self.count


def paired(x: Tensor, count: int) -> Any:
    found = []
    made = pairs([range(count), [1.5, 2.5], 3, "ab" if count == 2 else [], {4: 5}], x.sin())
    for place, part in made:
        print(place)
        found.append(part)
        x = x + 1
    return found, x


def raising(x: Tensor, count: int) -> Any:
    found = []

    def each(source: Any) -> Iterator[Tensor]:
        for number in source:
            yield x * number

    for part in each(Ends(count)):
        print("got")
        found.append(part)
    return found


def sent(x: Tensor, count: int) -> Any:
    def summed() -> Any:
        total = x.cos()
        for number in range(count):
            given = yield total + number
            total = total if given is None else total * given
        return total

    made = summed()
    found = [next(made)]
    print("begun")
    while True:
        try:
            found.append(made.send(len(found) % 2 or None))
            print("sent")
        except StopIteration as end:
            return found, end.value


@pytest.mark.parametrize("fn", [consumed, paired, raising, sent])
def test_a_loop_with_a_yield_is_one_part_for_all_iterations(fn: Any) -> None:
    report = assert_same(fn, torch.randn(3), 4, then=[(torch.randn(3), count) for count in (2, 1, 0, 9)])
    if fn is consumed:
        # before the loop, before and behind the print, what is done with the part, behind the loop
        assert report.graph_count == 5
        assert report.graph_break_count == 1


def test_generators_of_torch_break_nothing() -> None:
    """The sets in which they keep the modules and parameters that they have given are no part of a trace."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))

    def listed(x: Tensor) -> Tensor:
        for name, part in model.named_parameters():
            print(name)
            x = x + part.sum()
        return x

    report = assert_same(listed, torch.randn(3))
    assert {reason.kind for reason in report.break_reasons} == {"input-output"}
