"""DTensors are in the graph, and so is what changes their layout: one process, so that each part is the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dynajit
from dynajit.testing import CompileCounter

BACKENDS = ["eager", "aot_eager", "codegen"]


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("torch without gloo")
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()
    dynajit.reset()


def told(value: Any) -> Any:
    """What a program sees of a result."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        return ["DTensor", value.placements, value.requires_grad, told(value.detach().full_tensor())]
    if isinstance(value, torch.Tensor):
        return ["Tensor", value.requires_grad, (value.detach() + 0).tolist()]
    return [told(part) for part in value] if isinstance(value, (tuple, list)) else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == (pytest.approx(other) if isinstance(other, float) else other))


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_and_layouts(mesh: Any, backend: str) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def function(a: Any, x: torch.Tensor) -> Any:
        whole = a.redistribute(mesh, [Replicate()]) * 2
        part = DTensor.from_local(x, mesh, (Shard(0),), run_check=False)
        known = a.placements == (Shard(0),), a.device_mesh is mesh, isinstance(part, DTensor)
        return whole, part, (a * part).relu(), a.to_local() + 1, (part @ a).full_tensor(), a.sum(), known

    a = distribute_tensor(torch.arange(16.0).reshape(4, 4) / 7, mesh, [Shard(0)])
    x = torch.ones(4, 4)
    compiled = dynajit.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        assert same(told(compiled(a, x)), told(function(a, x)))


def test_a_part_of_a_mesh_is_another_object_each_time(mesh: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    def function(x: torch.Tensor, part: Any) -> Any:
        return DTensor.from_local(x, part, [Replicate()]).redistribute(part, [Replicate()]).to_local() + 1

    whole, x = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp")), torch.ones(4)
    counter = CompileCounter()
    compiled = dynajit.compile(function, backend=counter, fullgraph=True)
    for name in ("tp", "tp", "tp", "dp", "tp"):
        assert torch.equal(compiled(x, whole[name]), function(x, whole[name]))
    assert counter.frame_count == 2


def test_compiled_again_for_another_layout(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def function(a: Any) -> Any:
        return a.to_local() * 2, a.placements

    counter = CompileCounter()
    compiled = dynajit.compile(function, backend=counter, fullgraph=True)
    for placement in (Shard(0), Replicate(), Shard(0), Shard(1)):
        a = distribute_tensor(torch.ones(4, 4), mesh, [placement])
        assert same(told(compiled(a)), told(function(a)))
    assert counter.frame_count == 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_parallel_training(mesh: Any, backend: str) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(4, 8)

    def step(call: Any) -> Any:
        net.zero_grad()
        result = call(x)
        result.sum().backward()
        with torch.no_grad():
            return told((result, [parameter.grad for parameter in net.parameters()], call(x)))

    compiled = dynajit.compile(net, backend=backend, fullgraph=True)
    expected = step(net)
    for _ in range(2):
        assert same(step(compiled), expected)


def test_a_step_that_is_verified(mesh: Any) -> None:
    """Copies of DTensors for the comparison are DTensors."""
    from torch.distributed.tensor import Shard, distribute_tensor

    def step(weight: Any, kept: Any) -> Any:
        with torch.no_grad():
            kept.mul_(0.9).add_(weight)
            weight.sub_(kept, alpha=0.1)
        return weight.detach() * 2

    def results(call: Any) -> Any:
        weight, kept = (distribute_tensor(torch.ones(4, 4) * n, mesh, [Shard(0)]) for n in (1, 2))
        return [told([call(weight, kept), weight, kept]) for _ in range(3)]

    assert same(results(dynajit.compile(step, options={"verify": True})), results(step))
