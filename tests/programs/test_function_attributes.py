"""Attributes of functions and partial objects: read, written, deleted, copied by functools.wraps."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.ones(2)


def test_wraps_with_other_assignments_and_updates() -> None:
    def program(x: Tensor) -> Any:
        def wrapped(a: int) -> int:
            "doc"
            return a

        wrapped.attr = "attribute"  # type: ignore[attr-defined]
        wrapped.table = {"a": 1}  # type: ignore[attr-defined]

        @functools.wraps(wrapped, assigned=(), updated=())
        def nothing(b: str) -> str:
            return b

        @functools.wraps(wrapped, assigned=("attr", "missing"), updated=("table",))
        def some(b: str) -> str:
            return b

        some_table = some.table  # type: ignore[attr-defined]
        return x + 1, nothing.__name__, nothing.__annotations__, some.__name__, some_table, vars(nothing).keys()

    def changed(x: Tensor) -> Any:
        try:
            return program(x)
        except AttributeError as error:
            return x, str(error), error.name

    assert_same(changed, X, breaks=0)


def test_wraps_takes_annotations_and_the_wrapped_functions_attributes() -> None:
    def program(x: Tensor) -> Any:
        def inner(a: int) -> int:
            "doc"
            return a

        inner.attr = [1]  # type: ignore[attr-defined]

        @functools.wraps(inner)
        def outer(b: str) -> str:
            return b

        same = outer.__annotations__ is inner.__annotations__, outer.attr is inner.attr  # type: ignore[attr-defined]
        return x + 1, outer.__doc__, outer.__qualname__[-5:], outer.__module__, sorted(vars(outer)), same

    assert_same(program, X, graphs=1, breaks=0)


def test_attributes_are_deleted_and_missed() -> None:
    def program(x: Tensor) -> Any:
        def f() -> None:
            "doc"

        f.a = 1  # type: ignore[attr-defined]
        f.__dict__["b"] = 2
        del f.a  # type: ignore[attr-defined]
        del f.__doc__
        found = [hasattr(f, "a"), f.b, f.__doc__, f.__dict__]  # type: ignore[attr-defined]
        try:
            f.a  # type: ignore[attr-defined] # noqa: B018
        except AttributeError as error:
            found += [str(error), error.name, error.obj is f]
        return x + 1, found, f

    def shown(x: Tensor) -> Any:
        y, found, f = program(x)
        return y, found, vars(f), f.__doc__

    assert_same(shown, X, graphs=1, breaks=0)


def test_attributes_of_a_function_from_outside() -> None:
    def run(compiled: bool) -> Any:
        def counted() -> None: ...

        counted.calls = 1  # type: ignore[attr-defined]
        counted.names = ["a"]  # type: ignore[attr-defined]

        def program(x: Tensor) -> Any:
            counted.calls += 1  # type: ignore[attr-defined]
            counted.names.append("b")  # type: ignore[attr-defined]
            counted.__doc__ = "new"
            counted.__name__ = "other"
            del counted.names  # type: ignore[attr-defined]
            return x * counted.calls, counted.__doc__  # type: ignore[attr-defined]

        call = dynajit.compile(program, backend="eager") if compiled else program
        return call(X)[0].tolist(), vars(counted), counted.__doc__, counted.__name__

    assert run(True) == run(False)


def test_keywords_of_a_partial_change() -> None:
    def program(x: Tensor) -> Any:
        def capture(*args: Any, **kwargs: Any) -> Any:
            return args, kwargs

        made = functools.partial(capture, 1, b=x)
        made.keywords["c"] = 3
        made.attr = []  # type: ignore[attr-defined]
        again = functools.partial(made, 5, c=4)
        return x + 1, made(2)[1]["c"], again(6)[0], made.keywords, made.attr, vars(made)  # type: ignore[attr-defined]

    assert_same(program, X, graphs=1, breaks=0)


def test_a_partial_and_its_parts_stay_one_object() -> None:
    @functools.partial(dynajit.compile, backend="eager")
    def program(x: Tensor) -> Any:
        made = functools.partial(max, 1, key=abs)
        made.note = [1]  # type: ignore[attr-defined]
        return x + 1, made, made.keywords, made.note  # type: ignore[attr-defined]

    _, made, keywords, note = program(X)
    assert made.keywords is keywords and made.note is note and keywords == {"key": abs}


def test_lists_kept_on_a_cached_function_are_shared() -> None:
    @functools.lru_cache
    def cached(n: int) -> int:
        return n

    cached.log = []  # type: ignore[attr-defined]

    @functools.partial(dynajit.compile, backend="eager")
    def program(x: Tensor) -> Any:
        cached.log.append(1)  # type: ignore[attr-defined]
        return x + 1, cached.log  # type: ignore[attr-defined]

    assert program(X)[1] is cached.log and cached.log == [1]  # type: ignore[attr-defined]


def test_annotations_of_wrappers() -> None:
    """Where annotations are functions (CPython 3.14), `functools.wraps` copies those."""

    def program(x: Tensor) -> Any:
        def bare(y):  # type: ignore[no-untyped-def]
            return y + 1

        def typed(y: Tensor, n: int = 2) -> Tensor:
            return y * n

        @functools.wraps(bare)
        def first(y: Tensor) -> Tensor:
            return bare(y)  # type: ignore[no-untyped-call,no-any-return]

        @functools.wraps(typed)
        def second(*args, **kwargs):  # type: ignore[no-untyped-def]
            return typed(*args, **kwargs)

        found = [sorted(f.__annotations__) for f in (bare, typed, first, second)]
        typed.__annotations__ = {"y": "other"}
        return second(first(x)), found, typed.__annotations__

    assert_same(program, torch.ones(2))
