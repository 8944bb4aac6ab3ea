"""Blocks in which a graph break is an error."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter, assert_same
from dynajit.values.tensors.break_errors import are_errors


@pytest.fixture(autouse=True)
def _off_again() -> Any:
    yield
    assert not are_errors()


def allowed(x: Tensor) -> Tensor:
    x = x.sin()
    dynajit.graph_break()
    with dynajit.error_on_graph_break(True):
        x = x.cos()
    dynajit.graph_break()
    return x + 1


def refused(x: Tensor) -> Tensor:
    x = x.sin()
    dynajit.graph_break()
    with dynajit.error_on_graph_break(True):
        x = x.cos()
        dynajit.graph_break()
    return x + 1


def nested(x: Tensor) -> Tensor:
    with dynajit.error_on_graph_break(True):
        x = x.sin()
        with dynajit.error_on_graph_break(False):
            x = x.cos()
            dynajit.graph_break()
            x = x.tan()
        return x + 1


def nested_and_refused(x: Tensor) -> Tensor:
    with dynajit.error_on_graph_break(True):
        with dynajit.error_on_graph_break(False):
            x = x.cos()
            dynajit.graph_break()
            x = x.tan()
        dynajit.graph_break()
        return x + 1


def inner(x: Tensor) -> Tensor:
    x = x.sin()
    dynajit.graph_break()
    return x.cos()


decorated = dynajit.error_on_graph_break(True)(inner)
lenient = dynajit.error_on_graph_break(False)(inner)


def test_where_it_is_no_error() -> None:
    assert_same(allowed, torch.randn(3), graphs=3, breaks=2)
    assert_same(nested, torch.randn(3), graphs=2, breaks=1)


@pytest.mark.parametrize("fn", [refused, nested_and_refused, lambda x: decorated(x) + 1])
def test_where_it_is_one(fn: Any) -> None:
    with pytest.raises(dynajit.exc.Unsupported, match="graph break"):
        dynajit.compile(fn, backend="eager")(torch.randn(3))
    assert not are_errors()


def test_around_the_call() -> None:
    compiled = dynajit.compile(inner, backend="eager")
    with dynajit.error_on_graph_break(True), pytest.raises(dynajit.exc.Unsupported):
        compiled(torch.ones(3))
    assert torch.equal(compiled(torch.ones(3)), inner(torch.ones(3)))


def test_a_function_that_may_break_in_a_block() -> None:
    def program(x: Tensor) -> Tensor:
        with dynajit.error_on_graph_break(True):
            return lenient(x) * 2

    assert_same(program, torch.randn(3), graphs=2, breaks=1)


def test_the_whole_graph_is_still_wanted_under_fullgraph() -> None:
    with pytest.raises(dynajit.exc.Unsupported):
        dynajit.compile(lenient, backend="eager", fullgraph=True)(torch.ones(3))


def test_the_block_is_no_part_of_the_graph() -> None:
    counter = CompileCounter()

    def program(x: Tensor) -> Tensor:
        with dynajit.error_on_graph_break(True):
            return x.sin().cos()

    dynajit.compile(program, backend=counter, fullgraph=True)(torch.ones(3))
    assert (counter.frame_count, counter.op_count) == (1, 2)


def test_it_is_the_threads_own() -> None:
    found: list[Any] = []

    def other() -> None:
        found.append(dynajit.compile(inner, backend="eager")(torch.ones(3)))

    with dynajit.error_on_graph_break(True):
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        thread.join(60)
    assert len(found) == 1 and torch.equal(found[0], inner(torch.ones(3)))


def test_what_is_refused() -> None:
    with pytest.raises(dynajit.exc.ConfigError, match="True or False"):
        dynajit.error_on_graph_break(1)  # type: ignore[arg-type]
