"""Breaks at instructions that read, write or delete a variable: in the code that runs them it may have another name."""

# ruff: noqa: F821, B023 (unbound names and late binding are what is tested)
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same


class Mortal:
    """The instruction after the one that lets go of it breaks: its finaliser might have done anything."""

    def __del__(self) -> None:
        pass


def stored(x: Tensor, mortal: Any) -> Tensor:
    def read() -> Tensor:
        return made

    y = x + 1
    del mortal
    made = y
    return read() * 2


def parameter_stored(x: Tensor, mortal: Any) -> Tensor:
    def read() -> Tensor:
        return x

    y = x + 1
    del mortal
    x = y
    return read() * 2


def deleted(x: Tensor, mortal: Any) -> Any:
    made = x + 1

    def read() -> Tensor:
        return made

    y = read() + 1
    del mortal
    del made
    try:
        return read() * 2
    except NameError as error:
        return str(error), error.name, y


def parameter_deleted(x: Tensor, mortal: Any) -> Any:
    def read() -> Tensor:
        return x

    y = read() + 1
    del mortal
    del x
    try:
        return read() * 2
    except NameError as error:
        return str(error), error.name, y


def read_behind(x: Tensor, mortal: Any) -> Any:
    def kept() -> Tensor:
        return made

    made = x + 1
    del mortal
    return made, kept()


def in_a_comprehension(x: Tensor, mortal: Any) -> Any:
    def kept() -> Any:
        return i

    i = 7
    del mortal
    return [(i * 2, lambda: i) for i in (x, x + 1)][1][1](), i, kept()


def put_back(x: Tensor, mortal: Any) -> Any:
    made = [mortal * 2 for item in (x, x + 1) for mortal in (item,)]
    return made, type(mortal)


@pytest.mark.parametrize(
    "fn", [stored, parameter_stored, deleted, parameter_deleted, read_behind, in_a_comprehension, put_back]
)
def test_like_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.ones(3), Mortal())


def read_after_delete(x: Tensor) -> Any:
    try:
        del x
        x = x + 1
    except LookupError:
        print("not reached")
    return lambda: x


def deleted_after_delete(x: Tensor) -> Any:
    del x
    print("break")
    del x
    return lambda: x


def caught(x: Tensor) -> Any:
    y = x * 2
    try:
        del x
        x = x + 1
    except UnboundLocalError as error:
        print(error, error.name, error.__traceback__.tb_next)  # type: ignore[union-attr]
    x = y
    return x, (lambda: x)()


def caught_by_the_caller(x: Tensor) -> Any:
    try:
        return read_after_delete(x * 2)
    except NameError as error:
        return type(error), str(error), error.name, error.__traceback__.tb_next.tb_lineno  # type: ignore[union-attr]


@pytest.mark.parametrize("fn", [read_after_delete, deleted_after_delete, caught, caught_by_the_caller])
def test_parameters_in_cells_deleted(fn: Callable[..., Any]) -> None:
    """The parameter is the cell itself: where it is empty nothing but the program's own error is raised."""
    assert_same(fn, torch.ones(3))
