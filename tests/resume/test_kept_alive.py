"""What the variables of a loop keep alive: as long as in eager, though its body runs as a function of its own."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit


def closing(value: Any, log: list[str]) -> Iterator[Any]:
    try:
        while True:
            sent = yield value
            value = value if sent is None else value * sent
    finally:
        log.append("closed")
        print("closed")


class Finalised:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __del__(self) -> None:
        print("finalised")
        self.log.append("finalised")


class Thing:
    pass


def behind_the_loop(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    for number in range(3):
        generator = closing(x, log)
        x = next(generator) + number
        print("in the loop")
    print("behind it", len(log))
    return x + 1


def bound_behind_a_break(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    for _ in range(3):
        print("in the loop", len(log))
        generator = closing(x, log)
        next(generator)
        x = generator.send(2)
    print("behind it", len(log))
    return x + 1


def with_finalisers(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    count = 0
    while count < 3:
        count += 1
        held = Finalised(log)  # noqa: F841
        print("in the loop")
        x = x * 2
    x = x + 1
    print("behind it", len(log))
    return x


def bound_before(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    held = closing(x, log)
    x = next(held)
    for _ in range(2):
        print("in the loop", len(log))
        x = x + 1
        held = None
    print("behind it", len(log))
    return x


def deleted(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    for number in range(2):
        held = Finalised(log)
        print("in the loop")
        del held
        x = x + number
        print("behind it", len(log))
    return x


def nested(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    for number in range(2):
        outer = Finalised(log)  # noqa: F841
        for _ in range(2):
            inner = closing(x, log)
            x = next(inner) + number
            print("inside")
        print("between", len(log))
    print("behind", len(log))
    return x


def bound_again_by_a_second_loop(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    for _ in range(2):
        print("first", len(log))
        held = closing(x, log)
        x = next(held)
    for _ in range(2):
        print("second", len(log))
        held = closing(x, log)
        x = next(held)
    print("behind", len(log))
    return x


def read_by_the_loop_alone(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    held, count = Finalised(log), 0
    while count < 2:
        print("in the loop", held.log is log)
        held, count = Finalised(log), count + 1
    print("behind", len(log))
    return x + count


def bound_again_where_a_loops_error_is_handled(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    try:
        for number in range(3):
            held = Finalised(log)
            print("in the loop", len(log))
            x = x + 1
            if number == 1:
                raise ValueError(number)
    except ValueError as error:
        print("caught", len(log))
        for number in range(2):
            held = Finalised(log)  # noqa: F841
            print(error, number, len(log))
            x = x * 2
    print("behind", len(log))
    return x


def _loops(x: torch.Tensor) -> torch.Tensor:
    for number in range(2):
        held = number
        print("in the loop")
        x = x + held
    return x


def one_name_in_the_caller_of_a_loop(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    held = Finalised(log)  # noqa: F841
    print("before")
    x = _loops(x) * 2
    print("behind", len(log))
    return x


PROGRAMS = [
    behind_the_loop,
    bound_behind_a_break,
    with_finalisers,
    bound_before,
    deleted,
    nested,
    bound_again_by_a_second_loop,
    read_by_the_loop_alone,
    bound_again_where_a_loops_error_is_handled,
    one_name_in_the_caller_of_a_loop,
]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_dies_where_eager_lets_go_of_it(
    program: Callable[..., Any], backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(function: Callable[..., Any]) -> Any:
        log: list[str] = []
        result = function(torch.ones(2), log).tolist()
        return result, log, capsys.readouterr().out

    wanted = run(program)
    compiled = dynajit.compile(program, backend=backend)
    for _ in range(3):
        assert run(compiled) == wanted


def test_a_capture_keeps_nothing_of_the_programs() -> None:
    """Its exceptions and models would wait for the collector otherwise, and the object with them."""

    def program(x: torch.Tensor, generator: Any) -> torch.Tensor:
        x = x + next(generator)
        print(end="")
        return x * 2

    gc.disable()
    try:
        generator = closing(torch.ones(2), [])
        next(generator)
        dynajit.compile(program, backend="eager")(torch.ones(2), generator)
        seen = weakref.ref(generator)
        del generator
        assert seen() is None
    finally:
        gc.enable()


def test_a_generator_that_is_closed_keeps_nothing_of_its_caller() -> None:
    """The exception that ends it would, were it in a variable of a frame that its traceback has."""

    def program(x: torch.Tensor) -> torch.Tensor:
        generator = closing(x, [])
        x = next(generator)
        dynajit.graph_break()
        generator.close()
        return x + 1

    compiled = dynajit.compile(program, backend="eager")
    compiled(torch.ones(2))
    gc.collect()
    gc.disable()
    try:
        value = torch.ones(2)
        seen = weakref.ref(value)
        compiled(value)
        del value
        assert seen() is None
    finally:
        gc.enable()


def test_a_missing_attribute_keeps_nothing_of_the_caller() -> None:
    """The tracer's own exception would, were it in a variable of a frame that its traceback has."""

    def program(obj: Any, log: list[str]) -> None:
        def asked(value: Any) -> Any:
            if hasattr(obj, "missing"):
                return torch.utils

        value = asked(torch.bernoulli(torch.ones(1)))

        def inner() -> Iterator[Any]:
            try:
                yield value
            finally:
                log.append("closed")

        generator = inner()
        next(generator)

    log: list[str] = []
    gc.collect()
    gc.disable()
    try:
        dynajit.compile(program, backend="eager")(Thing(), log)
        assert log == ["closed"]
    finally:
        gc.enable()
