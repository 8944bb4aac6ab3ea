"""Comparisons of symbolic numbers taken for numbers: as Python's bools are."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

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


def told(x: torch.Tensor, n: int) -> Any:
    return x + 1, n == 3, n > 4, bool(n & 1), bool(n - 3)


def put_away(x: torch.Tensor, n: int) -> Any:
    found = {"odd": n % 2 == 1, "few": [n < 4, (n == 2, bool(n))]}
    found["same"] = found["odd"]
    return x * n, found


def kept_in_a_closure(x: torch.Tensor, n: int) -> Any:
    many = n > 4

    def ask() -> bool:
        return many

    return x + n, ask


def over_a_break(x: torch.Tensor, n: int) -> Any:
    odd, y = n % 2 == 1, x + 1
    print("here")
    return y * 2, odd, [odd, n > 3]


FREE = (
    told,
    put_away,
    over_a_break,
    lambda x, n: (x, torch.tensor([n == 3, n > 4]), torch.tensor([bool(n - 3), True])),
)
DECIDED: tuple[Callable[[torch.Tensor, int], Any], ...] = (
    kept_in_a_closure,
    lambda x, n: (x, (n == 3) is True, (n > 4) is (n > 3), [n > 2].index(True)),
    lambda x, n: x[bool(n % 2)] if n % 2 == 0 else x[n > 3],
    lambda x, n: (x, {n > 4: "more"}, {True: 1}.get(n > 1), f"{n == 3}{n > 4!r:>6}", str(bool(n - 3))),
    lambda x, n: (x, all([n > 2, n != 5]), sum([n > 2, n == 5]), sorted([n > 2, n > 5]), [False, True][n > 3]),
    lambda x, n: (x, type(n > 4), isinstance(bool(n), int), (n == 3, 1) < (n == 2, 2), hash(n == 3), n == 3 or "no"),
    lambda x, n: torch.where(torch.tensor(n > 4), x, x + 1) + x.sum(dim=1, keepdim=bool(n % 2)),
    lambda x, n: (x.masked_fill(x > 3, n == 5), torch.full((2,), n > 4), x * (n == 3)),
)


@pytest.mark.parametrize("number", range(len(FREE)))
def test_truths_that_nobody_asks_have_no_variants(number: int) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert_same(FREE[number], x, 2, then=[(x, n) for n in (3, 5, 4, 1, 0, 8)], recompiles=1 + (number == 2))


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("number", range(len(DECIDED)))
def test_truths_that_are_asked_for(number: int, backend: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert_same(DECIDED[number], x, 2, then=[(x, n) for n in (3, 5, 4, 1, 0, 8)], backend=backend)
