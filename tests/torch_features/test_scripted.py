"""Functions that the program gave to `torch.jit.script`, and branches on random numbers that are known."""

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
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


def divides_a_number(x: Tensor) -> int:
    return 5 // x


def power_below_zero(x: Tensor, n: int) -> Tensor:
    return x + n**-1


def text(x: Tensor, n: float) -> str:
    return f"{n}"


def rounded(x: Tensor, n: float) -> Tensor:
    return x * round(n)


def by_float(x: Tensor, n: float) -> Tensor:
    return x * n


def by_tensor(x: Tensor, n: Tensor) -> Tensor:
    return x * n


def by_default(x: Tensor, n: float = 2) -> Tensor:
    return x * n


def knows_where_it_runs(x: Tensor) -> Tensor:
    if torch.jit.is_scripting():
        return x + 1
    return x - 1


def halves(x: Tensor, n: int) -> Tensor:
    if x.size(0) < 2:
        return x
    first, second = x[: n // 2], x[n // 2 : n]
    return first * (n / 2) + F.dropout(second, 0.0, True) % (n % 3)


def maybe(x: Tensor, other: Tensor | None = None, scale: float = 1.5) -> Tensor:
    if other is not None:
        x = x + other
    return 2 - 3 / (x * scale).sigmoid()


def _programs() -> dict[str, tuple[Any, tuple[Any, ...], int]]:
    """Function, arguments, and how many breaks a call of it is."""
    one, row = torch.tensor(3), torch.arange(4.0) + 1
    return {
        "5 // x": (divides_a_number, (one,), 1),
        "2 ** -1": (power_below_zero, (one, 2), 1),
        "text": (text, (one, 1.0), 1),
        "round": (rounded, (one, 2.5), 1),
        "an int for a float": (by_float, (one, 2), 1),
        "a float": (by_float, (one, 2.0), 0),
        "a number for a tensor": (by_tensor, (one, 2), 1),
        "a tensor": (by_tensor, (one, one), 0),
        "an int as default": (by_default, (one,), 1),
        "is_scripting": (knows_where_it_runs, (one,), 1),
        "sizes": (halves, (row, 4), 0),
        "None": (maybe, (row,), 0),
        "optional": (maybe, (row, row), 0),
        "optional, by name": (maybe, (row, None, 2.0), 0),
    }


@scripts
@pytest.mark.parametrize("name", _programs())
def test_a_scripted_function_keeps_its_rules(name: str) -> None:
    made, arguments, breaks = _programs()[name]
    scripted = _script(made)

    def f(x: Tensor, *others: Any) -> Any:
        try:
            return scripted(x + 0, *others), x + 1
        except (RuntimeError, TypeError) as error:
            return type(error).__name__, x + 1

    assert_same(f, *arguments, breaks=breaks)


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
