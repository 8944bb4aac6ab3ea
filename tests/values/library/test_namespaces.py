# mypy: ignore-errors
# (programs as users write them, without annotations)
"""Local variables by their names, and source text: whole in one graph, or run as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dynajit.testing import assert_same

X = torch.arange(4.0)
FACTOR = 3


def reads_one(x):
    y = x * 2
    return locals()["y"] + 1


def returns_all(x, k=3):
    y = x * k
    del k
    return locals()


def asks(x):
    if "z" in locals():
        return x
    z = x + 1
    return z


def lists(x):
    a, b = x * 2, 1
    return dir(), eval("b"), a, b


def formats(x):
    q = 3
    return "{q} {x.shape}".format(**locals()), x * q


def with_cells(x):
    z = 3

    def inner():
        return z * x

    return inner(), [*locals()]


def inlined(x):
    def inner(y, z=2, *rest, **named):
        w = y * z
        return locals()

    return inner(x, 2, 3, a=4)["w"] + 1, sorted(inner(x))


class Numbered(nn.Module):
    def __init__(self):
        super().__init__()
        for number in range(3):
            setattr(self, f"layer{number}", nn.Linear(4, 4))

    def forward(self, x):
        for number in range(3):
            x = eval(f"self.layer{number}")(x)
        return x


def evaluates(x):
    return x * eval("1 + 2"), eval(" torch.relu(x) * FACTOR"), eval("[i * 2 for i in range(2)]"), eval("(lambda: 3)()")


def in_dictionaries(x):
    given = {"torch": torch, "x": x}
    return eval("torch.relu(x) + y", given, {"y": 2}), "__builtins__" in given, eval("x + 1", None, {"x": x})


def runs(x):
    space = {}
    exec("a = 1 + 2\nb = a * 2\ndel a\nc = len('abc')", space)
    other = {}
    exec("from math import pi\ny = x * FACTOR", {"x": x, "FACTOR": 4}, other)
    return x * space["b"], sorted(space), other["y"], sorted(other)


def undefined(x):
    try:
        eval("nope + 1")
    except NameError as error:
        return x * 2, str(error), error.name


def raises(x):
    try:
        eval("1 // 0")
    except ZeroDivisionError as error:
        return x * 2, str(error)


def removes(x):
    try:
        exec("del q", {})
    except NameError as error:
        return x * 2, str(error)


def twice(x):
    first = locals()
    y = x + 1
    second = locals()
    return first is second, sorted(first), sorted(second), y


def asks_twice(x):
    if "z" in locals():
        return x
    z = x + 1
    return z, len(vars()), dir()


def adds_a_name(x):
    given = locals()
    given["added"] = 3
    y = x + 1
    del x
    return [*given], dir(), [*locals()], "added" in vars(), y


def evaluates_an_added_name(x):
    locals()["added"] = 3
    try:
        return x * eval("added")
    except NameError:
        return x


WHOLE = [
    asks_twice,
    adds_a_name,
    twice,
    evaluates_an_added_name,
    reads_one,
    returns_all,
    asks,
    lists,
    formats,
    with_cells,
    inlined,
    Numbered().eval(),
    evaluates,
    undefined,
    raises,
]
WHOLE += [in_dictionaries, removes]


def breaks_before(x):
    y = x * 2
    print(y.sum().item())
    return locals()["y"]


def sets_a_name(x):
    y = 1
    exec("y = 2")
    return x * y


def by_another_name(x):
    ask = locals
    return ask()["x"] * 2


def malformed(x):
    try:
        eval("x +")
    except SyntaxError as error:
        return x * 2, error.msg


def no_builtins(x):
    try:
        eval("len('a')", {"__builtins__": {}})
    except NameError as error:
        return x * 2, str(error)


def of_a_mapped(x):
    return [*map(eval, ["1 + 1", "2"])], x * 2


def function_of_its_own_globals(x):
    space = {"k": 2}
    exec("def f(y):\n    return y * k", space)
    return space["f"](x)


def imports_all(x):
    space = {}
    exec("from math import *", space)
    return x * space["pi"]


AS_IT_IS = [breaks_before, sets_a_name, malformed, of_a_mapped, function_of_its_own_globals, imports_all, runs]


@pytest.mark.parametrize("fn", WHOLE)
def test_in_one_graph(fn: Callable[..., Any]) -> None:
    assert_same(fn, X, repeat=3, graphs=1, breaks=0, recompiles=0)


@pytest.mark.parametrize("fn", [*AS_IT_IS, by_another_name, no_builtins])
def test_same_as_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, X, repeat=3)


def test_another_text_is_another_graph() -> None:
    def fn(x, text):
        return eval(text) + 1

    assert_same([(fn, (X, "x * 2")), (fn, (X, "x * 3"))][0][0], X, "x * 2", repeat=2, graphs=1, breaks=0)
    assert_same(fn, X, "x.sin()", repeat=2, graphs=1, breaks=0)
