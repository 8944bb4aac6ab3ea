"""`except*` of exceptions that were raised before the break: what is caught, what goes on outwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit


def _group() -> BaseExceptionGroup[Any]:
    return ExceptionGroup("a", [ValueError(1), TypeError(2)])


def caught_with_a_break(x: torch.Tensor) -> Any:
    match = rest = None
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), TypeError(2)])
        except* ValueError as error:
            print("caught")
            match = error
    except BaseException as error:
        rest = error
    return x + 1, match, rest


def another_is_raised(x: torch.Tensor) -> Any:
    rest = None
    made = _group()
    print("made")
    try:
        try:
            raise made
        except* ValueError:
            raise SyntaxError("bad") from None
    except BaseException as error:
        rest = error
    return x + 1, rest


def no_class_is_caught(x: torch.Tensor) -> Any:
    rest = None
    try:
        try:
            raise ValueError(1)
        except* 42:  # type: ignore[misc] # noqa: B030
            pass
    except TypeError as error:
        rest = error
    return x + 1, rest


@pytest.mark.parametrize("fn", [caught_with_a_break, another_is_raised, no_class_is_caught])
def test_what_is_caught_and_what_goes_on(fn: Callable[[torch.Tensor], Any]) -> None:
    expected = fn(torch.ones(2))
    got = dynajit.compile(fn, backend="eager")(torch.ones(2))
    assert repr(got) == repr(expected)


def test_what_no_clause_takes_leaves_the_function() -> None:
    def fn(x: torch.Tensor, made: Any) -> torch.Tensor:
        try:
            raise made
        except* ValueError:
            print("caught")
        return x + 1

    with pytest.raises(ExceptionGroup) as raised:
        dynajit.compile(fn, backend="eager")(torch.ones(2), _group())
    assert repr(raised.value) == "ExceptionGroup('a', [TypeError(2)])"
