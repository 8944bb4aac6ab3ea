"""Blocks that see what a graph's operation raises when it runs, behind a write that can't be done twice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

LOG: list[str] = []


@contextlib.contextmanager
def noting() -> Iterator[None]:
    try:
        yield
    finally:
        LOG.append("left")


class Swallowing:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is IndexError


def caught(x: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    try:
        return x[at]
    except (KeyError, IndexError) as error:
        return str(error)


def tidied(x: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    try:
        return x[at]
    finally:
        LOG.append("tidied")


def suppressed(x: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    with contextlib.suppress(IndexError), torch.no_grad():
        return x[at]
    return "suppressed"


def swallowed(x: torch.Tensor, at: torch.Tensor) -> Any:
    with Swallowing():
        x.add_(1)
        return x[at]
    return "swallowed"


def noted(x: torch.Tensor, at: torch.Tensor) -> Any:
    with noting():
        x.add_(1)
        return x[at]


def in_a_callee(x: torch.Tensor, at: torch.Tensor) -> Any:
    try:
        return in_a_callee_of_it(x, at)
    except ZeroDivisionError:
        return None
    except Exception as error:
        return type(error).__name__


def in_a_callee_of_it(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.index_select(0, at)


def divided(x: torch.Tensor, at: torch.Tensor) -> Any:
    x.add_(1)
    try:
        return 5 // (at - 9)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("function", [caught, tidied, suppressed, swallowed, noted, in_a_callee, divided])
def test_the_block_sees_it(function: Callable[..., Any], backend: str) -> None:
    seen = []
    for call in (function, dynajit.compile(function, backend=backend)):
        LOG.clear()
        for at in (1, 9):
            x = torch.zeros(3)
            try:
                result = call(x, torch.tensor([at]))
            except (IndexError, RuntimeError) as error:
                result = f"raised {error}"
            seen.append((repr(result), x.tolist(), list(LOG)))
    assert seen[:2] == seen[2:]


def test_blocks_that_do_not_see_it_cost_no_graph() -> None:
    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), contextlib.nullcontext():
            try:
                x.add_(1)
                return x[at] + x.index_copy_(0, at, torch.ones(1))
            except NotImplementedError:
                return x

    assert_same(function, torch.zeros(3), torch.tensor([1]), graphs=1, breaks=0)


def test_a_block_costs_no_graph_where_nothing_was_written() -> None:
    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        try:
            return x[at] + 1
        except IndexError:
            return x

    assert_same(function, torch.zeros(3), torch.tensor([1]), graphs=1, breaks=0)
