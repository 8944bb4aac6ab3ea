"""Functions of Python's library whose code is traced, or that are run while tracing, without a break."""

from __future__ import annotations

import functools
import inspect
import os.path
import re
import string
import typing
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.arange(6.0).reshape(2, 3)
DIGITS = re.compile(r"(\d+)")


class Thing:
    factor = 2


THING = Thing()
REFERENCE = weakref.ref(THING)
BY_NAME: Any = weakref.WeakValueDictionary({"thing": THING})


def checked(fn: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if isinstance(value, int) and value <= 0:
                raise ValueError(name)
        return fn(*bound.args, **bound.kwargs)

    return wrapper


@checked
def scaled(x: Tensor, factor: int = 2, *more: int, shift: int = 3) -> Tensor:
    return x * factor + sum(more) + shift


def bound_arguments(x: Tensor) -> Any:
    try:
        scaled(x, -1)
    except ValueError as error:
        wrong = str(error)
    return scaled(x), scaled(x, 2, 3, 4, shift=5), wrong


def not_bound(x: Tensor) -> Any:
    try:
        inspect.signature(scaled).bind()
    except TypeError as error:
        return x + 1, str(error)


def weak_references(x: Tensor) -> Any:
    found = BY_NAME.get("nothing"), "thing" in BY_NAME
    return x * REFERENCE().factor + BY_NAME["thing"].factor, found, REFERENCE() is THING


def templates(x: Tensor) -> Any:
    made = string.Template("a $b ${c}").substitute(b=1, c="z"), string.Template("$q $$").safe_substitute()
    found: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        found.append(match[1])
        return f"<{match[1]}>"

    return x + 1, made, DIGITS.sub(replaced, "a1b22"), found, [match.span() for match in DIGITS.finditer("1 22")]


def paths(x: Tensor) -> Any:
    return (
        x + 1,
        os.path.join("a", "b"),
        os.path.basename("/a/b.c"),
        os.path.normpath("a/../b"),
        os.path.splitext("b.c"),
    )


def annotated(x: Tensor) -> Tensor:
    typing.assert_type(x, Tensor)
    return x + 1


@pytest.mark.parametrize("program", [bound_arguments, not_bound, weak_references, templates, paths, annotated])
def test_no_break(program: Callable[..., Any]) -> None:
    assert_same(program, X, graphs=1, breaks=0, recompiles=0)


def test_a_weak_reference_whose_object_the_program_drops() -> None:
    held = [Thing()]
    reference = weakref.ref(held[0])

    def dropping(x: Tensor) -> Any:
        before = reference() is None
        held.clear()
        return x + 1, before, reference() is None

    compiled = dynajit.compile(dropping, backend="eager")
    assert compiled(X)[1:] == (False, True)
    assert compiled(X)[1:] == (True, True)


def test_translate_by_a_table() -> None:
    table = str.maketrans("", "", ".,!")
    held: dict[int, Any] = {ord("a"): "b"}

    def f(x: torch.Tensor, text: str) -> Any:
        made = str.maketrans({"x": "yy", "z": None})
        words = text.lower().translate(table).split()
        try:
            text.translate({ord("A"): 1.5})
            error = ""
        except TypeError as caught:
            error = str(caught)
        return x * len(words), words, text.translate(made), text.translate(held), str.translate(text, held), error

    assert_same(f, torch.ones(2), "Ab, xz a!", graphs=1, breaks=0)
    run = dynajit.compile(f, backend="eager")
    for number in range(4):
        held[ord("a")] = [None, "c", 0x64, "e"][number]
        assert run(torch.ones(2), "a, xz a!")[1:] == f(torch.ones(2), "a, xz a!")[1:]
