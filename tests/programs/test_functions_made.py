"""Functions, enumerations and iterators that a compiled function makes have all that CPython gives them."""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit


def annotated(x: torch.Tensor) -> Any:
    def inner(a: "torch.Tensor", b, *, c: "int" = 1) -> "str": ...  # type: ignore[no-untyped-def]

    before = dict(inner.__annotations__)
    inner.__annotations__["b"] = "more"
    assert inner.__annotations__ is inner.__annotations__
    return x + len(inner.__annotations__), before, inner.__annotations__


def annotations_seen_later(x: torch.Tensor) -> Any:
    def inner(a: "torch.Tensor", b) -> "str": ...  # type: ignore[no-untyped-def]

    y = x * 2
    print(end="")
    return y + 1, inner.__annotations__


def member_dictionary(x: torch.Tensor) -> Any:
    return x + 1, sorted(Colour.RED.__dict__), Colour["RED"].__dict__["_value_"]


def simple_enum(x: torch.Tensor) -> Any:
    made = enum._simple_enum(etype=enum.IntEnum)(type("Made", (object,), {"a": 1, "b": 2}))  # type: ignore[attr-defined]
    return x + made.b, [(member.name, member.value) for member in made], made.__name__


def weak_members(x: torch.Tensor) -> Any:
    kept = [Thing() for _ in range(3)]
    members = weakref.WeakSet(kept)
    count = 0
    for member in members:
        assert member in kept
        count += 1
    for member in weakref.WeakSet(thing for thing in kept):
        count += member in kept
    return x + count, count


def queue(x: torch.Tensor) -> Any:
    made: collections.deque[Any] = collections.deque()
    for number in range(6):
        made.append(number)
        made.appendleft(x + number)
    iterator = iter(made)
    made.append(7)
    try:
        next(iterator)
    except RuntimeError as error:
        return made.popleft(), made.pop(), list(made), str(error)


def init_returns(x: torch.Tensor) -> Any:
    class Wrong:
        def __init__(self) -> None:
            return 10  # type: ignore[return-value]

    try:
        Wrong()
    except TypeError as error:
        return x + 1, str(error)
    return x


def other_subclass_made(x: torch.Tensor) -> Any:
    return x + 1, Base(3).kept


def set_without_get(x: torch.Tensor) -> Any:
    obj = WithDescriptor()
    before = obj.a is vars(WithDescriptor)["a"]
    obj.a = 42
    return x + obj.a, before


def another_setattr(x: torch.Tensor) -> Any:
    obj = Odd()
    obj.y = 42
    return x + obj["y"], dict(obj)


def nameless_module(x: torch.Tensor) -> Any:
    return x + 1, hasattr(NAMELESS, "absent")


def replaced_len(x: torch.Tensor) -> Any:
    old = builtins.len
    try:
        builtins.len = functools.lru_cache(lambda items: old(items) + 1)
        print(end="")
        return x + len((1, 2)), len("abc")
    finally:
        builtins.len = old


class Setter:
    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__["a"] = value


class WithDescriptor:
    a: Any = Setter()


class Odd(dict[Any, Any]):
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


class Base:
    kept: Any = None

    def __new__(cls, kept: Any) -> Any:
        return object.__new__(Derived)


class Derived(Base):
    def __init__(self, kept: Any) -> None:
        self.kept = kept


NAMELESS = types.ModuleType("gone")
del NAMELESS.__name__


class Colour(enum.Enum):
    RED = 1


class Thing:
    pass


@pytest.mark.parametrize(
    "program",
    [
        *(annotated, annotations_seen_later, member_dictionary, simple_enum, weak_members, queue, init_returns),
        *(other_subclass_made, set_without_get, another_setattr, nameless_module, replaced_len),
    ],
)
def test_same_as_eager(program: Callable[[torch.Tensor], Any]) -> None:
    x = torch.arange(3.0)
    assert str(dynajit.compile(program, backend="eager")(x)) == str(program(x))
