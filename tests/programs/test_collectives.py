"""torch.distributed's functional collectives are nodes of the graph: one process, so that each gives what it got."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

import dynajit
from dynajit.testing import CompileCounter, assert_same

x = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def processes(tmp_path: Path) -> Iterator[None]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("torch without gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def world(x: Any) -> Any:
    return collectives.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def gathered(x: Any) -> Any:
    group = dist.group.WORLD
    parts = collectives.all_gather_tensor(x, 0, group)
    return collectives.reduce_scatter_tensor(parts * 3, "avg", 0, group), collectives.broadcast(x, 0, group)


@pytest.mark.parametrize("fn", [world, gathered])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_collectives_are_in_the_graph(fn: Any, backend: str) -> None:
    compiled = dynajit.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), torch.utils._pytree.tree_map(lambda t: t + 0, fn(x)))


def test_groups_from_outside() -> None:
    def f(x: Any, group: Any) -> Any:
        return collectives.all_reduce(x, "max", group) * 2

    counter = CompileCounter()
    compiled = dynajit.compile(f, backend=counter, fullgraph=True)
    group = dist.new_group([0])
    for each in (group, group, dist.group.WORLD):
        assert torch.equal(compiled(x, each), x * 2)
    assert counter.frame_count == 2


def written(x: Any) -> Any:
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(y, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    dist.broadcast(y, 0)
    return y + 1, dist.get_rank(), dist.get_world_size(), dist.get_backend()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_what_writes_its_result_is_in_the_graph(backend: str) -> None:
    assert_same(written, x, graphs=1, breaks=0, backend=backend)


def test_the_argument_is_written() -> None:
    def f(x: Any) -> Any:
        dist.all_reduce(x.mul_(2))
        return x.sum()

    assert_same(f, x.clone(), graphs=1, breaks=0)


def test_ranks_are_asked_again(tmp_path: Path) -> None:
    compiled = dynajit.compile(lambda x: x + (dist.get_world_size() if dist.is_initialized() else 5), backend="eager")
    assert torch.equal(compiled(x), x + 1)
    dist.destroy_process_group()
    assert torch.equal(compiled(x), x + 5)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/again", rank=0, world_size=1)
    assert torch.equal(compiled(x), x + 1)


def at_a_barrier(x: Any) -> Any:
    y = x * 2
    dist.barrier()
    return y + 1


def test_without_processes_it_raises_as_in_eager_mode() -> None:
    def f(x: Any) -> Any:
        dist.all_reduce(x + 1)
        return dist.get_rank()

    dist.destroy_process_group()
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dynajit.compile(f, backend="eager")(x)
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dynajit.compile(lambda x: x + dist.get_rank(), backend="eager")(x)


def test_other_calls_end_the_graph() -> None:
    counter = CompileCounter()
    assert torch.equal(dynajit.compile(at_a_barrier, backend=counter)(x), x * 2 + 1)
    assert counter.frame_count == 2
