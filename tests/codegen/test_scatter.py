"""Writing where indices say: scatter, index_add, index_put, embedding's and pooling's gradients, as kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers import check, plan_of, trace
from reference_interpreter import interpret
from well_formed import verify

import dynajit
from dynajit.loopir import lower_graph

aten = torch.ops.aten
X = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
PLACES = torch.randint(0, 10, (50,), generator=torch.Generator().manual_seed(1))

CASES: dict[str, Callable[..., torch.Tensor]] = {
    "scatter_add rows": lambda x, i: torch.zeros(10, 16).scatter_add(0, i[:, None].expand(50, 16), x),
    "scatter_add in rows": lambda x, i: torch.ones(50, 10).scatter_add(1, i[:16].expand(50, 16), x),
    "smaller index": lambda x, i: torch.ones(60, 12).scatter_add(1, i[:7].expand(30, 7), x),
    "integers": lambda x, i: torch.zeros(10, dtype=torch.int16).scatter_add(0, i, i.to(torch.int16) * 5000),
    "float64": lambda x, i: torch.ones(10, 16, dtype=torch.float64).index_add(0, i, x.double()),
    "index_add": lambda x, i: torch.ones(10, 16).index_add(0, i, x.sin()).relu(),
    "index_add columns": lambda x, i: torch.ones(50, 10).index_add(1, i[:16], x, alpha=3),
    "scatter": lambda x, i: torch.ones(50, 10).scatter(1, i[:16].expand(20, 16), x),
    "scatter a number": lambda x, i: torch.ones(50, 10).scatter(1, i[:16].expand(20, 16), 3.5),
    "bfloat16": lambda x, i: torch.ones(50, 16).bfloat16().index_copy(0, torch.arange(10) * 3, x[:10].bfloat16()),
    "one of each row": lambda x, i: torch.zeros(50, 10).scatter(1, i[:, None], x[:, :1].sin()).exp(),
    "one of each column": lambda x, i: torch.full((10, 16), 2.0).scatter(0, i[None, :16], 3.5),
    "added to one of each row": lambda x, i: torch.full((50, 10), 2.0).scatter_add(-1, i[:, None], x).bfloat16(),
    "a flag of each row": lambda x, i: torch.zeros(50, 10, dtype=torch.bool).scatter(1, i[:, None], True),
    "sum of one of each row": lambda x, i: torch.zeros(50, 10).scatter(1, i[:, None], x[:, :1]).sum(1),
    "one of some rows": lambda x, i: torch.zeros(50, 10).scatter(1, i[:7, None], x[:7, :1]),
    "sum": lambda x, i: torch.ones(50, 10).scatter_reduce(1, i[:16].expand(50, 16), x, "sum"),
    "prod": lambda x, i: torch.ones(50, 10).scatter_reduce(1, i[:16].expand(50, 16), x, "prod"),
    "amax": lambda x, i: torch.ones(50, 10).scatter_reduce(1, i[:16].expand(50, 16), x, "amax"),
    "amin": lambda x, i: torch.ones(50, 10).scatter_reduce(1, i[:16].expand(50, 16), x, "amin"),
    "index_put": lambda x, i: torch.ones(10, 16).index_put((i,), x[:1], accumulate=True),
    "from the end": lambda x, i: torch.ones(10, 16).index_put((i - 10, i[:1] + 2), x[:, 0], accumulate=True),
    "apart": lambda x, i: aten.index_put(torch.ones(10, 3, 16), [i, None, i[:1] + 2], x[:, :3], True),
    "set": lambda x, i: aten.index_put(torch.ones(60, 16), [torch.arange(50) + 5], x),
    "a number by a mask": lambda x, i: aten.index_put(x, [x > 0.5], torch.tensor(3.0)).sin(),
    "rows by a mask": lambda x, i: aten.index_put(x, [i > 4], x[0]),
    "columns by a mask": lambda x, i: aten.index_put(x, [None, i[:16] > 4], x[:, :1]),
    "a middle mask": lambda x, i: aten.index_put(x.view(5, 5, 2, 16), [None, x[:5, :2] > 0], x[:5, None, :16]),
    "added by a mask": lambda x, i: aten.index_put(x, [x[:, 0] > 0], x[:1] * 2, True),
    "embedding": lambda x, i: aten.embedding_dense_backward(x, i, 10, 3, False),
    "embedding of two": lambda x, i: aten.embedding_dense_backward(x.view(5, 10, 16), i.view(5, 10), 10, -1, False),
    "twice": lambda x, i: torch.zeros(10, 16).index_add(0, i, x).index_add(0, i, x * 2) + 1,
}


def _both(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """Kernels and the reference interpreter against eager."""
    plan = check(function, *args)
    assert plan.kernels
    program = lower_graph.lower(trace(function, *args), "test")
    verify(program)
    found = interpret(program, dict(zip(program.inputs, args, strict=True)))
    torch.testing.assert_close(found[0], function(*args))
    lower_graph.forget()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    _both(CASES[name], X, PLACES)


def test_what_is_scattered_is_computed_in_the_same_loop() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros(10, 16).scatter_add(0, i[:, None].expand(50, 16), x[i] * w[:, None])

    plan = check(f, X, PLACES, X[:, 0].contiguous(), kernels=2, externs=0)
    assert [step.buffer for step in plan.steps if type(step).__name__ == "AllocStep"] != []


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("along", [0, 1])
def test_threads_share_out_places(along: int) -> None:
    places = torch.randint(0, 100, (4000,), generator=torch.Generator().manual_seed(2))
    x = torch.randn((4000, 64) if along == 0 else (64, 4000), generator=torch.Generator().manual_seed(3))

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.ones((100, 64) if along == 0 else (64, 100)).index_add(along, i, x)

    plan = plan_of(f, x, places)
    assert "omp parallel" in plan.source.split("k1_")[1]
    check(f, x, places)


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradient_of_max_pooling(channels_last: bool) -> None:
    x = torch.randn(2, 3, 9, 8, generator=torch.Generator().manual_seed(4))
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    out, indices = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)

    def f(g: torch.Tensor, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return aten.max_pool2d_with_indices_backward(g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, i)

    _both(f, out, x, indices)


def test_an_index_outside_raises_as_in_eager() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros(10, 16).index_add(0, i, x) * 2

    compiled = dynajit.compile(f)
    compiled(X, PLACES)
    bad = PLACES.clone()
    bad[7] = 10
    with pytest.raises(Exception) as expected:
        f(X, bad)
    with pytest.raises(type(expected.value)) as found:
        compiled(X, bad)
    assert str(found.value) == str(expected.value)
    torch.testing.assert_close(compiled(X, PLACES), f(X, PLACES))


@pytest.mark.parametrize("use", ["whole", "sum"])
def test_one_of_each_row_outside_raises_as_in_eager(use: str) -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        chosen = torch.zeros(50, 10).scatter(1, i[:, None], x[:, :1])
        return chosen * 2 if use == "whole" else chosen.sum(1)

    compiled = dynajit.compile(f)
    torch.testing.assert_close(compiled(X, PLACES), f(X, PLACES))
    for bad in (10, -1):
        places = PLACES.clone()
        places[7] = bad
        with pytest.raises(RuntimeError) as expected:
            f(X, places)
        with pytest.raises(RuntimeError) as found:
            compiled(X, places)
        assert str(found.value) == str(expected.value)


def test_gradients_of_greatest_elements_fill_nothing() -> None:
    x = torch.randn(4, 6, 9)
    g, i = torch.randn(4, 6, 1), x.argmax(-1, keepdim=True)
    _both(lambda x, g, i: torch.zeros_like(x).scatter(-1, i, g) * x.sin(), x, g, i)
    check(lambda x, g, i: torch.zeros_like(x).scatter(-1, i, g) * x.sin(), x, g, i, kernels=1, externs=0)


def test_an_index_outside_leaves_inputs_as_they_were() -> None:
    def f(x: torch.Tensor, i: torch.Tensor, counter: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return torch.zeros(10, 16).index_add(0, i, x) + counter

    compiled = dynajit.compile(f)
    compiled(X, PLACES, torch.zeros(1))
    mine, theirs = torch.zeros(1), torch.zeros(1)
    for call, counter in ((compiled, mine), (f, theirs)):
        with pytest.raises((IndexError, RuntimeError)):
            call(X, PLACES + 5, counter)
    assert torch.equal(mine, theirs)


def test_sizes_that_vary() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros(10, x.shape[1]).index_add(0, i, x.sin()).relu()

    compiled = dynajit.compile(f, dynamic=True, fullgraph=True)
    for rows, columns in ((50, 16), (20, 3), (7, 33)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x, PLACES[:rows]), f(x, PLACES[:rows]))


def test_gradients_of_reading_by_index() -> None:
    table, matrix = torch.randn(10, 16), torch.randn(10, 6)

    def f(table: torch.Tensor, matrix: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        picked = torch.nn.functional.embedding(i, table, padding_idx=2)
        return (picked.sin() * table[i]).sum() + matrix.gather(1, i[:30].view(10, 3) % 6).exp().sum()

    results = []
    for call in (f, dynajit.compile(f, fullgraph=True)):
        leaves = [tensor.clone().requires_grad_() for tensor in (table, matrix)]
        call(*leaves, PLACES).backward()
        results.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(results[1], results[0])
