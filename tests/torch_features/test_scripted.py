"""Functions that the program gave to `torch.jit.script`, and branches on random numbers that are known."""

import sys
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from dynajit.testing import assert_same

x = torch.arange(6.0).reshape(2, 3)


def _script(fn: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is no longer developed
        return torch.jit.script(fn)


def scaled(query: Tensor, factor: int) -> Tensor:
    return torch.sqrt(torch.tensor(query.size(-1), dtype=torch.float) * factor)


def joined(parts: list[Tensor]) -> Tensor:
    parts.append(parts[0])
    return torch.cat(parts)


def checked(query: Tensor, limit: float) -> Tensor:
    if limit > 2:
        raise ValueError("too large")
    return query * limit


if sys.version_info < (3, 14):  # torch scripts nothing there
    SCALED, JOINED, CHECKED = map(_script, (scaled, joined, checked))
else:
    SCALED, JOINED, CHECKED = scaled, joined, checked
scripts = pytest.mark.skipif(sys.version_info >= (3, 14), reason="torch.jit.script does not know this Python")


@scripts
def test_a_scripted_function_is_traced() -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() / SCALED(x, factor=2)

    assert_same(f, x, graphs=1, breaks=0)


@scripts
def test_a_scripted_function_of_a_container() -> None:
    def f(x: Tensor) -> Any:
        parts = [x.sin(), x]
        return JOINED(parts), parts

    assert_same(f, x, breaks=1)


@scripts
def test_a_scripted_function_that_raises() -> None:
    def f(x: Tensor, limit: float) -> Any:
        try:
            return CHECKED(x, limit)
        except torch.jit.Error:
            return x + 1

    assert_same(f, x, 1.5, then=[(x, 3.5)])


@pytest.mark.parametrize("bound", [0.0, -1, 0, 1.0, 2])
def test_random_numbers_are_within_their_bounds(bound: float) -> None:
    def f(x: Tensor) -> Any:
        found = []
        for one in (torch.rand([]) < bound, torch.rand(()) >= bound):
            if one:
                found.append(1)
            else:
                x = x * 2
        return x, found, torch.rand(2)

    torch.manual_seed(0)
    assert_same(f, x, graphs=1, breaks=0)


@pytest.mark.parametrize("case", ["written", "compared", "drawn"])
def test_what_random_numbers_may_be(case: str) -> None:
    def f(x: Tensor) -> Any:
        drawn = torch.rand([]) if case != "drawn" else torch.randn([])
        if case == "written":
            drawn.sub_(1)
        one = drawn < (0.5 if case == "compared" else 0.0)
        if one:
            return x + 1
        return x * 2

    assert_same(f, x, breaks=1)
