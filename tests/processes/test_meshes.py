"""What two processes ask of meshes, placements, layouts and groups: eager's answers, without a break."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, counted
from torch.distributed.device_mesh import init_device_mesh

import dynajit

MESH = (
    *("mesh.size()", "mesh.size(0)", "mesh.size(mesh_dim=1)", "mesh.ndim", "mesh.shape", "mesh.device_type"),
    *("mesh.mesh_dim_names", "'tp' in mesh.mesh_dim_names", "mesh.mesh", "mesh.mesh.shape", "mesh.get_rank()"),
    *("mesh.get_group('tp')", "mesh.get_group(0)", "mesh.get_all_groups()", "mesh.get_local_rank('tp')"),
    *("mesh.get_local_rank(mesh_dim=0)", "mesh.get_coordinate()", "mesh.get_coordinate()[1]", "mesh['tp']"),
    *("mesh['tp'].size()", "mesh['dp', 'tp'].ndim", "mesh['tp'].get_group()", "mesh['tp'].mesh_dim_names[0]"),
    *("mesh['tp'].get_local_rank()", "mesh == other", "mesh != other", "mesh is other", "mesh == other['tp']"),
    *("hash(mesh) == hash(other)", "repr(mesh)", "f'{mesh}'", "{mesh: 1}[other]", "mesh['tp'] == other['tp']"),
    *("mesh in [other]", "isinstance(mesh, DeviceMesh)", "mesh['none']", "mesh.get_group('none')", "mesh.size(7)"),
)
PLACEMENTS = (
    *("p.is_shard()", "p.is_shard(0)", "p.is_shard(dim=1)", "p.is_replicate()", "p.is_partial()", "p.dim"),
    *("p.is_partial('sum')", "repr(p)", "str(p)", "p == Shard(0)", "p != Replicate()", "hash(p) == hash(Shard(0))"),
    *("isinstance(p, Shard)", "type(p) is Shard", "p in (Shard(0), Replicate())", "Partial('avg').reduce_op"),
    *("Partial() == Partial('sum')", "Partial().is_partial('avg')", "Replicate().is_replicate()", "Shard(p.dim + 1)"),
    *("{p: 3}[Shard(0)]", "p.is_shard(1, 2)"),
)
LAYOUTS = (
    *(f"{owner}.{name}" for owner in ("d._spec", "(d + e)._spec") for name in ("num_shards", "shape", "stride")),
    *(f"{owner}.{name}" for owner in ("d._spec", "(d + e)._spec") for name in ("ndim", "dim_map", "num_shards_map")),
    *("d._spec.sums", "d._spec.is_replicated()", "(d * 2)._spec.is_sharded()", "d._spec.tensor_meta.dtype"),
    *("d._spec.device_mesh is mesh", "d._spec == e._spec", "(d + e)._spec == e._spec", "str(d._spec)"),
    *("hash(d._spec) == hash(e._spec)", "d._spec.shard_order", "d.placements[1].is_shard()", "d.device_mesh.ndim"),
    *("[p.dim for p in d.placements if p.is_shard()]", "all(p.is_replicate() for p in e.placements)"),
    *("d.device_mesh['tp'].size()", "d.device_mesh == mesh", "(d + e).device_mesh == mesh", "(d + e).placements"),
    *("(d + e)._local_tensor.sum()", "d._local_tensor.shape", "d._local_tensor + 1", "(d + e)._spec.mesh.size()"),
)
GROUPS = (
    *("g.size()", "g.rank()", "g.name()", "g.group_name", "g.group_desc", "g.bound_device_id", "dist.get_rank(g)"),
    *("dist.get_backend(g)", "dist.get_process_group_ranks(g)", "dist.get_group_rank(g, 0)", "g == h", "g is h"),
    *("dist.get_global_rank(g, 1)", "dist.group.WORLD is g", "dist.get_backend_config(g)", "dist.get_pg_count() > 0"),
    *("dist.is_torchelastic_launched()", "dist.get_node_local_rank()", "dist.get_node_local_rank(fallback_rank=3)"),
    *("dist.is_initialized()", "dist.is_backend_available('gloo')", "dist.is_ucc_available()", "dist.is_available()"),
    *("dist.get_default_backend_for_device('cpu')", "dist.supports_complex(dist.ReduceOp.MAX)", "{g: 1}[h]"),
    *("dist.is_xccl_available()", "dist.get_debug_level()", "dist.Backend('gloo')", "str(dist.get_backend(g))"),
)
QUESTIONS = {"mesh": MESH, "placements": PLACEMENTS, "layouts": LAYOUTS, "groups": GROUPS}


def told(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [type(value), *map(told, value)]
    return value


def outcome(function: Any, *args: Any) -> Any:
    try:
        return told(function(*args))
    except Exception as error:  # eager's own is what is compared
        return type(error), str(error)


def asked(rank: int, kind: str) -> list[Any]:
    """The questions whose answers differ, or which break a graph, or are compiled again."""
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    os.environ["LOCAL_RANK"] = str(rank)
    mesh, other = (init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")) for _ in range(2))
    group, names = dist.group.WORLD, {"dist": dist, "DeviceMesh": DeviceMesh}
    names.update(Partial=Partial, Replicate=Replicate, Shard=Shard)
    d, e = (distribute_tensor(torch.ones(4, 4) * n, mesh, [Replicate(), Shard(0)]) for n in (1, 2))
    given = {"mesh": mesh, "other": other, "p": Shard(0), "d": d, "e": e, "g": group, "h": group}
    wrong = []
    for question in QUESTIONS[kind]:
        exec(f"def ask(x, {', '.join(given)}):\n    found = {question}\n    return x * 2, found", names)
        args = torch.ones(2), *given.values()
        expected = outcome(names["ask"], *args)
        dynajit.reset()
        with counted() as counts:
            compiled = dynajit.compile(names["ask"])
            found = [outcome(compiled, *args) for _ in range(3)]
        raises = isinstance(expected, tuple)
        if found != [expected] * 3 or counts.totals()[1] > raises or len(counts.seen) > 1 + raises:
            wrong.append((question, found, expected, counts.totals(), len(counts.seen)))
    return wrong


@pytest.mark.parametrize("kind", QUESTIONS)
def test_questions(two: Ranks, kind: str) -> None:
    assert two.run(asked, kind) == [[], []]


def in_turn(rank: int) -> list[Any]:
    """What was true for another mesh, group or environment is asked again."""
    from torch.distributed.device_mesh import init_device_mesh

    def answers(mesh: Any, group: Any) -> Any:
        return mesh.shape, mesh.mesh_dim_names, group.size(), dist.get_rank(group), dist.get_node_local_rank(9)

    compiled = dynajit.compile(answers, fullgraph=True)
    half = [dist.new_group([0]), dist.new_group([1])][rank]
    results = []
    for size, names, group in (((1, 2), None, half), ((2,), ("a",), dist.group.WORLD), ((1, 2), ("b", "c"), half)):
        mesh = init_device_mesh("cpu", size, mesh_dim_names=names)
        for local in ("0", "1"):
            os.environ["LOCAL_RANK"] = local
            results.append((compiled(mesh, group), answers(mesh, group)))
    return [pair for pair in results if pair[0] != pair[1]]


def test_others_are_asked_again(two: Ranks) -> None:
    assert two.run(in_turn) == [[], []]


def mapped(rank: int) -> list[Any]:
    """A function of local tensors as one of DTensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.experimental import local_map

    mesh = init_device_mesh("cpu", (2,))
    rows = [Shard(0)]
    scaled = local_map(lambda a, b: a * 2 + b, rows, (rows, rows), device_mesh=mesh)
    results = []
    for call in (scaled, dynajit.compile(lambda a, b: scaled(a, b).sin(), fullgraph=True)):
        parts = [(torch.arange(6.0).view(2, 3) + rank + n).requires_grad_() for n in range(2)]
        found = call(*(DTensor.from_local(part, mesh, rows, run_check=False) for part in parts))
        local = (found.sin() if call is scaled else found).to_local()
        local.sum().backward()
        results.append((local.detach(), *(part.grad for part in parts)))
    return results


def test_local_map(two: Ranks) -> None:
    for expected, actual in two.run(mapped):
        torch.testing.assert_close(actual, expected)


def parts(rank: int) -> list[Any]:
    """Parts of a mesh, which are other objects each time: results, and graphs, breaks and captures after the first."""
    from torch.distributed.device_mesh import init_device_mesh

    def summed(x: torch.Tensor, part: Any) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=part.get_group())
        return y + part.size()

    def flattened(x: torch.Tensor, mesh: Any) -> torch.Tensor:
        y, flat = x * 2, mesh["dp", "tp"]._flatten()
        dist.all_reduce(y, group=flat.get_group())
        return y + flat.size()

    def too_late(x: torch.Tensor, mesh: Any) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + mesh._flatten().size()

    mesh, more, late = (init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")) for _ in range(3))
    found: list[Any] = []
    for fn, given in (
        (summed, [mesh["tp"], mesh["tp"], mesh["tp"], mesh["dp"], mesh["tp"]]),
        (flattened, [mesh] * 3),
        (flattened, [more] * 3),
        (too_late, [late] * 3),
    ):
        dynajit.reset()
        compiled, x = dynajit.compile(fn), torch.arange(3.0) + rank
        with counted() as counts:
            results = [compiled(x, one) for one in given]
        assert all(torch.equal(result, fn(x, one)) for result, one in zip(results, given, strict=True))
        found.append((*counts.totals()[:2], len(counts.seen)))
    return found


def test_parts_of_a_mesh(two: Ranks) -> None:
    assert two.run(parts) == [[(2, 0, 2), (1, 0, 1), (1, 0, 1), (2, 1, 2)]] * 2


def embedded(rank: int, ends: str, backend: str) -> tuple[int, int, int]:
    """An embedding with its rows divided has a mask in its placement until it is summed up: eager's, or a graph's."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, whole = init_device_mesh("cpu", (2,)), [Replicate()]
    weight = distribute_tensor(torch.arange(64.0).reshape(16, 4), mesh, [Shard(0)]).requires_grad_()

    def f(index: Any) -> Any:
        found = torch.nn.functional.embedding(index, weight)
        if ends == "broken":
            dist.barrier()
        return found if ends == "returned" else found.redistribute(mesh, whole)

    compiled = dynajit.compile(f, backend=backend)
    with counted() as counts:
        for step in range(4):
            index = torch.tensor([step, 7, 8, 15 - step])
            results = []
            for call in (compiled, f) if step % 2 else (f, compiled):
                weight.grad = None
                rows = call(distribute_tensor(index, mesh, whole)).redistribute(mesh, whole).to_local()
                rows.square().sum().backward()
                results.append((rows, weight.grad.full_tensor()))
            torch.testing.assert_close(results[0], results[1])
            torch.testing.assert_close(results[0][0], weight.full_tensor()[index])
    return counts.totals()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize(("ends", "breaks"), [("summed", 0), ("broken", 4), ("returned", 1)])
def test_masks_of_divided_embeddings(two: Ranks, ends: str, breaks: int, backend: str) -> None:
    for found in two.run(embedded, ends, backend):
        assert found[1:] == (breaks, 0)
