"""Breaks in loops that change a variable whose name is also a comprehension's own: CPython 3.12 runs these inline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

NAMES = ["layers.0.w", "head", "layers.12.b"]


def told(value: Any) -> Any:
    print("told", value)
    return value


def behind_the_loop(x: Tensor, names: list[str]) -> Any:
    found = []
    for name in names:
        if m := told(name):
            found.append(m)
    return x * len(found), found, [m + "!" for m in "ab"]


def in_the_loop_and_behind(x: Tensor, names: list[str]) -> Any:
    y: Any = None
    for m in names:
        if told(m) == "head":
            break
        y = [m + "!" for m in m]
    else:
        m = ""
    return x + 1, y, [m for m in "ab" if m != "a"], m


def nested(x: Tensor, names: list[str]) -> Any:
    for m in names:
        z = [[m + m for m in told(m)] for m in names]
        w = {m: m for m in names}
    return x * len(z), z, w, m


def breaks_in_a_comprehension(x: Tensor, names: list[str]) -> Any:
    for m in names:
        y = sum([len(told(m)) for m in names])
        z = [told(m) for m in names]
    try:
        return [1 / len(m) for m in ["a", ""]]
    except ZeroDivisionError:
        return x * y, z, m


def in_closures(x: Tensor, names: list[str]) -> Any:
    for n in names:
        if told(n):
            m = n
        functions = [lambda: m for m in "ab"]  # noqa: B023
    return x, [f() for f in functions], m


def unbound(x: Tensor, names: list[str]) -> Any:
    for n in names:
        if len(told(n)) > 99:
            m = n
    a = [m + "!" for m in "ab"]
    try:
        return m
    except UnboundLocalError as e:
        return str(e), a, x + 1


def parts(x: Tensor, names: list[str]) -> Iterator[Any]:
    for m in names:
        yield x * len([m + "!" for m in m]), m
    yield x, [n + "!" for n in names], m


def in_a_generator(x: Tensor, names: list[str]) -> Any:
    it = parts(x, names)
    first = told(next(it)[1])
    return first, list(it)


def several(x: Tensor, names: list[str]) -> Any:
    table = dict(zip(names, "abc", strict=True))
    with torch.no_grad():
        t = {k: told(v) for k, v in table.items()}
    for k, _ in list(table.items()):
        w = 0
        while w < 2:
            w += 1
            print(w)
        t = {k: told(v) for k, v in table.items()}
    for _ in [1, 2]:
        t = {k: told(v) for k, v in table.items()}.get("head", x)
    return x * 2, t


def captured_by_another(x: Tensor, names: list[str]) -> Any:
    held = [(told(n), [m + "!" for m in names]) for n in names]
    return x, held, [f() for f in [lambda: m for m in "ab"]]  # noqa: B023


def captured_by_the_function(x: Tensor, names: list[str]) -> Any:
    for n in names:
        y = [told(m) for m in n]
    for m in names:
        told(m)
        later = (n for n in "ab" if n < m)
    return x, y, list(later), [m + "!" for m in "ab"], m


def free_too(x: Tensor, names: list[str]) -> Any:
    def inner(m: Tensor) -> Any:
        def rest() -> Iterator[Any]:
            yield from ([told(m) for m in names] + [m] for _ in range(2))

        y = [told(m + "?") for m in names]
        return list(rest()), y, (lambda: [told(m) for m in "ab"] + [m])()

    return inner(x + 1)


@pytest.mark.parametrize(
    "fn",
    [
        captured_by_another,
        captured_by_the_function,
        free_too,
        several,
        behind_the_loop,
        in_the_loop_and_behind,
        nested,
        breaks_in_a_comprehension,
        in_closures,
        unbound,
        in_a_generator,
    ],
)
def test_like_eager(fn: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.linspace(-1.0, 2.0, 6)
    assert_same(fn, x, NAMES)
    capsys.readouterr()
    fn(x, NAMES)
    printed = capsys.readouterr().out
    report = dynajit.explain(fn, backend="eager")(x, NAMES)
    assert capsys.readouterr().out == printed
    assert report.error is None
    assert report.graph_break_count
