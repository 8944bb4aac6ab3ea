"""Numbers cut towards zero: what torch concludes of `int(n / 2) >= 0` does not hold for -1."""

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
