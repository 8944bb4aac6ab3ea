"""Marks on single functions: an operation of the graph, no part of it, a constant; running without compiling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.graph.opaque import OPAQUE
from dynajit.testing import EagerAndRecordGraphs
from dynajit.values.core.registry import BUILTINS


@pytest.fixture(autouse=True)
def _without_marks() -> Iterator[None]:
    builtins, opaque = dict(BUILTINS), set(OPAQUE)
    yield
    BUILTINS.clear()
    BUILTINS.update(builtins)
    OPAQUE.clear()
    OPAQUE.update(opaque)


class Hidden:
    """What capturing can't follow."""

    calls = 0

    def __init__(self) -> None:
        print(end="")
        Hidden.calls += 1


def relu_(x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    Hidden()
    return x.sin() * scale, x.cos()


def targets(record: EagerAndRecordGraphs) -> list[Any]:
    return [node.target for graph in record.graphs for node in graph.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
def test_a_function_as_one_operation(backend: str) -> None:
    def body(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        s, c = relu_(x + 1, scale=2.0)
        return s * c, x

    dynajit.allow_in_graph(relu_)
    x = torch.randn(5, requires_grad=True)
    compiled = dynajit.compile(body, backend=backend, fullgraph=True)
    result, same = compiled(x)
    torch.testing.assert_close(result, body(x)[0])
    assert same is x
    found = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(body(x)[0].sum(), x))


def test_it_stands_in_the_graph_as_itself() -> None:
    dynajit.allow_in_graph(relu_)
    record = EagerAndRecordGraphs()
    compiled = dynajit.compile(lambda x: relu_(x)[0] + 1, backend=record, fullgraph=True)
    before = Hidden.calls
    compiled(torch.ones(3))
    compiled(torch.ones(3))
    assert relu_ in targets(record) and torch.sin not in targets(record)
    assert Hidden.calls >= before + 2  # the eager backend runs its body at each call


def test_a_result_that_is_not_used() -> None:
    seen = []

    @dynajit.allow_in_graph
    def note(x: torch.Tensor) -> torch.Tensor:
        seen.append(type(x))
        return x

    def body(x: torch.Tensor) -> torch.Tensor:
        note(x)
        return x + 1

    compiled = dynajit.compile(body, backend="eager", fullgraph=True)
    compiled(torch.ones(3))
    seen.clear()
    compiled(torch.ones(3))
    assert seen == [torch.Tensor]


def test_a_function_out_of_graphs() -> None:
    dynajit.disallow_in_graph(torch.sub)
    record = EagerAndRecordGraphs()
    x = torch.randn(4)

    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.sub(x + 1, 2) * 3

    assert torch.equal(dynajit.compile(body, backend=record)(x), body(x))
    assert len(record.graphs) == 2 and torch.sub not in targets(record)
    dynajit.reset()
    dynajit.allow_in_graph(torch.sub)
    assert torch.equal(dynajit.compile(body, backend="eager", fullgraph=True)(x), body(x))


def test_a_constant() -> None:
    calls = []

    @dynajit.assume_constant_result
    def table(size: int) -> list[int]:
        calls.append(size)
        return list(range(size))

    compiled = dynajit.compile(lambda x: x + sum(table(4)), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) + 6)
    assert torch.equal(compiled(torch.zeros(2)), torch.zeros(2) + 6)
    assert calls == [4]


def test_what_is_no_function() -> None:
    for mark in (dynajit.allow_in_graph, dynajit.disallow_in_graph, dynajit.assume_constant_result):
        for target in (3, Hidden, torch.nn.Linear(2, 2)):
            with pytest.raises(dynajit.exc.ConfigError, match=mark.__name__):
                mark(target)  # type: ignore[type-var]


def test_run_compiles_nothing() -> None:
    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(lambda x: x * 2, backend=counter, dynamic=False)
    ran = dynajit.run(compiled)
    assert torch.equal(ran(torch.ones(2)), torch.ones(2) * 2) and counter.frame_count == 0
    compiled(torch.ones(2))
    assert counter.frame_count == 1
    assert torch.equal(ran(torch.ones(2)), torch.ones(2) * 2)
    assert torch.equal(ran(torch.ones(3)), torch.ones(3) * 2)
    assert counter.frame_count == 1
    compiled(torch.ones(3))
    assert counter.frame_count == 2
