"""What libraries do besides tensors: views that objects keep, pickled keys, modules by name, texts of a class."""

from __future__ import annotations

import collections
import functools
import importlib
import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.arange(3.0)


class Holder:
    """Keeps views of a dictionary."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        self.mapping = kind(a=1, b=2)
        self.keys = self.mapping.keys()
        self.values = self.mapping.values()
        self.items = self.mapping.items()


def looks_at_views(x: Tensor, held: Holder) -> Any:
    named = (
        len(held.keys),
        "a" in held.keys,
        held.keys & {"a"},
        list(held.keys),
        bool(held.values),
        ("b", 2) in held.items,
    )
    return x * sum(held.values), named, ("b", 2) in held.items, sorted(held.items), held.keys, held.items is held.items


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_views_that_an_object_keeps(kind: Callable[..., Any]) -> None:
    held = Holder(kind)
    assert_same(lambda x: looks_at_views(x, held), X, graphs=1, breaks=0)


def test_a_view_shows_what_becomes_of_the_dictionary() -> None:
    held = Holder(dict)
    compiled = dynajit.compile(looks_at_views, fullgraph=True)
    for value in (1, 5, 7):
        held.mapping["a"] = value
        held.mapping[f"k{value}"] = 0
        assert repr(compiled(X, held)) == repr(looks_at_views(X, held))


def test_a_view_is_of_what_the_function_writes() -> None:
    held = Holder(dict)

    def write(x: Tensor) -> Any:
        held.mapping.pop("c", None)
        held.mapping["c"] = x
        return len(held.keys), "c" in held.keys, [*held.values][-1] + 1

    assert_same(write, X, graphs=1, breaks=0)


def test_plain_data_is_pickled() -> None:
    def keys(x: Tensor, kwargs: dict[str, Any], name: str) -> Any:
        return x + 1, pickle.dumps({}), pickle.dumps(kwargs), pickle.dumps((1, 2.5, None, name), protocol=2)

    assert_same(keys, X, {"z": 1, "w": [2, "q"]}, "s", graphs=1, breaks=0)


def test_equal_texts_are_pickled_for_real() -> None:
    """Where two texts are one object, the bytes say so."""

    def keys(x: Tensor, first: str, second: str) -> Any:
        return x + 1, pickle.dumps([first, second])

    text = "".join(["la", "yer"])
    compiled = dynajit.compile(keys)
    for second in (text, "".join(["lay", "er"]), text):
        assert compiled(X, text, second)[1] == keys(X, text, second)[1]


def test_modules_by_name() -> None:
    def ask(x: Tensor) -> Any:
        return x * importlib.import_module("math").sqrt(4.0), importlib.import_module(".abc", "collections").Sequence

    assert_same(ask, X, graphs=1, breaks=0)


UNREAD: list[Any] = [(1, 2, "a"), [1, (2, {"a": 3})], {"a": [1]}, torch.Size([2, 3])]


@pytest.mark.parametrize("given", UNREAD, ids=repr)
def test_texts_of_containers_that_nobody_read(given: Any) -> None:
    def texts(x: Tensor, given: Any) -> Any:
        return x + 1, f"{given}", f"{given!r:>30}", str(given), "{}".format(given), json.dumps(given)  # noqa: UP032

    assert_same(texts, X, given, graphs=1, breaks=0)


def test_bound_calls() -> None:
    one_more = functools.partial(torch.add, other=1)

    def calls(x: Tensor) -> Any:
        return one_more.__call__(x), functools.partial(torch.mul, x).__call__(2), x.sin.__call__()

    assert_same(calls, X)


class Text(str):
    __slots__ = ()


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        return self.upper()


NAME = Text("layer12")
PATTERN = re.compile(r"layer(\d+)")


def test_patterns_are_looked_for_in_a_text_of_a_class() -> None:
    def look(x: Tensor) -> Any:
        found = re.match(r"layer(\d+)", Text("layer12"))
        again = PATTERN.search(NAME)
        assert found is not None and again is not None
        kinds = type(found.string), again.string is NAME, type(again.group(0))
        return x * int(found.group(1)), kinds, again.span(), re.sub("1", "2", NAME), re.split("y", NAME)

    assert_same(look, X, graphs=1, breaks=0)


def test_a_class_with_a_text_of_its_own() -> None:
    def look(x: Tensor) -> Any:
        return x + 1, re.findall("a", Loud("aa")), re.sub("a", "b", Loud("xa"))

    assert_same(look, X)


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_of_what_gives_them_once(dynamic: bool) -> None:
    def sizes(x: Tensor) -> Any:
        doubled = torch.Size(size * 2 for size in x.shape)
        return torch.ones(doubled) * 2, doubled, torch.Size(map(int, x.shape)), torch.Size({3: 0}), torch.Size(range(2))

    assert_same(sizes, X, graphs=1, breaks=0, dynamic=dynamic)


def test_sizes_that_torch_refuses_are_read_to_their_end() -> None:
    def refused(x: Tensor) -> Any:
        given = (size if size < 4 else "five" for size in range(9))
        try:
            torch.Size(given)  # type: ignore[arg-type]
        except TypeError as error:
            return x + 1, str(error), list(given)

    assert_same(refused, X)
