"""Functions of autograd whose forward and backward make collectives, as tensor, sequence and expert parallel libraries
write them: one compiled graph, and eager's results and gradients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, counted
from torch import nn
from torch.nn import functional as F

import dynajit
from dynajit.report import logs

WIDTH, ROWS = 8, 4


class Function(torch.autograd.Function):
    """One that takes a tensor, then the group, which gets no gradient."""


class Copied(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Reduced(Function):
    """In place, as Megatron does it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


class Gathered(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = x.new_empty(x.shape[0] * dist.get_world_size(group), *x.shape[1:])
        dist.all_gather_into_tensor(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        out = gradient.new_empty(gradient.shape[0] // dist.get_world_size(ctx.group), *gradient.shape[1:])
        dist.reduce_scatter_tensor(out, gradient.contiguous(), group=ctx.group)
        return out, None


class Scattered(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = x.new_empty(x.shape[0] // dist.get_world_size(group), *x.shape[1:])
        dist.reduce_scatter_tensor(out, x.contiguous(), op=dist.ReduceOp.SUM, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return Gathered.apply(gradient.contiguous(), ctx.group), None


class Listed(Function):
    """Gathered by columns, through a list."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.chunk(dist.get_world_size(ctx.group), -1)[dist.get_rank(ctx.group)].contiguous(), None


class Exchanged(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, received: Any = None, sent: Any = None) -> torch.Tensor:
        ctx.group, ctx.splits = group, (sent, received)
        out = torch.empty_like(x) if received is None else x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return Exchanged.apply(gradient, ctx.group, *ctx.splits), None, None, None


class Sent(Function):
    """From rank 1, whose tensor alone gets a gradient; the largest element of all is taken off."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        most, out = x.max(), x.clone()
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
        dist.broadcast(out, 1, group=group)
        return out - most

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient * (dist.get_rank(ctx.group) == 1), None


class Projected(torch.autograd.Function):
    """A linear layer that sums the gradient of its input while that of its weight is computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group = group
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_input = gradient @ weight
        handle = dist.all_reduce(of_input, group=ctx.group, async_op=True)
        of_weight = gradient.t() @ x
        handle.wait()
        return of_input, of_weight, None


class Network(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form, self.group = form, dist.group.WORLD
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.up(x))
        if self.form == "reduced":
            return torch.sin(Reduced.apply(self.down(Copied.apply(h, self.group)), self.group))
        if self.form == "sequence":
            return Scattered.apply(self.down(Gathered.apply(h, self.group)), self.group) * 2
        if self.form == "listed":
            return torch.sin(Listed.apply(self.down(h), self.group))
        if self.form == "projected":
            return torch.tanh(Projected.apply(h, self.down.weight, self.group))
        if self.form == "sent":
            return torch.tanh(Sent.apply(self.down(h), self.group))
        splits = [] if self.form == "exchanged" else [[[3, 1], [3, 1]], [[1, 3], [1, 3]]][dist.get_rank()]
        back = splits[::-1]
        return Exchanged.apply(torch.sin(Exchanged.apply(h, self.group, *splits)), self.group, *back)


FORMS = ("reduced", "sequence", "listed", "projected", "sent", "exchanged", "exchanged unequally")


def trained(rank: int, form: str, turned: bool) -> list[Any]:
    """Steps of training and of evaluation, eager and compiled: both, then graphs, breaks, captures, and what was said
    of graphs that run as captured. `turned`: gradients arrive by columns, and so what is made like them."""
    said: list[str] = []
    emit, logs.emit = logs.emit, lambda name, text, *more: said.append(text)  # type: ignore[assignment]
    dynajit.set_logs("aot_graphs")
    results: list[Any] = []
    try:
        with counted() as counts:
            for compiled in (False, True):
                torch.manual_seed(rank)
                model = Network(form)
                turn = torch.arange(1.0, ROWS * ROWS + 1).reshape(1, ROWS, ROWS) / ROWS**2

                def forward(x: torch.Tensor, model: Network = model, turn: torch.Tensor = turn) -> torch.Tensor:
                    y = model(x)
                    return torch.sin(torch.bmm(y.t()[None], turn)) if turned else y

                call: Any = dynajit.compile(forward) if compiled else forward
                found: list[Any] = []
                for step in range(3):
                    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
                    y = call(x.requires_grad_())
                    y.square().mean().backward()
                    found += [y.detach(), x.grad, *(p.grad for p in model.parameters())]
                    model.zero_grad()
                with torch.no_grad():
                    found.append(call(x))
                results.append(found)
    finally:
        logs.emit = emit
        dynajit.set_logs("")
    return [*results, counts.totals()[:2], len(counts.seen), [text for text in said if "as captured" in text]]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_form(two: Ranks, form: str, turned: bool) -> None:
    # its tensor is made like a gradient, and gloo fills memory in its order: eager's result depends on strides
    odd = turned and form == "exchanged"
    for expected, actual, totals, captures, as_captured in two.run(trained, form, turned):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
        assert totals == (2, 0), totals  # one with gradients, one without
        assert captures == 2
        assert bool(as_captured) == odd


class Counted(torch.autograd.Function):
    """Its backward makes a collective of what forward knows, and one that this process needs nothing of."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        count, other = mask.sum(), mask * 2
        dist.all_reduce(count)
        dist.all_reduce(other)
        return gradient * mask / (count if dist.get_rank() == 0 else count + other.sum()), None


def counting(rank: int) -> list[Any]:
    """The operations of the collectives in forward and in backward, which other ranks have to meet, and results."""

    def forward(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return Counted.apply(x.sin(), mask).exp().sum()

    found = []
    for call in (forward, dynajit.compile(forward)):
        for step in range(2):
            x = torch.full((2, 3), step + rank + 1.0, requires_grad=True)
            made: list[int] = []
            with torch.profiler.profile() as forwards:
                y = call(x, torch.arange(6.0).view(2, 3) + step)
            with torch.profiler.profile() as backwards:
                y.backward()
            for profile in (forwards, backwards):
                made.append(sum(each.name == "gloo:all_reduce" for each in profile.events()))
            found.append((y.detach(), x.grad, made))
    return found


def test_collectives_of_backward_stay_there(two: Ranks) -> None:
    for rank in two.run(counting):
        torch.testing.assert_close(rank[2:], rank[:2])
        assert rank[0][2] == [0, 2]


def unused(rank: int) -> list[Any]:
    """Rank 0 needs no result, and the others wait for its part."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = Gathered.apply(x * 2, dist.group.WORLD)
        return x.sin() if dist.get_rank() == 0 else y.sin().sum()

    x = torch.full((2, 3), rank + 1.0, requires_grad=False)
    compiled = dynajit.compile(forward)
    return [(forward(x), compiled(x)) for _ in range(3)]


def test_collectives_of_unused_results_are_made(two: Ranks) -> None:
    for pairs in two.run(unused):
        for expected, actual in pairs:
            torch.testing.assert_close(actual, expected)


def written(rank: int) -> list[Any]:
    """What a Function writes in place: an argument of the graph's, and what an operation before it has saved."""

    def of_argument(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (Reduced.apply(x, dist.group.WORLD) * w).sin()

    def of_saved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return Reduced.apply((x * w).exp(), dist.group.WORLD) * 2

    results = []
    for function in (of_argument, of_saved):
        for differentiated in (False, True):
            pair = []
            for call in (function, dynajit.compile(function)):
                x = torch.linspace(0, 1, 6) + rank
                w = torch.full((6,), 0.5, requires_grad=differentiated)
                y = call(x, w)
                if differentiated:
                    y.sum().backward()
                pair.append((y.detach(), x, w.grad))
            results.append(pair)
    return results


def test_what_is_written_in_place(two: Ranks) -> None:
    for pairs in two.run(written):
        for expected, actual in pairs:
            torch.testing.assert_close(actual, expected)


def of_torch(rank: int) -> Any:
    """Torch's own such Functions, which refuse to be compiled by torch.compile."""
    from torch.distributed.nn import functional

    def forward(x: torch.Tensor, group: Any) -> torch.Tensor:
        whole = functional.all_reduce(x.sin(), group=group)
        there = functional.all_to_all_single(torch.empty_like(x), x.cos(), group=group)
        return (whole * x).sum() + (there * x.exp()).sum()

    with warnings.catch_warnings():  # as a program that ignores what is deprecated
        warnings.simplefilter("ignore")
        results = []
        for call in (forward, dynajit.compile(forward, fullgraph=True)):
            x = (torch.arange(6.0).view(2, 3) + rank).requires_grad_()
            y = call(x, dist.group.WORLD)
            y.backward()
            results.append((y.detach(), x.grad))
    return results


def test_functions_of_torch(two: Ranks) -> None:
    for expected, actual in two.run(of_torch):
        torch.testing.assert_close(actual, expected)


def left(rank: int) -> list[Any]:
    """A collective in a group that was destroyed: what eager mode makes of it."""

    def forward(x: torch.Tensor, group: Any) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y, group=group)
        return y + 1

    found = []
    for call in (forward, dynajit.compile(forward)):
        group = dist.new_group([0, 1])
        dist.destroy_process_group(group)
        try:
            found.append(call(torch.ones(3), group).tolist())
        except (RuntimeError, ValueError) as error:
            found.append(type(error))
    return found


def test_a_group_that_was_left(two: Ranks) -> None:
    for expected, actual in two.run(left):
        assert actual == expected


def of_tensors_on_their_way(rank: int, backend: str) -> list[Any]:
    """Two results of functional collectives and of a DTensor's parts, which are waited for where they are read."""
    from torch.distributed._functional_collectives import all_gather_tensor_autograd
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (2,))

    def forward(x: torch.Tensor, d: Any, w: Any) -> Any:
        h = F.linear(d, w).redistribute(placements=[Replicate()], async_op=True).to_local()
        part = DTensor.from_local(F.gelu(h), mesh, [Partial()], run_check=False)
        whole = part.redistribute(placements=[Replicate()], async_op=True).to_local()
        return x + whole + all_gather_tensor_autograd(x, 0, dist.group.WORLD)[: len(x)], h

    results = []
    for call in (forward, dynajit.compile(forward, backend=backend)):
        torch.manual_seed(0)
        x, weight = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randn(WIDTH // 2, WIDTH, requires_grad=True)
        d = DTensor.from_local(x * 2, mesh, [Replicate()], run_check=False)
        w = DTensor.from_local(weight, mesh, [Shard(0)], run_check=False)
        y, _ = call(x.exp(), d, w)
        y.square().sum().backward()
        results.append((y.detach(), x.grad, weight.grad))
    return results


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients_pass_what_is_waited_for(two: Ranks, backend: str) -> None:
    for expected, actual in two.run(of_tensors_on_their_way, backend):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
