"""Numbers that vary: what torch concludes of results of arithmetic has to hold for all of them, such as of
`int(n / 2) >= 0`, which is so for -1, too, or of `(-1) ** n`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit

CUTS: list[Callable[[int], int]] = [
    lambda n: int(n / 2),
    lambda n: math.trunc(n / 3),
    lambda n: int(-n / 2),
    lambda n: int(n * 0.5),
    lambda n: math.ceil(n / 2),
    lambda n: math.floor(n / 2),
    lambda n: round(n / 2),
]
ASKED: list[Callable[[int], bool]] = [
    lambda v: v >= 0,
    lambda v: v > -1,
    lambda v: v == 0,
    lambda v: v <= 0,
    lambda v: v < 1,
]


@pytest.mark.parametrize("cut", range(len(CUTS)))
@pytest.mark.parametrize("numbers", [(9, 3, -1), (-9, -3, 1), (9, 5, 1, 0, -1)])
def test_what_is_known_of_the_number_itself_is_right(cut: int, numbers: tuple[int, ...]) -> None:
    for asked in ASKED:

        def fn(x: torch.Tensor, n: int, asked: Callable[[int], bool] = asked) -> tuple[Any, ...]:
            value = CUTS[cut](n)
            return (x + 1 if asked(value) else x - 1), value, n >= 0, n <= 0

        dynajit.reset()
        compiled = dynajit.compile(fn, backend="eager")
        for n in numbers:
            got, wanted = compiled(torch.ones(1), n), fn(torch.ones(1), n)
            assert (got[0].item(), *got[1:]) == (wanted[0].item(), *wanted[1:])


OPERATIONS = (
    *("{a} ** {b}", "{a} // {b}", "{a} % {b}", "{a} - {b}", "{a} * {b}", "{a} << {b}", "{a} >> {b}", "{a} & {b}"),
    *("{a} | {b}", "{a} ^ {b}", "max({a}, {b})", "int({a} / {b})", "divmod({a}, {b})[1]", "abs({a}) - {b}"),
    *("({a} - {b}) ** 2", "round({a} / {b})", "-({a} // {b})", "({a} % {b}) * {b} - {a}"),
)
OPERANDS = [
    *(("n", f"({c})") for c in (-3, -2, -1, 0, 1, 2)),
    *((f"({c})", "n") for c in (-3, -2, -1, 0, 1, 2)),
    ("n", "m"),
]
PROGRAM = """
def fn(x, n, m):
    try:
        v = {}
    except (ArithmeticError, ValueError) as error:
        return x, type(error)
    return (x + 1 if v > 0 else x - 1), v, v >= 0, v == 0, v < -1, x * v
"""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_is_known_of_a_result_is_right(operation: str) -> None:
    for a, b in OPERANDS:
        names: dict[str, Any] = {}
        exec(PROGRAM.format(operation.format(a=a, b=b)), names)
        dynajit.reset()
        compiled = dynajit.compile(names["fn"], backend="eager")
        for n, m in ((5, 3), (3, -4), (0, 0), (-1, 2), (2, 5), (-4, -1), (1, 3)):
            x = torch.ones((), dtype=torch.float64)
            got, wanted = ([*map(_plain, fn(x, n, m))] for fn in (compiled, names["fn"]))
            assert (got, [*map(type, got)]) == (wanted, [*map(type, wanted)]), (a, b, n, m)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def test_a_power_of_minus_one_in_a_kernel() -> None:
    """Torch looks for the bounds of `(-1) ** n` without end."""

    def signed(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * (-1) ** n

    compiled, x = dynajit.compile(signed), torch.ones(2)
    assert [compiled(x, n).tolist() for n in range(5)] == [signed(x, n).tolist() for n in range(5)]
