"""What exceptions that a program catches say beside their text: `name`, `obj`, positions, attributes of their class."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

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
