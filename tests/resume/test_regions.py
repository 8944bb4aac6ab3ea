"""Breaks in loops, with and try blocks: what stands before, inside and behind is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from resume_harness import skipped
from torch import Tensor

from dynajit.testing import assert_same
from dynajit.values.tensors.torch_state import autocast_nesting


def inner(x: Tensor) -> Tensor:
    return (x + 1).sin() * 2


def for_loop(x: Tensor) -> Any:
    for i in range(3):
        x = inner(x)
        print("loop", i)
    return x.cos()


def while_loop(x: Tensor) -> Any:
    n = 0
    while n < 3:
        x = inner(x)
        print("loop", n)
        n += 1
    else:
        print("else")
    return x.cos()


def with_block(x: Tensor) -> Any:
    with contextlib.nullcontext():
        x = inner(x)
        print("with")
    return x.cos()


def try_block(x: Tensor) -> Any:
    try:
        x = inner(x)
        print("try")
    except ValueError:
        print("never")
    finally:
        x = inner(x)
    return x.cos()


def except_block(x: Tensor) -> Any:
    try:
        x = inner(x)
        raise KeyError("k")
    except KeyError as error:
        print("caught", error)
        x = inner(x)
    return x.cos()


# the function, its graphs and its graphs when it is called in the middle of `around`
REGIONS = [(for_loop, 2, 3), (while_loop, 2, 3), (with_block, 2, 2), (try_block, 2, 2), (except_block, 2, 2)]


@pytest.mark.parametrize("fn, graphs", [case[:2] for case in REGIONS])
def test_in_the_outermost_frame(fn: Callable[..., Any], graphs: int) -> None:
    report = assert_same(fn, torch.randn(3), graphs=graphs)
    assert not skipped(report)


def around(x: Tensor, fn: Callable[[Tensor], Any]) -> Any:
    y = x.sin()
    z = fn(y + 1)
    return z + y.cos()


@pytest.mark.parametrize("fn, graphs", [(case[0], case[2]) for case in REGIONS])
def test_in_a_callee(fn: Callable[..., Any], graphs: int) -> None:
    report = assert_same(around, torch.randn(3), fn, graphs=graphs)
    assert not skipped(report)
    assert all(broken.lifted_from is None for broken in report.break_reasons)


def before_and_after(x: Tensor) -> Any:
    y = x.sin()
    print("before")
    for i in range(2):
        y = y + i
    print("between")
    with torch.no_grad():
        z = y * 2
    try:
        z = z + 1
    except ValueError:
        z = z - 1
    print("after")
    return z.cos()


def test_regions_without_breaks_between_breaks() -> None:
    assert_same(before_and_after, torch.randn(3), graphs=4, breaks=3, recompiles=0)


def region_after_break(x: Tensor) -> Any:
    y = x.sin()
    print("before")
    y = y.cos()
    for i in range(2):
        y = inner(y)
        print("loop", i)
    return y + 1


def test_a_region_in_a_continuation() -> None:
    report = assert_same(region_after_break, torch.randn(3), graphs=4, recompiles=0)
    assert not skipped(report)


def grad_modes(x: Tensor) -> Any:
    y = x * 2
    torch.set_grad_enabled(False)
    z = y * 3
    print("break", torch.is_grad_enabled())
    w = z + y
    torch.set_grad_enabled(True)
    return w, w + y


def test_grad_mode_across_a_break() -> None:
    assert_same(grad_modes, torch.randn(3, requires_grad=True), recompiles=0)


def in_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        print("break", torch.is_grad_enabled())
        y = inner(y)
    return y, x * 3


@torch.no_grad()
def decorated(x: Tensor) -> Any:
    y = x * 2
    print("break", torch.is_grad_enabled())
    return y + x


def calls_decorated(x: Tensor) -> Any:
    y = decorated(x.sin()) + x
    return y * 2


def in_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x.unsqueeze(0) @ x.unsqueeze(1)
        print("break", y.dtype)
        y = y @ y
    return y


@pytest.mark.parametrize("fn", [in_no_grad, calls_decorated, in_autocast, decorated])
def test_torch_contexts(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.randn(3, requires_grad=True), recompiles=0)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert autocast_nesting() == 0


@contextlib.contextmanager
def managed(log: list[str]) -> Iterator[int]:
    log.append("enter")
    try:
        yield 3
    finally:
        log.append("exit")


def user_context(x: Tensor, log: list[str]) -> Any:
    with managed(log) as n:
        x = inner(x) * n
        print("break", log)
    return x


def user_context_raises(x: Tensor, log: list[str]) -> Any:
    with managed(log) as n:
        x = inner(x) * n
        print("break", log)
        raise ValueError(str(n))


@pytest.mark.parametrize("fn", [user_context, user_context_raises])
def test_context_is_entered_and_left_once(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.randn(3), [], repeat=1)
    assert_same(around_context, torch.randn(3), [], fn, repeat=1)


def around_context(x: Tensor, log: list[str], fn: Callable[..., Any]) -> Any:
    y = x.sin()
    try:
        fn(y, log)
    except ValueError as error:
        log.append(str(error))
    return y.cos(), len(log)


def continue_and_break(x: Tensor) -> Any:
    out = []
    for i in range(6):
        if i % 2:
            continue
        if i > 3:
            print("stop", i)
            break
        out.append(inner(x) + i)
    else:
        print("never")
    return out


def return_from_loop(x: Tensor) -> Any:
    for i in range(6):
        x = inner(x)
        if x.sum() > -1e9:
            return x + i
    return x


@pytest.mark.parametrize("fn", [continue_and_break, return_from_loop])
def test_ways_out_of_a_loop(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.randn(3), recompiles=0)
