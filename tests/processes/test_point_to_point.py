"""What one process sends to another is part of the graph, and comes as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, compared, counted

import dynajit

LONG = timedelta(seconds=60)


def sent(x: torch.Tensor) -> Any:
    """There and back, by both names of the other rank; the second time into the argument itself."""
    other, y = 1 - dist.get_rank(), torch.zeros_like(x)
    if dist.get_rank() == 0:
        dist.send(x.sin(), 1)
        source = dist.recv(y, 1, tag=3)
        dist.send(y + 1, group_dst=other)
    else:
        source = dist.recv(y, src=0)
        dist.send(y * 2, 0, tag=3)
        dist.recv(x, group_src=other)
    return y.cos(), source


def round_a_ring(x: torch.Tensor) -> Any:
    """Both send before either receives: a wait where the call is would never end."""
    size, rank = dist.get_world_size(), dist.get_rank()
    y, first, second = x * 2, torch.zeros_like(x), torch.zeros_like(x)
    to = dist.isend(y, (rank + 1) % size)
    again = dist.isend(x.sin(), (rank + 1) % size)
    come = dist.irecv(first, (rank - 1) % size)
    other = dist.irecv(second, (rank - 1) % size)
    z = x.exp()
    done = [work.wait() for work in (other, come, to, again)]
    return first + z, second, done


def as_a_batch(x: torch.Tensor) -> Any:
    size, rank = dist.get_world_size(), dist.get_rank()
    y, z = x.sin(), torch.empty_like(x)
    ops = [
        dist.P2POp(dist.isend, y, (rank + 1) % size),
        dist.P2POp(dist.irecv, z, (rank - 1) % size, tag=0, group=dist.group.WORLD),
    ]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    return y + z, ops[1].peer


def between_collectives(x: torch.Tensor) -> Any:
    """In the order of the program, also where nobody reads what came; what is sent is what it was at the call."""
    y, z = x * 2, torch.empty_like(x)
    dist.all_reduce(y)
    if dist.get_rank() == 0:
        dist.send(y, 1)
    else:
        dist.recv(z, 0)
    y.add_(1)
    dist.all_reduce(y)
    return y


def of_weights(x: torch.Tensor) -> Any:
    """What is sent may require gradients: they do not cross."""
    w = torch.full((4, 3), dist.get_rank() + 1.0, requires_grad=True)
    y, z = w * x, torch.empty_like(x)
    work = dist.isend(y, 1 - dist.get_rank())
    dist.recv(z, 1 - dist.get_rank())
    work.wait()
    (gradient,) = torch.autograd.grad((y * z).sum(), w)
    return gradient, z.requires_grad


PROGRAMS = [sent, round_a_ring, as_a_batch, between_collectives, of_weights]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_in_one_graph(two: Ranks, fn: Any, backend: str) -> None:
    assert two.run(compared, fn, backend, True, 1, 1e-6) == [(1, 0, 0)] * 2


def one_side_eager(rank: int, fn: Callable[..., Any]) -> bool:
    """What a graph sends is received by eager code, and the other way round."""
    compiled = dynajit.compile(fn)
    same = []
    for step in range(4):
        x = torch.arange(12.0).reshape(4, 3) + 100 * rank + step
        expected = fn(x.clone())
        found = compiled(x) if step % 2 == rank else fn(x)
        same.append(torch.allclose(torch.as_tensor(found[0]), torch.as_tensor(expected[0])))
    return all(same)


@pytest.mark.parametrize("fn", [sent, round_a_ring, as_a_batch, of_weights])
def test_a_graph_meets_eager_code(two: Ranks, fn: Any) -> None:
    assert two.run(one_side_eager, fn) == [True, True]


def handed_over(rank: int, how: str) -> tuple[bool, int]:
    """Handles that are waited for outside of the graph, or never, end it where they are made: eager's own come of it,
    and nobody waits for what was not sent."""

    def returned(x: torch.Tensor) -> Any:
        y = x * 2
        return y, dist.isend(y, 1 - rank)

    def over_a_break(x: torch.Tensor) -> Any:
        y, z = x * 2, torch.zeros_like(x)
        work = dist.isend(y, 1 - rank)
        print(end="")
        come = dist.irecv(z, 1 - rank)
        print(end="")
        work.wait()
        come.wait()
        return z + 1

    def with_a_timeout(x: torch.Tensor) -> Any:
        y, z = x * 2, torch.zeros_like(x)
        for work in (dist.isend(y, 1 - rank), dist.irecv(z, 1 - rank)):
            work.wait(LONG)
        return z + 1

    x = torch.ones(3) + rank
    with counted() as counts:
        if how != "returned":
            found = dynajit.compile(over_a_break if how == "over a break" else with_a_timeout)(x)
        else:
            found, work = dynajit.compile(returned)(x)
            found = torch.zeros(3)
            dist.recv(found, 1 - rank)
            work.wait()
            found += 1
    return torch.equal(found, torch.full((3,), 2.0 * (2 - rank) + 1)), counts.totals()[1]


@pytest.mark.parametrize(("how", "most"), [("returned", 1), ("over a break", 6), ("with a timeout", 6)])
def test_handles_that_outlive_a_graph(two: Ranks, how: str, most: int) -> None:
    for fine, breaks in two.run(handed_over, how):
        assert fine and 1 <= breaks <= most


def refused(rank: int) -> list[str]:
    """What eager refuses is refused as eager does."""

    def to_itself(x: torch.Tensor) -> torch.Tensor:
        dist.send(x, dist.get_rank())
        return x

    def to_nobody(x: torch.Tensor) -> torch.Tensor:
        dist.isend(x)
        return x

    def no_operation(x: torch.Tensor) -> Any:
        return dist.P2POp(dist.send, x, 1)

    found = []
    for fn in (to_itself, to_nobody, no_operation):
        for call in (fn, dynajit.compile(fn)):
            try:
                call(torch.ones(3))
                found.append("")
            except (RuntimeError, ValueError, TypeError) as error:
                found.append(f"{type(error).__name__}: {error}")
    return found


def test_what_eager_refuses(two: Ranks) -> None:
    for found in two.run(refused):
        assert all(found) and found[::2] == found[1::2]
