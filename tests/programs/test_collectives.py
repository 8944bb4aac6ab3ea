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
from dynajit.testing import CompileCounter

x = torch.arange(6.0).reshape(2, 3)


@pytest.fixture(autouse=True)
def processes(tmp_path: Path) -> Iterator[None]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("torch without gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
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


def test_other_calls_end_the_graph() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    counter = CompileCounter()
    assert torch.equal(dynajit.compile(f, backend=counter)(x), x * 2 + 1)
    assert counter.frame_count == 2
