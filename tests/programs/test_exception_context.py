"""What exceptions that a program catches say beside their text: `name`, `obj`, positions, attributes of their class."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import outside
from torch import Tensor

import dynajit
from dynajit.testing import assert_same


class Plain:
    calls = 0

    @property
    def broken(self) -> int:
        raise AttributeError("in the property")


class Slotted:
    __slots__ = ("s",)


def missing_attribute(x: Tensor) -> Any:
    made = Plain()
    found = []
    for name in ("zz", "broken"):
        try:
            getattr(made, name)
        except AttributeError as error:
            found.append((str(error), error.name, error.obj is made))
    return x + 1, found


def attribute_with_nowhere_to_go(x: Tensor) -> Any:
    made = Slotted()
    try:
        made.zz = 1  # type: ignore[attr-defined]
    except AttributeError as error:
        return x + 1, str(error), error.name
    return x


def missing_name(x: Tensor) -> Any:
    try:
        return undefined  # type: ignore[name-defined] # noqa: F821
    except NameError as error:
        return x + 1, str(error), error.name


def unbound_variable(x: Tensor) -> Any:
    y = 1
    del y
    try:
        return y  # noqa: F821
    except UnboundLocalError as error:
        return x + 1, str(error), error.name


def empty_cell(x: Tensor) -> Any:
    def inner() -> Any:
        return y

    try:
        inner()
    except NameError as error:
        return x + 1, str(error), error.name
    y = 1
    return y


def undecodable(x: Tensor) -> Any:
    try:
        b"\xff\xfe".decode("utf-8")
    except UnicodeDecodeError as error:
        return x + 1, error.start, error.end, error.encoding, error.reason, str(error)
    return x


def bad_json(x: Tensor) -> Any:
    try:
        json.loads("{")
    except json.JSONDecodeError as error:
        return x + 1, error.msg, error.pos, error.lineno, error.doc
    return x


def made_and_caught(x: Tensor) -> Any:
    try:
        raise AttributeError("text")
    except AttributeError as error:
        return x + 1, error.name, error.args


PROGRAMS = [
    *(missing_attribute, attribute_with_nowhere_to_go, missing_name, unbound_variable, empty_cell, undecodable),
    *(bad_json, made_and_caught),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_an_exception_says(program: Callable[[Tensor], Any]) -> None:
    assert_same(program, torch.ones(2))


def test_the_value_of_a_stop_iteration_is_set() -> None:
    def program(x: Tensor) -> Any:
        error = StopIteration("first")
        before = error.value
        error.value = "second"
        return x + 1, before, error.value, error.args

    assert_same(program, torch.ones(2), graphs=1, breaks=0)


def _asks(x: Tensor) -> Any:
    kind, error, trace = sys.exc_info()
    return x + (kind is None), kind, error is sys.exception(), trace is None


def asked_everywhere(x: Tensor) -> Any:
    found = [_asks(x)]
    for number in range(3):
        try:
            raise ValueError(number)
        except ValueError:
            found.append(_asks(x * 2))
            try:
                raise KeyError from sys.exception()
            except KeyError as error:
                found.append((_asks(x), error.__cause__.args))
            found.append(_asks(x))
        found.append(_asks(x))
    return found


def test_the_handled_exception_is_known() -> None:
    assert_same(asked_everywhere, torch.ones(3), graphs=1, breaks=0)


def _raises_again(x: Tensor) -> Any:
    try:
        raise  # noqa: PLE0704 - what the caller handles
    except Exception as error:
        return x + 1, type(error)


def _gives_context(x: Tensor) -> Any:
    try:
        raise ValueError
    except ValueError as error:
        return x + 1, type(error.__context__)


def _yields_what_is_handled(x: Tensor) -> Any:
    yield x + 1, type(sys.exception())


def _asks_a_generator(x: Tensor) -> Any:
    return next(_yields_what_is_handled(x))


@pytest.mark.parametrize("program", [_asks, _raises_again, _gives_context, _asks_a_generator])
def test_an_exception_that_the_caller_handles_is_seen(program: Callable[[Tensor], Any]) -> None:
    def answers(fn: Callable[[Tensor], Any]) -> list[Any]:
        found = []
        for handled in (False, True, False, True):
            try:
                if handled:
                    raise LookupError
                found.append(fn(torch.ones(2))[1])
            except LookupError:
                found.append(fn(torch.ones(2))[1])
        return found

    eager = answers(program)
    assert eager[0] is not eager[1] is LookupError
    assert answers(dynajit.compile(program, backend="eager")) == eager


def places_of(error: BaseException) -> list[tuple[str, int]]:
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame.f_code.co_name, trace.tb_lineno - trace.tb_frame.f_code.co_firstlineno))
        trace = trace.tb_next
    return found


def caught_inside(fn: Callable[[], Any]) -> list[tuple[str, int]]:
    try:
        fn()
    except Exception as error:
        return places_of(error)
    return []


def simple() -> None:
    _ = 1 / 0


def raised_again() -> None:
    try:
        simple()
    except TypeError:
        pass


def from_a_handler() -> None:
    try:
        simple()
    except ZeroDivisionError:
        [].pop()


def with_finally() -> None:
    try:
        outside()
    finally:
        simple()


@pytest.mark.parametrize("fn", [simple, raised_again, from_a_handler, with_finally])
def test_tracebacks_show_the_frames_that_the_exception_went_through(fn: Any) -> None:
    def program() -> Any:
        return caught_inside(fn)

    expected = program()
    compiled = dynajit.compile(program, backend="eager")
    assert compiled() == compiled() == expected
    assert [name for name, _ in expected][:2] == ["caught_inside", fn.__name__]
