"""Instances of subclasses of `str`, `bytes`, `int`, `float`, `tuple` and `frozenset`: each method and operator written
in C gives what it gives in eager mode, of that very class: the instance itself at times, at times its builtin part."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit


class Text(str):
    pass


class Bytes(bytes):
    pass


class Int(int):
    pass


class Float(float):
    pass


class Items(tuple[Any, ...]):
    pass


class Frozen(frozenset[Any]):
    pass


INSTANCES = (Text("a b"), Bytes(b"a b"), Int(3), Float(2.0), Items((1, 2)), Frozen({1}))
PLAIN: dict[type, tuple[Any, ...]] = {
    Text: ("", "q", " "),
    Bytes: (b"", b"q", b" "),
    Int: (0, 1),
    Float: (0.0, 1.0),
    Items: ((), (3,)),
    Frozen: (frozenset(), frozenset({1})),
}
OPERATORS = (operator.add, operator.mul, operator.or_, operator.and_, operator.sub, operator.pow, max, min)
# they ask for what no program asks a text
_LEFT_OUT = {"from_bytes", "fromhex", "maketrans"}


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


def typed(value: Any) -> Any:
    """The value with its type, and those of its items."""
    items = [*map(typed, value)] if type(value) in (tuple, list) else repr(value)
    return type(value), items


def calls_of(instance: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """What can be asked of an instance, by name: its methods, and operators with it on either side."""
    others = PLAIN[type(instance)]
    for name in dir(type(instance).__base__):
        if not name.startswith("_") and name not in _LEFT_OUT and callable(getattr(instance, name)):
            for given in ((), *zip(others), *itertools.product(others, repeat=2), (0,), (1,)):
                yield f"{name}{given}", lambda it, name=name, given=given: getattr(it, name)(*given)
    for function, other in itertools.product(OPERATORS, (*others, 1)):
        yield f"{function.__name__} {other!r}", lambda it, function=function, other=other: function(it, other)
        yield f"{other!r} {function.__name__}", lambda it, function=function, other=other: function(other, it)
    yield "[:]", lambda it: it[:]
    yield "plain", lambda it: type(it).__base__(it)
    yield "or", lambda it: it or 1


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda instance: type(instance).__name__)
def test_what_c_code_gives_for_an_instance_of_a_subclass(instance: Any) -> None:
    wrong = []
    for name, ask in calls_of(instance):
        expected = outcome(lambda ask=ask: ask(instance))
        if isinstance(expected, type):
            continue

        def asked(x: Tensor, it: Any, ask: Callable[[Any], Any] = ask) -> Any:
            return x + 1, ask(it)

        dynajit.reset()
        _, found = dynajit.compile(asked, backend="eager")(torch.ones(2), instance)
        if typed(found) != typed(expected) or (found is instance) != (expected is instance):
            wrong.append((name, typed(found), typed(expected)))
    assert not wrong
