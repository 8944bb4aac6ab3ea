"""Collectives are started early and waited for late, in the order in which the program calls them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynajit
from dynajit.aot import pipeline
from dynajit.aot.passes.collectives import start_early_wait_late
from dynajit.codegen.generate import generate
from dynajit.codegen.memory import refs_in
from dynajit.codegen.plan import ExternStep, FreeStep
from dynajit.loopir.lower_graph import forget, lower
from dynajit.loopir.nodes import Extern
from dynajit.op_facts import facts, is_wait
from dynajit.schedule.fuse import Call, fuse
from dynajit.schedule.in_place import taken_over
from dynajit.schedule.sink import sink_units

aten, ops = torch.ops.aten, torch.ops._c10d_functional
Tensor = torch.Tensor


@pytest.fixture
def group() -> Iterator[str]:
    """The name of a group of which there is this rank alone; what it receives is what it sent, or nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield dist.group.WORLD.group_name
    dist.destroy_process_group()


def between(gm: GraphModule) -> list[int]:
    """How many operations are between the start of each collective and its wait, views not counted."""
    nodes = [node for node in gm.graph.nodes if node.op == "call_function" and not facts(node.target).is_view]
    return [
        nodes.index(wait) - nodes.index(wait.args[0]) - 1  # type: ignore[arg-type]
        for wait in nodes
        if is_wait(wait.target)
    ]


def scheduled(gm: GraphModule) -> list[str]:
    """The calls in the order in which they run."""
    try:
        schedule = fuse(lower(gm, "test"))
        units = sink_units(schedule.units, schedule.reads, set(schedule.stored_in))
        return [str(unit.extern.target).split(".")[1] for unit in units if isinstance(unit, Call)]
    finally:
        forget()


def test_work_that_needs_neither_end_lies_between(group: str) -> None:
    def fn(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        product = aten.mm.default(x, w)
        other = aten.mm.default(y, w)
        got = ops.wait_tensor(ops.all_reduce(product, "sum", group))
        third = aten.mm.default(w, y)
        return got.view(-1).sin(), other, third

    gm = make_fx(fn, tracing_mode="fake")(*[torch.randn(300, 300) for _ in range(3)])
    made = start_early_wait_late(gm)
    assert (between(gm), between(made)) == ([0], [2])
    made.graph.lint()
    # `mm` is large and only the caller needs it, yet it runs while the sum is on its way
    assert scheduled(made) == ["mm", "all_reduce", "mm", "mm", "wait_tensor"]


def test_collectives_keep_their_order_and_writes_their_place(group: str) -> None:
    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        first = ops.wait_tensor(ops.all_reduce(y.sin(), "sum", group))
        second = ops.all_reduce(x, "sum", group)
        got = ops.wait_tensor(second)
        x.copy_(y)
        return first, got

    gm = make_fx(fn, tracing_mode="fake")(torch.randn(8), torch.randn(8))
    made = start_early_wait_late(gm)
    names = [node.name for node in made.graph.nodes if node.op == "call_function"]
    assert names[:3] == ["sin", "all_reduce", "all_reduce_1"]
    assert names[-1] == "copy_" and len(names) == 6


def test_results_of_one_collective_are_waited_for_together(group: str) -> None:
    """gloo's wait for one result writes the others, too, which a kernel may have stored over."""

    def fn(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        started = ops.reduce_scatter_tensor_coalesced([x, y], "sum", 2, group)
        first, second = (ops.wait_tensor(each) for each in started)
        other = aten.mm.default(x, y)
        return first + 1, aten.mm.default(other, other), second * 2

    gm = make_fx(fn, tracing_mode="fake")(torch.randn(8, 8), torch.randn(8, 8))
    nodes = [node for node in start_early_wait_late(gm).graph.nodes if node.op == "call_function"]
    waits = [at for at, node in enumerate(nodes) if is_wait(node.target)]
    assert waits[1] == waits[0] + 1
    readers = [at for at, node in enumerate(nodes) if node.target in (aten.add.Tensor, aten.mul.Tensor)]
    assert waits[1] < min(readers)


@pytest.mark.parametrize("held", [True, False])
def test_what_is_sent_is_not_written_before_the_wait(group: str, held: bool) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        sent = x.sin()
        started = ops.all_gather_into_tensor(sent, 2, group)
        over = sent + aten.mm.default(sent, x)[0]
        return ops.wait_tensor(started), aten.mm.default(over, over)

    gm = start_early_wait_late(make_fx(fn, tracing_mode="fake")(torch.randn(64, 64)))
    try:
        program = lower(gm, "test")
        (wait,) = [item for item in program.items if isinstance(item, Extern) and item.holds]
        (sent,) = wait.holds
        if not held:
            wait.holds = ()
        schedule = fuse(program)
        targets = taken_over(schedule.units, schedule.reads, schedule.stored_in, set()).values()
        assert (sent in targets) != held
    finally:
        forget()


def test_what_is_sent_keeps_its_memory_until_the_wait(group: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, ...]:
        started = ops.all_gather_into_tensor(x.sin(), 2, group)
        other = aten.mm.default(x.exp(), x)
        ops.wait_tensor(ops.all_reduce(x.cos(), "sum", group))  # which nobody reads
        return ops.wait_tensor(started), other

    x = torch.randn(64, 64)
    plan = generate(make_fx(fn, tracing_mode="fake")(x), [x], "test")
    calls = {str(step.target): at for at, step in enumerate(plan.steps) if isinstance(step, ExternStep)}
    waits = [at for at, step in enumerate(plan.steps) if isinstance(step, ExternStep) and is_wait(step.target)]
    (sent,) = (ref.name for ref in refs_in(plan.steps[calls["_c10d_functional.all_gather_into_tensor.default"]].args))
    gone = [at for at, step in enumerate(plan.steps) if isinstance(step, FreeStep) and sent in step.buffers]
    assert len(waits) == 2 and gone > waits[-1:]


@pytest.mark.parametrize(("form", "expected"), [("tensor", ([0], [2])), ("sequence", ([0, 0], [0, 2]))])
def test_parallel_layers(group: str, form: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In backward, gradients of weights are computed while those of the layer's input are on their way."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    apart = {"input_layouts": Shard(0)} if form == "sequence" else {}
    ends = {"output_layouts": Shard(0)} if form == "sequence" else {}
    parallelize_module(model, mesh, {"0": ColwiseParallel(**apart), "2": RowwiseParallel(**ends)})
    found: dict[str, list[int]] = {}

    def seen(gm: GraphModule, context: Any) -> GraphModule:
        made = start_early_wait_late(gm)
        found[context.phase] = between(made)
        return made

    passes = [
        each if each.name != "collectives" else pipeline.Pass("collectives", each.phases, seen)
        for each in pipeline.PASSES
    ]
    monkeypatch.setattr(pipeline, "PASSES", tuple(passes))
    x = torch.randn(8, 16, requires_grad=True)
    dynajit.compile(model)(x).sum().backward()
    assert (found["forward"], found["backward"]) == expected


_HANDLES: dict[str, Any] = {
    "all_reduce": lambda y: (dist.all_reduce(y, async_op=True), y),
    "broadcast": lambda y: (dist.broadcast(y, 0, async_op=True), y),
    "all_gather_into_tensor": lambda y: _into(dist.all_gather_into_tensor, y.new_empty(16, 8), y),
    "all_gather": lambda y: _into(dist.all_gather, [torch.empty_like(y), torch.empty_like(y)], y),
    "reduce_scatter_tensor": lambda y: _into(dist.reduce_scatter_tensor, y.new_empty(4, 8), y),
    "all_to_all_single": lambda y: _into(dist.all_to_all_single, torch.empty_like(y), y),
}


def _into(call: Any, out: Any, y: Tensor) -> tuple[Any, Tensor]:
    return call(out, y, async_op=True), out[1]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("name", _HANDLES)
def test_handles(group: str, name: str) -> None:
    """What is computed between the call and `wait()` runs while the result is on its way, and the report says so: of a
    collective that fills tensors, what is copied into these isn't read before."""
    start = _HANDLES[name]

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        handle, result = start(y)
        other = x @ w
        handle.wait()
        return result * 2, other

    report = dynajit.explain(fn)(torch.randn(8, 8), torch.randn(8, 8))
    (found,) = report.graph_records[0].code[0].collectives
    assert (report.graph_break_count, found.bytes_given, "mm" in found.beside) == (0, 256, True), found
    assert found.text in str(report) and "of 256 bytes; beside it: mm" in found.text
