"""Copies of instances, by everything that a class can say of how it is copied.

A class is made of each base with each feature, and of `object` with each pair; what a method of it does is seen in
the copy, so that one that was not called, or in another order, shows.
"""

import copy
import itertools
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same

BASES = {
    "object": (object, ()),
    "dict": (dict, ({"k": [1]},)),
    "list": (list, ([[1], 2],)),
    "int": (int, (3,)),
    "namespace": (types.SimpleNamespace, ()),
    "slots": (type("Slots", (), {"__slots__": ("s",)}), ()),
}


def _new(cls: type, *args: Any) -> Any:
    made = super(cls, cls).__new__(cls, *args)
    made.tag = "new"
    return made


def _getstate(self: Any) -> Any:
    return {**(super(type(self), self).__getstate__() or {}), "kept": True}


def _setstate(self: Any, state: Any) -> None:
    self.restored = state


def _getattr(self: Any, name: str) -> Any:
    if name == "__setstate__":
        return self.put_back
    raise AttributeError(name)


def _make(cls: type, part: Any) -> Any:
    made = cls.__new__(cls)
    made.made_of = part
    return made


FEATURES: dict[str, dict[str, Any]] = {
    "new": {"__new__": _new},
    "getstate": {"__getstate__": _getstate},
    "empty state": {"__getstate__": lambda self: {}},
    "no state": {"__getstate__": lambda self: None},
    "setstate": {"__setstate__": _setstate},
    "getattr": {"__getattr__": _getattr, "put_back": lambda self, state: setattr(self, "put", sorted(state))},
    "reduce": {"__reduce__": lambda self: (_make, (type(self), self.part))},
    "reduce to a name": {"__reduce__": lambda self: "name"},
    "reduce_ex": {"__reduce_ex__": lambda self, how: (_make, (type(self), how), {"part": self.part})},
    "reduce_ex by object's": {"__reduce_ex__": lambda self, how: object.__reduce_ex__(self, how)},
    "getnewargs": {"__getnewargs__": lambda self: ()},
}


def _program(how: Callable[[Any], Any], base: str, features: tuple[str, ...]) -> Callable[[Tensor], Any]:
    kind, args = BASES[base]
    space = {name: value for feature in features for name, value in FEATURES[feature].items()}
    cls = type("Copied", (kind,), space)

    def program(x: Tensor) -> Any:
        original = cls(*args)
        original.part = [1]
        if base == "slots":
            original.s = [2]
        try:
            made = how(original)
        except (TypeError, AttributeError) as error:
            return x + 1, type(error)
        told = made is original, made.__class__ is cls, getattr(made, "part", None) is original.part
        if not isinstance(made, cls):
            return x * 2, made, told
        if base == "slots":
            told = (*told, getattr(made, "s", None))
        inside = {"dict": dict.items, "list": list.__iter__, "int": lambda made: [made + 0]}.get(base)
        told = (*told, list(inside(made))[:2]) if inside is not None else told
        return x * 2, list(vars(made).items()), told

    return program


PAIRS = list(itertools.combinations(FEATURES, 2))
CASES = [(base, features) for base in BASES for features in [(), *((feature,) for feature in FEATURES)]]
CASES += [("object", pair) for pair in PAIRS]

# known to end the graph, as most with int and SimpleNamespace do; the answer is eager's all the same
_BREAKS = {
    "reduce_ex by object's",
    "getnewargs",
    ("dict", ("new",)),
    ("list", ("new",)),
    ("slots", ("getstate",)),
}


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize(("base", "features"), CASES)
def test_copies_are_made_as_the_class_says(how: Callable[[Any], Any], base: str, features: tuple[str, ...]) -> None:
    known = None if base in ("int", "namespace") or (base, features) in _BREAKS or _BREAKS.intersection(features) else 0
    assert_same(_program(how, base, features), torch.ones(3), breaks=known)


def test_copies_of_structured_results_have_all_fields() -> None:
    def f(x: torch.Tensor, moment: Any) -> Any:
        shallow, deep = copy.copy(moment), copy.deepcopy(moment)
        return x + 1, shallow.tm_zone, deep.tm_gmtoff, shallow == moment

    assert_same(f, torch.ones(2), time.struct_time([*range(1, 10), "zone", 3600]))
