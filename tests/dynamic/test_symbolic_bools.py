"""Comparisons of numbers that vary are bools: equal to 0 and 1, added like these, matched like these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit


def matched(x: Any, n: int) -> Any:
    match n == 2:
        case 0:
            return x + 1
        case True:
            return x + 2
    return x


PROGRAMS: list[Callable[[Any, int], Any]] = [
    matched,
    lambda x, n: x + 1 if (n == 2) == 0 else x - 1,
    lambda x, n: (x + (n > 2), x * ((n > 2) + 1), x + [10, 20][n > 2]),
    lambda x, n: (x + 1, (n > 2) == n, (n == 3) != 1, -(n > 2), (n > 2) | 0, int(n > 2), (n > 2) is True),
    lambda x, n: (x + 1, f"{n > 2}", (n > 2) * 2.5, (n > 2) < 1, float(n > 2), (n > 2) in (0,), {True: 1}.get(n > 2)),
    lambda x, n: (x + 1, max(n > 2, 0), sum([n > 2, n > 3]), (n > 2) - (n > 3), (n > 2) ^ (n < 9), not (n > 2)),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_bools_of_numbers_that_vary(program: Callable[[Any, int], Any]) -> None:
    compiled = dynajit.compile(program, backend="eager")
    for n in (2, 3, 5, 7, 2, 1, 0, -4):
        assert repr(compiled(torch.ones(1), n)) == repr(program(torch.ones(1), n)), n
