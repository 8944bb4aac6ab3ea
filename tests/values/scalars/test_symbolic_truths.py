"""Comparisons of symbolic numbers taken for numbers: as Python's bools are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit

USES: tuple[Callable[[int], Any], ...] = (
    lambda n: (n == 2) == n,
    lambda n: n != (n > 3),
    lambda n: (n == 2) == 0,
    lambda n: (n == 2) == (n == 3),
    lambda n: ((n == 2) | (n == 3), (n == 2) ^ (n == 3), (n < 4) & True, (n < 4) & 1),
    lambda n: ((n == 2) + (n < 9), n * (n > 3), -(n > 3), n - (n < 3)),
    lambda n: ((n == 2) < (n < 9), (n > 3) <= n, max(n, n > 3), min(n == 1, n)),
    lambda n: operator.index(n > 3) + int(n > 2) + float(n > 1),
    lambda n: (n == 2) in [0, 1],
)


@pytest.mark.parametrize("use", USES)
def test_compared_truth_is_a_number(use: Callable[[int], Any]) -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        return x + 1, use(n)

    dynajit.counters["internal_errors"].clear()
    compiled = dynajit.compile(function, backend="eager")
    for n in (2, 5, 7, 3, 1, 2):
        _, wanted = function(torch.ones(2), n)
        _, got = compiled(torch.ones(2), n)
        assert repr(got) == repr(wanted), n
    assert not dynajit.counters["internal_errors"]
