"""Numbers handed over at a break: a loop's counter is symbolic from the first iteration on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter, assert_same


def told(value: Any) -> Any:
    print("told", value)
    return value


def while_counter(x: Tensor) -> Tensor:
    x, n = x.sin(), 0
    while n < 9:
        x = x * 2
        told(n)
        x = x + 1
        n += 1
    return x.cos()


def for_counter(x: Tensor) -> Tensor:
    x = x.sin()
    for i in range(9):
        x = x * i
        told(i)
        x = x + i
    return x.cos()


def enumerated(x: Tensor) -> Tensor:
    x = x.sin()
    for i, part in enumerate([x, x + 1, x + 2, x + 3]):
        x = x * i
        told(i)
        x = x + part * i
    return x.cos()


def zipped(x: Tensor) -> Tensor:
    x = x.sin()
    for i, (a, b) in zip(range(4), [(1, 7), (2, 7), (3, 7), (4, 7)], strict=True):
        x = x * a
        told(i)
        x = x + i * a + b
    return x.cos()


def shrinking(x: Tensor) -> Tensor:
    x, rate = x.sin(), 1.0
    for _ in range(5):
        x = x * rate
        told(rate)
        rate *= 0.5
    return x.cos()


@pytest.mark.parametrize("fn", [while_counter, for_counter, enumerated, zipped, shrinking])
def test_like_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.linspace(-1.0, 2.0, 6))


@pytest.mark.parametrize("fn", [while_counter, for_counter])
def test_four_graphs(fn: Callable[..., Any]) -> None:
    counter = CompileCounter()
    dynajit.compile(fn, backend=counter)(torch.ones(3))
    assert counter.frame_count == 4


def test_a_mark_is_kept_behind_a_break() -> None:
    def fn(x: Tensor, n: int) -> Tensor:
        x = x * n
        told("here")
        return x + n

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for n in (2, 3, 4, 5):
        assert torch.equal(compiled(torch.ones(3), n), fn(torch.ones(3), n))
    assert counter.frame_count == 4  # with a constant and with a symbol, on both sides


def test_reset_forgets_the_graphs_of_parts() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(while_counter, backend=counter)
    compiled(torch.ones(3))
    dynajit.reset()
    compiled(torch.ones(3))
    assert counter.frame_count == 8


def test_graphs_of_other_inputs_are_other_graphs() -> None:
    def fn(x: Tensor, flag: list[int]) -> Tensor:
        told("here")
        return x + 1 if flag else x + 2

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for flag in ([], [1], []):
        for x in (torch.ones(2), torch.ones(2, dtype=torch.float64), torch.ones(2, requires_grad=True)):
            assert_same_tensor(compiled(x, flag), fn(x, flag))
        with torch.no_grad():
            assert_same_tensor(compiled(torch.ones(2), flag), fn(torch.ones(2), flag))


def assert_same_tensor(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype and found.requires_grad == expected.requires_grad
    assert torch.equal(found, expected)
