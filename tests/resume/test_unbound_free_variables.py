"""Free variables that nothing was assigned to yet, in code that goes on after a break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


def told(value: Any) -> Any:
    print("told", value)
    return value


def in_a_generator_expression(x: Tensor, late: bool) -> Any:
    found = next((i for i in range(5) if i > found), 4)  # type: ignore[has-type] # noqa: F821
    return x + found


def behind_a_break(x: Tensor, late: bool) -> Any:
    def inner(y: Tensor) -> Tensor:
        told(1)
        return y + factor

    if late:
        factor = 2
    return inner(x * 2)


def handled_inside(x: Tensor, late: bool) -> Any:
    def inner(y: Tensor) -> Any:
        for i in range(3):
            told(i)
            try:
                y = y + factor
            except NameError as error:
                return y, type(error), str(error), error.name, error.__context__
        return y

    if late:
        factor = 2
    return inner(x * 2)


def in_a_generator(x: Tensor, late: bool) -> Any:
    def inner(y: Tensor) -> Iterator[Tensor]:
        yield told(y)
        with torch.no_grad():
            yield y + factor

    if late:
        factor = 2
    found = []
    try:
        for item in inner(x):
            found.append(told(item))
    except UnboundLocalError:
        return "a local", found
    except NameError as error:
        return str(error), found
    return found


def deleted(x: Tensor, late: bool) -> Any:
    def inner() -> None:
        nonlocal factor
        told("del")
        del factor

    factor = 1
    inner()
    if late:
        return x
    inner()
    return x


@pytest.mark.parametrize("fn", [in_a_generator_expression, behind_a_break, handled_inside, in_a_generator, deleted])
def test_like_eager(fn: Callable[..., Any]) -> None:
    for late in (False, True, False):
        assert_same(fn, torch.ones(3), late)
