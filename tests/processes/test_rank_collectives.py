"""Plain collectives over two processes are part of the graph, and give what eager's give."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, compared, counted
from torch.distributed import _functional_collectives as functional
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh

import dynajit


def reduced(x: torch.Tensor) -> Any:
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)  # the argument itself is written
    return y + dist.get_rank(), x.sum(), dist.get_world_size(), dist.get_backend() == "gloo", dist.is_initialized()


def broadcasted(x: torch.Tensor) -> Any:
    dist.broadcast(x, 1)
    y = x + 1 + dist.get_rank()
    dist.broadcast(y, group_src=0)
    return y * 2


def gathered(x: torch.Tensor) -> Any:
    size = dist.get_world_size()
    whole = x.new_empty(size * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x)
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x * 3)
    number = [x.new_zeros(()) for _ in range(size)]
    dist.all_gather(number, x.sum())
    return whole + 1, parts, number


def scattered(x: torch.Tensor) -> Any:
    out = x.new_empty(2, 3)
    dist.reduce_scatter_tensor(out, x, op=dist.ReduceOp.SUM)
    other = x.new_empty(x.numel() // 2)
    dist.reduce_scatter_tensor(other, x.flatten() * 2)
    return out + 1, other


def exchanged(x: torch.Tensor) -> Any:
    equal = torch.empty_like(x)
    dist.all_to_all_single(equal, x)
    mine = 3 if dist.get_rank() == 0 else 1
    out = x.new_empty(2 * mine, 3)
    dist.all_to_all_single(out, x, [mine, mine], [3, 1])
    return equal * 2, out


def asynchronous(x: torch.Tensor) -> Any:
    ys = [x * number for number in range(1, 4)]
    works = [dist.all_reduce(y, async_op=True) for y in ys]
    whole = x.new_empty(2 * x.shape[0], *x.shape[1:])
    works.append(dist.all_gather_into_tensor(whole, x, async_op=True))
    z = x.sin()
    for work in works:
        work.wait()
    return [y + z for y in ys], whole, all(work.is_completed() for work in works)


def in_order(x: torch.Tensor) -> Any:
    """Results that nobody needs are received all the same: other ranks may need to send them."""
    unused = x * 5
    dist.all_reduce(unused)
    if dist.get_rank() == 0:
        x = x + 1
    dist.broadcast(x, 0)
    dist.all_reduce(x)
    return x * 2


def of_parameters(x: torch.Tensor) -> Any:
    w = torch.full((4, 3), dist.get_rank() + 1.0, device=x.device, requires_grad=True)
    out = x.new_empty(8, 3)
    with torch.no_grad():
        dist.all_gather_into_tensor(out, w)
        dist.all_reduce(w)
    return (x * w * out[4:]).sum(), out.requires_grad, w.requires_grad


def for_others(x: torch.Tensor) -> int:
    """Nothing of the graph is needed here."""
    for number in range(4):
        _sum_up(x * number)
    return 3


def _sum_up(x: torch.Tensor) -> None:
    dist.all_reduce(x.sin())


def transposed(x: torch.Tensor) -> Any:
    """What has no gaps in its memory is sent in the memory's order: rank 1's has another one."""
    y, z = (x * 2, x * 3) if dist.get_rank() == 0 else (x.reshape(3, 4).t() * 2, x.reshape(3, 4).t() * 3)
    dist.all_reduce(y)
    work = dist.broadcast(z, 0, async_op=True)
    image = (x.reshape(1, 2, 2, 3) + 1).contiguous(memory_format=torch.channels_last)
    dist.all_reduce(image, op=dist.ReduceOp.MAX)
    work.wait()
    return y + 1, z, image.stride(), image


def all_in_one(x: torch.Tensor) -> Any:
    """Lists of tensors: one collective each."""
    world = dist.group.WORLD
    sums = functional.all_reduce_coalesced([x, x * 2], "sum", world)
    wholes = functional.all_gather_into_tensor_coalesced([x * 5, x[:2] * 2], world)
    parts = functional.reduce_scatter_tensor_coalesced([x * 3, x + 1], "sum", [0, 0], world)
    return [each + 0 for each in (*sums, *wholes, *parts)]


PROGRAMS = [
    transposed,
    all_in_one,
    reduced,
    broadcasted,
    gathered,
    scattered,
    exchanged,
    asynchronous,
    in_order,
    of_parameters,
    for_others,
]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_in_one_graph(two: Ranks, fn: Any, backend: str) -> None:
    assert two.run(compared, fn, backend) == [(1, 0, 0)] * 2


def with_gradients(rank: int) -> list[Any]:
    """Autograd does not see what eager's collectives write, and warns in backward."""

    def f(w: torch.Tensor) -> torch.Tensor:
        y = w * 2
        dist.all_reduce(y)
        return (y * y).sum()

    found = []
    for call in (f, dynajit.compile(f)):
        w = (torch.ones(3) + rank).requires_grad_()
        call(w).backward()
        found.append(w.grad)
    return found


def test_tensors_that_require_gradients(two: Ranks) -> None:
    for eager, compiled in two.run(with_gradients):
        torch.testing.assert_close(compiled, eager)


def groups(rank: int) -> tuple[int, int, int]:
    """Groups and meshes as arguments: each is a variant of its own."""
    both, alone = dist.new_group([0, 1]), [dist.new_group([0]), dist.new_group([1])][rank]
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "model"))

    def f(x: torch.Tensor, group: Any) -> Any:
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + dist.get_rank(group), dist.get_world_size(group), dist.get_process_group_ranks(group)

    def on_mesh(x: torch.Tensor, mesh: Any) -> Any:
        for name in ("data", "model"):
            x = x + mesh.get_local_rank(name) + mesh.size()
            dist.all_reduce(x, group=mesh.get_group(name))
        return x, mesh.get_rank()

    compiled = dynajit.compile(f, backend="eager", fullgraph=True)
    compiled_on_mesh = dynajit.compile(on_mesh, backend="eager", fullgraph=True)
    x = torch.ones(3) + rank
    with counted() as counts:
        for _ in range(2):
            for group in (both, alone):
                torch.testing.assert_close(compiled(x, group), f(x, group))
            torch.testing.assert_close(compiled_on_mesh(x, mesh), on_mesh(x, mesh))
    return counts.totals()


def test_groups_and_meshes(two: Ranks) -> None:
    assert two.run(groups) == [(3, 0, 1)] * 2


def carried_over(rank: int) -> tuple[int, int, int]:
    """A handle that a break, or the caller, gets."""

    def breaks(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        dist.barrier()
        assert work.wait() is True
        return y + 1

    def returned(x: torch.Tensor) -> Any:
        y = x * 2
        return y, dist.all_reduce(y, async_op=True)

    x = torch.ones(3) + rank
    with counted() as counts:
        assert torch.equal(dynajit.compile(breaks)(x), torch.full((3,), 7.0))
        y, work = dynajit.compile(returned)(x)
    assert work.wait() and work.is_completed() and torch.equal(y, torch.full((3,), 6.0))
    return counts.totals()


def test_handles_are_real_where_they_are_needed(two: Ranks) -> None:
    assert two.run(carried_over) == [(3, 2, 0)] * 2  # at the barrier, and at `wait` of what is a real handle then


def unneeded(x: torch.Tensor, how: str) -> Any:
    """A collective whose result the rest does not need, before what ends the graph."""
    y = x * 2
    if how == "functional":
        all_reduce(y, "sum", dist.group.WORLD) + 0
    elif how == "sent":
        if dist.get_rank() == 0:
            dist.send(y, 1)
        else:
            dist.recv(y, 0)
    else:
        dist.all_reduce(y)
    if how == "raises":
        raise ValueError("no data")
    print(end="")
    return x.sum()


def made(rank: int, how: str) -> list[dict[str, int]]:
    """Which collectives calls make, eagerly and compiled."""
    counts = []
    for call in (unneeded, dynajit.compile(unneeded)):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            for _ in range(2):
                with contextlib.suppress(ValueError):
                    call(torch.ones(3), how)
        counts.append({each.key: each.count for each in found.key_averages() if each.key.startswith("gloo:")})
    return counts


@pytest.mark.parametrize("how", ["reduced", "raises", "functional", "sent"])
def test_what_only_other_ranks_need_is_made_before_a_break(two: Ranks, how: str) -> None:
    for eager, compiled in two.run(made, how):
        assert eager == compiled and sum(eager.values()) == 2


def by_operations(rank: int, fullgraph: bool) -> None:
    """The operation as an argument, and as what a loop goes through when its first step has broken."""
    kinds = [getattr(dist.ReduceOp, name) for name in ("SUM", "MAX", "MIN", "PRODUCT")]

    def f(x: torch.Tensor, op: Any) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, op)
        return y

    def loop(x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for op in kinds:
            if not fullgraph:
                print(end="")
            found.append(f(x, op))
        return found

    x = torch.arange(3.0) + 1 + rank
    compiled = dynajit.compile(f, fullgraph=True)
    for op in [*kinds, *kinds]:
        assert torch.equal(compiled(x, op), f(x, op))
    for _ in range(2):
        torch.testing.assert_close(dynajit.compile(loop, fullgraph=fullgraph)(x), loop(x), rtol=0, atol=0)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_operations_from_outside(two: Ranks, fullgraph: bool) -> None:
    two.run(by_operations, fullgraph)


def caught(rank: int) -> list[Any]:
    """What an operation behind a collective raises is caught by the program, and the collective is made once."""

    def f(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        try:
            return y + x[places]
        except IndexError:
            return y - 1

    found = []
    for call in (f, dynajit.compile(f)):
        for last in (2, 5 * rank, 1):
            found.append(call(torch.ones(3) + last, torch.tensor([0, 1, last])))
    return found


def test_what_the_program_catches_behind_a_collective(two: Ranks) -> None:
    for found in two.run(caught):
        torch.testing.assert_close(found[3:], found[:3], rtol=0, atol=0)


def refused(rank: int) -> list[str]:
    """What eager refuses is refused as eager does."""

    def too_small(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(4)
        dist.all_gather_into_tensor(out, x)
        return out

    def uneven(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(1)
        dist.reduce_scatter_tensor(out, x)
        return out

    found = []
    for fn in (too_small, uneven):
        for call in (fn, dynajit.compile(fn)):
            try:
                call(torch.ones(3))
                found.append("")
            except (RuntimeError, ValueError) as error:
                found.append(f"{type(error).__name__}: {error}".rpartition("]")[2])
    return found


def test_what_eager_refuses(two: Ranks) -> None:
    for found in two.run(refused):
        assert found[0] and found[0] == found[1]
        assert found[2] and found[2] == found[3]


def coalesced(rank: int) -> tuple[int, int, int]:
    """A collective in a block that makes all of its collectives at its end."""

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        dist.all_reduce(y)
        return y, y + 1

    compiled = dynajit.compile(f)
    with counted() as counts:
        for step in range(4):
            results = []
            for call in (f, compiled):
                with dist._coalescing_manager() if step % 2 else contextlib.nullcontext():
                    results.append(call(torch.ones(3) + rank + step))
            torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    return counts.totals()


def test_inside_of_a_block_that_makes_collectives_together(two: Ranks) -> None:
    assert two.run(coalesced) == [(3, 1, 1)] * 2


def left_out(rank: int) -> tuple[int, int, int]:
    """Collectives of a group that rank 1 is not in."""
    group: Any = dist.new_group([0])

    def f(x: torch.Tensor) -> Any:
        y, parts = x * 2, [torch.zeros_like(x)]
        answers = dist.all_reduce(y, group=group), dist.all_gather(parts, x, group=group)
        return y + 1, parts, answers, dist.all_reduce(y, group=group, async_op=True) is None

    found = []
    with counted() as counts:
        for call in (f, dynajit.compile(f), f, dynajit.compile(f)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                results = call(torch.ones(3))
            found.append((results, [(str(each.message), each.filename, each.lineno) for each in caught]))
    for (eager, warned_of), (compiled, also) in itertools.pairwise(found):
        torch.testing.assert_close(eager[:2], compiled[:2])
        assert eager[2:] == compiled[2:] and warned_of == also
    assert len(found[0][1]) == 3 * rank
    return counts.totals()


def test_a_group_without_this_process(two: Ranks) -> None:
    assert two.run(left_out) == [(1, 0, 0)] * 2


# what the functional collectives take before the group, after a tensor or a list of them
FUNCTIONAL: dict[str, tuple[Any, ...]] = {
    "all_reduce": ("sum",),
    "all_reduce_coalesced": ("sum",),
    "all_to_all_single": (None, None),
    "all_to_all_single_autograd": (None, None),
    "broadcast": (0,),
    **{f"all_gather_{form}": (0,) for form in ("single", "single_autograd", "tensor", "tensor_autograd")},
    **{f"reduce_scatter_{form}": ("sum", 0) for form in ("single", "single_autograd", "tensor", "tensor_autograd")},
    **dict.fromkeys(("all_gather_single_coalesced", "all_gather_into_tensor_coalesced"), ()),
}


def warned(rank: int, name: str, by: str) -> Any:
    """Results and warnings of two calls each, eager and compiled; what was captured. `by`: how the group is told."""
    if name == "all_gather_into_tensor":

        def f(x: torch.Tensor) -> Any:
            out = x.new_empty(2 * x.shape[0])
            dist.all_gather_into_tensor(out, x)
            return out
    else:
        call, more, many = getattr(functional, name), FUNCTIONAL[name], name.endswith("coalesced")

        def f(x: torch.Tensor) -> Any:
            group = dist.group.WORLD if by == "group" else list(range(dist.get_world_size()))
            found = call([x, x + 1] if many else x, *more, group)
            return [part * 2 for part in found] if many else found * 2

    found = []
    with counted() as counts:
        for call_f in (f, dynajit.compile(f)):
            for step in range(2):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result = call_f(torch.arange(4.0) + rank + step)
                found.append((result, [(str(each.message), each.filename, each.lineno) for each in caught]))
    return found, counts.totals()


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("all_gather_into_tensor", "group"),
        *((name, by) for name in FUNCTIONAL if hasattr(functional, name) for by in ("group", "ranks")),
    ],
)
def test_deprecated_names_and_ranks_warn_as_in_eager_mode(two: Ranks, name: str, by: str) -> None:
    for found, counts in two.run(warned, name, by):
        eager, compiled = found[:2], found[2:]
        torch.testing.assert_close([result for result, _ in eager], [result for result, _ in compiled])
        assert [told for _, told in eager] == [told for _, told in compiled]
        assert counts == (1, 0, 0)


def sent_in_parts(x: torch.Tensor) -> Any:
    """What is sent is the graph's own, and dead after the start; the kernels that follow would use its memory."""
    parts = [torch.empty(2 * x.shape[0], *x.shape[1:]) for _ in range(3)]
    unread = torch.empty_like(parts[0])
    works = [dist.all_gather_into_tensor(part, x * (at + 2), async_op=True) for at, part in enumerate(parts)]
    dist.all_gather_into_tensor(unread, x.cos())
    y = x.sin()
    z = (y @ y.t()).softmax(1) @ y
    for work in works:
        work.wait()
    return parts, z


def gathered_large(rank: int) -> list[bool]:
    compiled = dynajit.compile(sent_in_parts)
    found = []
    for step in range(5):
        x = torch.randn(512, 512, generator=torch.Generator().manual_seed(2 * step + rank))
        (parts, z), (expected, other) = compiled(x), sent_in_parts(x)
        found.append(all(map(torch.equal, parts, expected)) and torch.allclose(z, other, atol=1e-4))
    return found


def test_what_is_sent_keeps_its_memory_until_the_wait(two: Ranks) -> None:
    assert two.run(gathered_large) == [[True] * 5] * 2


def twice(rank: int) -> list[dict[str, int]]:
    """How many collectives a step makes, in forward and backward, eagerly and compiled."""
    from torch.distributed._functional_collectives import all_gather_tensor_autograd

    def f(w: torch.Tensor) -> torch.Tensor:
        y = w * 2
        gathered = [all_gather_tensor_autograd(y, 0, dist.group.WORLD) for _ in range(2)]
        return (gathered[0] * gathered[1]).sum()

    counts = []
    for call in (f, dynajit.compile(f)):
        w = torch.ones(4, 4, requires_grad=True)
        call(w).backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
            call(w).backward()
        counts.append({each.key: each.count for each in found.key_averages() if each.key.startswith("gloo:")})
    return counts


def test_equal_collectives_are_made_as_often_as_in_eager_mode(two: Ranks) -> None:
    for eager, compiled in two.run(twice):
        assert eager == compiled and sum(eager.values()) == 4


class Averaged(torch.autograd.Function):
    """Divided by the number of rows of all processes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.rows = torch.tensor(len(x))
        dist.all_reduce(ctx.rows)
        return x / ctx.rows

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        scale = torch.tensor(2.0)
        dist.all_reduce(scale)
        return gradient / ctx.rows * scale


def of_known_numbers(x: torch.Tensor) -> Any:
    """What is sent is made of numbers that are known while tracing."""
    rows, scale, mine = torch.tensor(len(x)), torch.tensor(2.0) * 3, torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(rows)
    dist.broadcast(scale, 1)
    parts = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(parts, mine)
    handle = dist.all_reduce(mine, async_op=True)
    total = all_reduce(torch.tensor(4), "sum", dist.group.WORLD) + 0
    handle.wait()
    return Averaged.apply(x).sin().sum() / rows * scale, rows, parts, mine, total


def by_one_of_them(rank: int, tracing: int, backend: str) -> list[Any]:
    """One process compiles, the other doesn't: both make the same collectives, so tracing made none of its own."""
    call = dynajit.compile(of_known_numbers, backend=backend) if rank == tracing else of_known_numbers
    results = []
    for rows, differentiated in ((3, False), (3, True), (4, True), (5, True), (5, False)):
        x = torch.ones(rows + rank, 2, requires_grad=differentiated)
        y, *others = call(x)
        if differentiated:
            y.backward()
        results.append((y.item(), x.grad, others))
    return results


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_tracing_communicates_nothing(two: Ranks, backend: str) -> None:
    expected = two.run(by_one_of_them, -1, backend)
    for tracing in (0, 1):
        torch.testing.assert_close(two.run(by_one_of_them, tracing, backend), expected)


def on_its_way(rank: int, kind: str, differentiated: bool) -> None:
    """The argument is what a functional collective gave in eager mode; the other rank begins when this one reads it."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (2,))
    store: Any = dist.distributed_c10d._get_default_store()
    w = torch.full((1,), 3.0, requires_grad=differentiated)

    def f(x: Any) -> Any:
        y = x * 2
        y = y.to_local() if isinstance(y, DTensor) else y
        return y.sin() * w

    def given(step: int) -> Any:
        x = torch.full((1 << 18,), rank + 1.0 + step)
        if rank == 1:
            store.wait([f"{kind}{differentiated}{step}"])
        if kind == "dtensor":
            return DTensor.from_local(x, mesh, [Partial()]).redistribute(mesh, [Replicate()], async_op=True)
        found = all_reduce(x, "sum", dist.group.WORLD)
        return found.view(2, -1) if kind == "view" else found

    compiled = dynajit.compile(f)
    for step in range(4):
        x = given(step)
        if rank == 0:
            store.set(f"{kind}{differentiated}{step}", "")
        found = compiled(x)
        torch.testing.assert_close(found.flatten(), f(torch.full((1 << 18,), 3.0 + 2 * step)))


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("kind", ["plain", "view", "dtensor"])
def test_arguments_that_are_on_their_way_are_waited_for(two: Ranks, kind: str, differentiated: bool) -> None:
    two.run(on_its_way, kind, differentiated)
