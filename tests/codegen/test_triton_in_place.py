"""Inputs that a program changes are written by the kernels that compute their new contents, where nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import plan_of, run

from dynajit.codegen.plan import ExternStep, Plan

randn = torch.randn


def check(function: Callable[..., Any], *args: torch.Tensor) -> Plan:
    """Results and inputs afterwards as in eager."""
    expected_args, actual_args = [[x.clone() for x in args] for _ in range(2)]
    expected = function(*expected_args)
    plan = plan_of(function, *args)
    (actual,) = run(plan, *actual_args)
    torch.testing.assert_close(actual, expected)
    for actual_arg, expected_arg in zip(actual_args, expected_args, strict=True):
        torch.testing.assert_close(actual_arg, expected_arg)
    return plan


def copies(plan: Plan) -> int:
    return sum(isinstance(step, ExternStep) and "copy_" in str(step.target) for step in plan.steps)


def statistics(x: torch.Tensor, mean: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    now = x.mean(0)
    mean.mul_(0.9).add_(now * 0.1)
    count.add_(1)
    return x - now


def test_statistics_are_stored_where_they_are_kept() -> None:
    assert copies(check(statistics, randn(33, 5), randn(5), torch.tensor(3))) == 0


def test_of_rows_in_pieces() -> None:
    assert copies(check(statistics, randn(700, 5), randn(5), torch.tensor(3))) == 0


def exchanged(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    before = a.clone()
    a.copy_(b)
    b.copy_(before)
    return a + b


def test_exchanged() -> None:
    check(exchanged, randn(4), randn(4))


def turned(a: torch.Tensor) -> torch.Tensor:
    a.copy_(a.flip(0) + 1)
    return a * 2


def test_elements_read_elsewhere() -> None:
    assert copies(check(turned, randn(6))) == 1


def read_again(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    return torch.softmax(total, 1)


def test_values_needed_in_a_later_loop() -> None:
    check(read_again, randn(7, 300), randn(7, 300))
    check(read_again, randn(3, 20_000), randn(3, 20_000))


def read_before(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    before = (total @ x).sum()
    total.mul_(2)
    return before + total.sum()


def test_former_contents_are_read_first() -> None:
    check(read_before, randn(200, 200), randn(200, 200))


def cached(cache: torch.Tensor, key: torch.Tensor, at: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    cache.index_copy_(1, at, key)
    return (query.unsqueeze(1) * cache).sum(-1)


def test_part_of_an_input() -> None:
    plan = check(cached, randn(2, 8, 4), randn(2, 1, 4), torch.tensor([3]), randn(2, 4))
    assert not any(isinstance(step, ExternStep) for step in plan.steps)  # a kernel of its own writes the part


def cached_and_compared(cache: torch.Tensor, key: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    before = cache.sum()
    cache.index_copy_(1, at, key)
    return cache.sum() - before


def test_part_of_an_input_whose_former_contents_are_read() -> None:
    check(cached_and_compared, randn(2, 8, 4), randn(2, 1, 4), torch.tensor([3]))
