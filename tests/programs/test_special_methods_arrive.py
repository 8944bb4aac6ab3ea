"""A class is given a special method, or loses one, between calls: the answer is never the old one."""

import enum
import functools
import itertools
import math
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import outside, same
from torch import nn

import dynajit
from dynajit.testing import assert_same, compare

x = torch.arange(3.0)


def deleted(thing: Any) -> Any:
    del thing.v
    return hasattr(thing, "v")


def assigned(thing: Any) -> Any:
    thing.v = 5
    return thing.v


def added_in_place(thing: Any) -> Any:
    thing += 1
    return thing if isinstance(thing, int) else type(thing).__name__


def other(thing: Any) -> Any:
    return object.__new__(type(thing))


def entered(thing: Any) -> Any:
    with thing as inside:
        return inside


def unpacked(thing: Any) -> Any:
    first, *rest = thing
    return first, rest


# what is done, the special method, and what it returns for whatever it is given
WAYS: dict[str, tuple[Callable[[Any], Any], str, Callable[..., Any]]] = {
    "del attribute": (deleted, "__delattr__", lambda self, name: None),
    "set attribute": (assigned, "__setattr__", lambda self, name, value: None),
    "read attribute": (lambda thing: thing.v, "__getattribute__", lambda self, name: 9),
    "missing attribute": (lambda thing: thing.w, "__getattr__", lambda self, name: name),
    "default": (lambda thing: getattr(thing, "w", 0), "__getattr__", lambda self, name: name),
    "truth by len": (bool, "__len__", lambda self: 0),
    "truth": (lambda thing: 1 if thing else 2, "__bool__", lambda self: False),
    "len": (len, "__len__", lambda self: 3),
    "call": (lambda thing: thing(1), "__call__", lambda self, value: value + 1),
    "callable": (callable, "__call__", lambda self: 1),
    "in": (lambda thing: 2 in thing, "__contains__", lambda self, item: True),
    "in, iterated": (lambda thing: 2 in thing, "__iter__", lambda self: iter([1, 2])),
    "iteration": (lambda thing: [*thing], "__iter__", lambda self: iter([1, 2])),
    "iteration by place": (lambda thing: [*thing], "__getitem__", lambda self, place: [1, 2][place]),
    "unpacking": (unpacked, "__iter__", lambda self: iter([1, 2])),
    "reversed": (lambda thing: [*reversed(thing)], "__reversed__", lambda self: iter([3])),
    "item": (lambda thing: thing[1], "__getitem__", lambda self, key: key),
    "set item": (lambda thing: operator.setitem(thing, 1, 2), "__setitem__", lambda self, key, value: None),
    "del item": (lambda thing: operator.delitem(thing, 1), "__delitem__", lambda self, key: None),
    "==": (lambda thing: thing == 1, "__eq__", lambda self, other: "equal"),
    "!=": (lambda thing: thing != 1, "__ne__", lambda self, other: "other"),
    "!= by ==": (lambda thing: thing != 1, "__eq__", lambda self, other: True),
    "<": (lambda thing: thing < 1, "__lt__", lambda self, other: True),
    "reflected >": (lambda thing: 1 > thing, "__lt__", lambda self, other: True),
    "hash": (lambda thing: {type(thing).__new__(object): 1, 7: 2}.get(thing), "__hash__", lambda self: 7),
    "key": (lambda thing: [*{other(thing): 1, thing: 2}.values()], "__eq__", lambda self, other: True),
    "key by hash": (lambda thing: {thing: 1}, "__hash__", None),
    "+": (lambda thing: thing + 1, "__add__", lambda self, other: 10),
    "reflected +": (lambda thing: 1 + thing, "__radd__", lambda self, other: 10),
    "+=": (added_in_place, "__iadd__", lambda self, other: 10),
    "-": (lambda thing: -thing, "__neg__", lambda self: 4),
    "abs": (abs, "__abs__", lambda self: 4),
    "round": (round, "__round__", lambda self: 4),
    "floor": (math.floor, "__floor__", lambda self: 4),
    "int": (int, "__int__", lambda self: 4),
    "float": (float, "__float__", lambda self: 4.0),
    "index": (lambda thing: [1, 2][thing], "__index__", lambda self: 1),
    "str": (lambda thing: str(thing)[:3], "__str__", lambda self: "text"),
    "str by repr": (lambda thing: str(thing)[:3], "__repr__", lambda self: "text"),
    "format": (lambda thing: f"{thing:>3}", "__format__", lambda self, spec: spec),
    "with": (entered, "__enter__", lambda self: 1),
    "next": (lambda thing: next(thing, 7), "__next__", lambda self: 1),
    "init": (lambda thing: type(thing)().__dict__, "__init__", lambda self: self.__dict__.update(v=1)),
    "new": (lambda thing: type(type(thing)()).__name__, "__new__", lambda cls: 1),
}


def outcome(fn: Callable[..., Any], thing: Any) -> Any:
    attributes = object.__getattribute__(thing, "__dict__")
    attributes.update(v=1)
    try:
        return fn(x, thing), attributes
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("way", WAYS)
def test_special_methods(way: str) -> None:
    class Thing:
        def __exit__(self, *error: object) -> None:
            pass

    check(lambda: object.__new__(Thing), *WAYS[way])


# of subclasses of the library's classes, which have such a method
OF_BASES: dict[str, tuple[Callable[[type], Any], type, Callable[[Any], Any], str, Callable[..., Any]]] = {
    "module, method": (lambda kind: kind(), nn.Module, lambda m: m._get_name(), "_get_name", lambda self: "other"),
    "module, call": (lambda kind: kind(1, 1), nn.Linear, lambda m: m(x[:1]), "__call__", lambda self, t: t - 9),
    "module, forward": (lambda kind: kind(1, 1), nn.Linear, lambda m: m(x[:1]), "forward", lambda self, t: t - 9),
    "module, write": (lambda kind: kind(), nn.Module, assigned, "__setattr__", lambda self, name, value: None),
    "dict, get": (lambda kind: kind(a=1), dict, lambda d: d.get("a"), "get", lambda self, key: 7),
    "dict, item": (lambda kind: kind(a=1), dict, lambda d: d["a"], "__getitem__", lambda self, key: 7),
    "dict, missing": (lambda kind: kind(a=1), dict, lambda d: d["b"], "__missing__", lambda self, key: 7),
    "dict, len": (lambda kind: kind(a=1), dict, len, "__len__", lambda self: 7),
    "dict, keys": (lambda kind: kind(a=1), dict, lambda d: [*d], "__iter__", lambda self: iter("xy")),
    "dict, ==": (lambda kind: kind(a=1), dict, lambda d: d == {"a": 1}, "__eq__", lambda self, other: False),
    "list, append": (lambda kind: kind([1]), list, lambda x: x.append(2), "append", lambda self, item: 7),
    "list, truth": (lambda kind: kind([1]), list, bool, "__bool__", lambda self: False),
    "int, +": (lambda kind: kind(3), int, lambda i: i + 1, "__add__", lambda self, other: 7),
    "int, hash": (lambda kind: kind(3), int, lambda i: {i: 1}.get(3), "__hash__", lambda self: 7),
    "str, upper": (lambda kind: kind("a"), str, lambda s: s.upper(), "upper", lambda self: "other"),
    "str, str": (lambda kind: kind("a"), str, lambda s: [str(s), f"{s}"], "__str__", lambda self: "other"),
    "error, text": (lambda kind: kind("a"), Exception, str, "__str__", lambda self: "other"),
}


@pytest.mark.parametrize("way", OF_BASES)
def test_methods_of_bases(way: str) -> None:
    make, base, *rest = OF_BASES[way]
    Derived = type("Derived", (base,), {"__module__": __name__})
    check(lambda: make(Derived), *rest)


def check(make: Callable[[], Any], do: Callable[[Any], Any], name: str, method: Callable[..., Any]) -> None:
    """Eager and compiled agree, whether the class of what is made has the method or not."""
    kind = type(make())

    def program(t: torch.Tensor, thing: Any) -> Any:
        return t + 1, do(thing)

    compiled = dynajit.compile(program, backend="eager")
    for _ in range(2):
        for there in (False, True):
            if there:
                setattr(kind, name, method)
            for _ in range(2):
                torch.manual_seed(0)
                expected = outcome(program, make())
                torch.manual_seed(0)
                compare(outcome(compiled, make()), expected)
        delattr(kind, name)


def test_errors_of_getattr_know_the_name_and_the_object() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> Any:
            outside(name)
            raise AttributeError("no such thing", 23)

    def program(lazy: Lazy) -> Any:
        try:
            return lazy.anything
        except AttributeError as error:
            outside()
            return error.args, error.name, error.obj is lazy

    assert same(program, Lazy())[1:] == ("anything", True)


def test_objects_made_here_are_filled_without_their_own_getattribute() -> None:
    class Proxy:
        def __init__(self, target: Any) -> None:
            self._target = target

        def __getattribute__(self, name: str) -> Any:
            if name == "_target":
                return object.__getattribute__(self, name)
            return getattr(self._target, name)

    def program() -> Any:
        proxy = Proxy([1, 2])
        outside(proxy)
        return proxy.copy(), isinstance(proxy, list)

    assert same(program) == ([1, 2], True)


def test_modules_that_find_their_attributes_themselves() -> None:
    log = []

    class Watched(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            log.append(name)
            return types.ModuleType.__getattribute__(self, name)

    def program(module: Any) -> Any:
        module.number = 12
        return module.number

    module = Watched("watched")
    assert same(program, module) == 12
    assert set(log) == {"number"}


def test_members_that_can_not_be_written() -> None:
    def program(reference: Any) -> Any:
        try:
            reference.__callback__ = None
        except AttributeError as error:
            return str(error)
        return "written"

    same(program, weakref.ref(outside, lambda _: None))


class Odd(enum.Enum):
    """Its text can't be made before it is finished."""

    MEMBER = 1

    def __repr__(self) -> str:
        raise AssertionError("a member's text was asked for")


def test_new_as_a_class_method() -> None:
    class Odd:
        @classmethod
        def __new__(cls, *args: Any) -> Any:
            return args

    def program() -> Any:
        return Odd(1, 2)

    assert same(program) == (Odd, 1, 2)


def test_methods_of_another_class() -> None:
    class Number(int):
        __add__ = str.__add__  # type: ignore[assignment]

    def program(number: Number) -> str:
        try:
            return str(number + number)
        except TypeError as error:
            return str(error)

    same(program, Number(1))


def test_an_attribute_of_a_class_written_in_c() -> None:
    def program() -> Any:
        try:
            itertools.count.dynajit_attribute = 1  # type: ignore[attr-defined]
        except TypeError:
            return "refused"
        return "taken"

    assert same(program) == "refused"


def test_messages_do_not_run_the_code_of_members() -> None:
    def program(member: Any) -> Any:
        member.note = outside(3)
        return member.note

    assert same(program, Odd.MEMBER) == 3


def filled(cls: type, number: int) -> Any:
    made = object.__new__(cls)
    made.__dict__.update(number=number)
    return made


class Filling:
    def __call__(self, cls: type, number: int) -> Any:
        return filled(cls, number)


class Giving:
    def __get__(self, owner: Any, cls: Any) -> Any:
        return lambda given, number: (owner is None, given is cls, number)


MAKERS: list[tuple[Callable[[], Any], int]] = [
    (lambda: functools.cache(filled), 2),  # which keeps what is made
    (lambda: functools.partial(filled), 0),
    (lambda: staticmethod(functools.partial(filled)), 0),
    (Filling, 0),
    (Giving, 0),
    (lambda: dynajit.compile(filled, backend="eager"), 0),
]


@pytest.mark.parametrize(("make", "breaks"), MAKERS)
def test_new_is_anything_that_can_be_called(make: Callable[[], Any], breaks: int) -> None:
    kind: Any = type("Made", (), {"__new__": make()})

    def program(t: torch.Tensor) -> Any:
        one, other = kind(3), kind(3)
        return t + 1, one is other, one if type(one) is tuple else (type(one) is kind, one.__dict__)

    assert_same(program, x, graphs=1, breaks=breaks)
