"""Collectives of lists of tensors, and those to or from one process, are part of the graph, over two processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, compared, counted

import dynajit


def reduced(x: torch.Tensor) -> Any:
    y, z = x * 2, x + 1
    dist.reduce(y, 1)
    dist.reduce(z, group_dst=0, op=dist.ReduceOp.MAX)
    dist.reduce(x, dst=0)  # the argument itself is written
    mine = dist.get_rank()  # what the others' tensors hold afterwards nobody says
    return y + 1 if mine == 1 else None, (z * 3, x.sum()) if mine == 0 else None


def scattered(x: torch.Tensor) -> Any:
    size, out, other = dist.get_world_size(), torch.empty_like(x), x.new_zeros(())
    dist.scatter(out, [x * each for each in range(size)] if dist.get_rank() == 1 else None, src=1)
    dist.scatter(other, [x.amax() + each for each in range(size)] if dist.get_rank() == 0 else [])
    return out + x, other


def gathered(x: torch.Tensor) -> Any:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(x * 2, parts)
    numbers = [x.new_zeros(()) for _ in range(dist.get_world_size())] if dist.get_rank() == 1 else None
    dist.gather(x.amax(), numbers, group_dst=1)
    return parts, numbers, x + 1


def parts_reduced(x: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    dist.reduce_scatter(out, [x * 2, x * 3], op=dist.ReduceOp.MAX)
    dist.reduce_scatter(x, [out + x, x * 5])
    return out * 2


def exchanged(x: torch.Tensor) -> Any:
    out = [x.new_empty(2, 3) for _ in range(2)]
    dist.all_to_all(out, [x[:2], x[2:] * 2])
    return torch.cat(out) + 1, out[0]


def asynchronous(x: torch.Tensor) -> Any:
    first, out, parts = dist.get_rank() == 0, torch.empty_like(x), [torch.empty_like(x) for _ in range(2)]
    works = [
        dist.scatter(out, [x * 5, x * 7] if first else None, 0, async_op=True),
        dist.gather(x * 3, parts if first else None, 0, async_op=True),
        dist.all_to_all(others := [torch.empty_like(x) for _ in range(2)], [x, x * 2], async_op=True),
    ]
    y = x + 1
    for work in works:
        work.wait()
    return out + y, parts if first else y, others


PROGRAMS = [reduced, scattered, gathered, parts_reduced, exchanged, asynchronous]


def exchanges_lists(rank: int) -> bool:
    try:
        dist.all_to_all([torch.empty(1) for _ in range(2)], [torch.ones(1) for _ in range(2)])
    except RuntimeError:
        return False
    return True


def skip_if_refused(two: Ranks, fn: Callable[..., Any]) -> None:
    if fn in (exchanged, asynchronous) and not all(two.run(exchanges_lists)):
        pytest.skip("gloo does not exchange lists in this release of torch")


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_in_one_graph(two: Ranks, fn: Any, backend: str) -> None:
    skip_if_refused(two, fn)
    assert two.run(compared, fn, backend, True, 10) == [(1, 0, 0)] * 2


def on_one_rank(rank: int, fn: Callable[..., Any], compiles: int) -> Any:
    """One rank runs a graph, the other one eager code."""
    call = dynajit.compile(fn, fullgraph=True) if rank == compiles else fn
    return [call(torch.arange(12.0).reshape(4, 3) + 100 * rank + step) for step in range(2)]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_graph_meets_eager_code(two: Ranks, fn: Any) -> None:
    skip_if_refused(two, fn)
    expected, *found = (two.run(on_one_rank, fn, compiles) for compiles in (-1, 0, 1))
    for each in found:
        torch.testing.assert_close(each, expected, rtol=1e-6, atol=1e-6)


def outside_of_a_group(rank: int) -> Any:
    """A group in which ranks are others, and one of a single process, which the other one is not in."""
    turned: Any = dist.new_group([1, 0], use_local_synchronization=False)
    alone: Any = [dist.new_group([each]) for each in range(2)][rank]

    def f(x: torch.Tensor) -> Any:
        out = torch.empty_like(x)
        root = dist.get_rank() == 1
        dist.scatter(out, [x, x * 2] if root else None, 1, group=turned)
        dist.reduce(x, dist.get_rank(), group=alone)
        return out, x

    results = []
    for call in (f, dynajit.compile(f, fullgraph=True)):
        results.append(call(torch.ones(3) + rank))
    return results


def test_groups(two: Ranks) -> None:
    for eager, compiled in two.run(outside_of_a_group):
        torch.testing.assert_close(compiled, eager, rtol=0, atol=0)


def refused(rank: int) -> list[tuple[str, ...]]:
    """What eager mode refuses before it talks to others, and what a compiled call makes of it."""
    mine, other = torch.ones(3), 1 - rank

    def without_a_list(x: torch.Tensor) -> None:
        dist.scatter(x, None, rank)

    def with_a_list(x: torch.Tensor) -> None:
        dist.scatter(x, [x, x], other)

    def too_few(x: torch.Tensor) -> None:
        dist.reduce_scatter(x, [x + 1])

    def a_tuple(x: torch.Tensor) -> None:
        dist.reduce_scatter(x, (x, x))

    def other_dtypes(x: torch.Tensor) -> None:
        dist.all_to_all([x, x], [x.double(), x.double()])

    def two_roots(x: torch.Tensor) -> None:
        dist.reduce(x, 0, group_dst=0)

    def no_root(x: torch.Tensor) -> None:
        dist.reduce(x)

    def no_such_rank(x: torch.Tensor) -> None:
        dist.reduce(x, 7)

    found = []
    lists = (without_a_list, with_a_list, too_few, a_tuple, other_dtypes)
    for fn in (*lists, two_roots, no_root, no_such_rank):
        said = []
        for call in (fn, dynajit.compile(fn)):
            with pytest.raises((RuntimeError, ValueError, TypeError)) as raised:
                call(mine.clone())
            said.append(f"{raised.type.__name__}: {raised.value}".rpartition("]")[2])  # without the time
        found.append((fn.__name__, *said))
    return found


def test_what_eager_refuses(two: Ranks) -> None:
    for found in two.run(refused):
        for name, eager, compiled in found:
            assert compiled == eager, name


# ------------------------------------------------------------------------------------------------ differentiated

FORMS = ["all_gather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter", "all_to_all", "at once"]


def form(name: str, y: torch.Tensor, group: Any) -> torch.Tensor:
    """torch's differentiable collectives, which refuse to be compiled by torch.compile."""
    from torch.distributed.nn import functional

    scaled = [y * 2, y * 3]
    if name == "all_gather":
        return torch.cat(functional.all_gather(y, group=group)).cos().sum()
    if name == "reduce_scatter":
        return functional.reduce_scatter(torch.empty_like(y), scaled, group=group).sin().sum()
    if name == "broadcast":
        return functional.broadcast(y, 1, group=group).sin().sum()
    if name == "reduce":
        return functional.reduce(y, 0, group=group).sin().sum() * (dist.get_rank() == 0)
    if name == "gather":
        return torch.stack(functional.gather(y, 1, group=group)).sin().sum()
    if name == "scatter":
        return functional.scatter(scaled, 0, group=group).sin().sum()
    if name == "all_to_all":
        out = [torch.empty_like(y), torch.empty_like(y)]
        return torch.stack(functional.all_to_all(out, scaled, group=group)).square().sum()
    return sum((form(each, y, group) for each in FORMS[:-1]), torch.zeros(()))


def differentiated(rank: int, name: str, backend: str) -> tuple[int, int, int]:
    def forward(x: torch.Tensor, w: torch.Tensor, group: Any) -> torch.Tensor:
        return form(name, x @ w, group)

    compiled = dynajit.compile(forward, backend=backend, fullgraph=True)
    with counted() as counts, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # as a program that ignores what is deprecated
        for step in range(2):
            results = []
            for call in (forward, compiled):
                torch.manual_seed(10 * step + rank)
                w = torch.randn(3, 3, requires_grad=True)
                loss = call(torch.randn(4, 3), w, dist.group.WORLD)
                loss.backward()
                results.append((loss.detach(), w.grad))
            torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    return counts.totals()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", FORMS)
def test_functions_of_torch(two: Ranks, name: str, backend: str) -> None:
    assert two.run(differentiated, name, backend) == [(1, 0, 0)] * 2
