"""A block that makes its collectives together is part of the graph, over two processes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks, compared

import dynajit


def summed(x: torch.Tensor) -> Any:
    """What a tensor holds when the block ends is what is sent, and what others read before is its own."""
    y, z = x * 2, x + 1
    with dist._coalescing_manager():
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        before = y + 0
        y.add_(1)
        dist.broadcast(z, 0)  # is not put off
        dist.all_reduce(z, op=dist.ReduceOp.MAX)
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return before, y * 3, z, x + 0


def gathered(x: torch.Tensor) -> Any:
    first, second = x.new_empty(8, 3), x.new_empty(4, 3)
    with dist._coalescing_manager(group=dist.group.WORLD):
        dist.all_gather_into_tensor(first, x)
        dist.all_gather_into_tensor(second, x[:2] * 5)
    return first + 1, second


def scattered(x: torch.Tensor) -> Any:
    first, second = x.new_empty(2, 3), x.new_empty(1, 3)
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(first, x)
        dist.reduce_scatter_tensor(second, x[:2] * 5)
    return first + 1, second


def waited_for(x: torch.Tensor) -> Any:
    y, z = x * 2, x * 3
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(y)
        dist.all_reduce(z)
    other = x + 1
    manager.wait()
    return y + other, z, len(manager.works)


def of_none(x: torch.Tensor) -> Any:
    with dist._coalescing_manager(async_ops=True) as manager:
        y = x * 2
    manager.wait()
    return y + 1, len(manager.works)


def twice(x: torch.Tensor) -> Any:
    return [_in_a_helper(x), _in_a_helper(x + 1)]


def _in_a_helper(x: torch.Tensor) -> torch.Tensor:
    parts = [x * number for number in range(1, 4)]
    with dist._coalescing_manager():
        for part in parts:
            dist.all_reduce(part)
    return parts[0] + parts[1] + parts[2]


PROGRAMS = [summed, gathered, scattered, waited_for, of_none, twice]


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", PROGRAMS)
def test_in_one_graph(two: Ranks, fn: Any, backend: str) -> None:
    assert two.run(compared, fn, backend) == [(1, 0, 0)] * 2


def on_one_rank(rank: int, fn: Callable[..., Any], compiles: int) -> Any:
    """One rank runs a graph, the other one eager code."""
    call = dynajit.compile(fn, fullgraph=True) if rank == compiles else fn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return [call(torch.arange(12.0).reshape(4, 3) + 100 * rank + step) for step in range(2)]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_a_graph_meets_eager_code(two: Ranks, fn: Any) -> None:
    expected, *found = (two.run(on_one_rank, fn, compiles) for compiles in (-1, 0, 1))
    for each in found:
        torch.testing.assert_close(each, expected, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------ left to eager mode


def broken(x: torch.Tensor) -> Any:
    """The graph ends inside of the block."""
    y = x * 2
    with dist._coalescing_manager():
        dist.all_reduce(y)
        print(end="")
        dist.all_reduce(x)
    return y + 1


def transposed(x: torch.Tensor) -> Any:
    """Tensors that rank 1 has in another order in its memory."""
    y = x * 2 if dist.get_rank() == 0 else (x.reshape(3, 4) * 2).t()
    with dist._coalescing_manager():
        dist.all_reduce(y)
        dist.all_reduce(x)
    return y + 1


def of_two_kinds(x: torch.Tensor) -> Any:
    out = x.new_zeros(8, 3)
    with dist._coalescing_manager():
        dist.all_reduce(x)
        dist.all_gather_into_tensor(out, x + 1)
    return out


def raises(x: torch.Tensor) -> Any:
    with dist._coalescing_manager():
        dist.all_reduce(x)
        raise KeyError("no data")


def within_another(x: torch.Tensor) -> Any:
    with dist._coalescing_manager():
        dist.all_reduce(x)
        with dist._coalescing_manager():
            dist.all_reduce(x)


def entered_later(x: torch.Tensor) -> Any:
    manager = dist._coalescing_manager()
    y, z = x * 2, x * 3
    dist.all_reduce(y)
    with manager:
        dist.all_reduce(z)
    return y, z


def never_entered(x: torch.Tensor) -> Any:
    dist._coalescing_manager()
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def as_in_eager_mode(rank: int, fn: Callable[..., Any]) -> list[bool]:
    """Whether results and errors are eager's, and what a block leaves open, which is closed here."""
    compiled, found = dynajit.compile(fn), []
    state: Any = dist.distributed_c10d._world.pg_coalesce_state
    for step in range(2):
        said = []
        for call in (fn, compiled):
            x = torch.arange(12.0).reshape(4, 3) + 100 * rank + step
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                try:
                    result = call(x)
                except (RuntimeError, ValueError, KeyError) as error:
                    result = f"{type(error).__name__}: {error}"
            with contextlib.suppress(KeyError):
                result = result, len(state.pop(dist.group.WORLD))
            said.append((result, x))
        torch.testing.assert_close(said[1][1], said[0][1], rtol=0, atol=0)
        found.append(_same(said[0][0], said[1][0]))
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("fn", [broken, transposed, of_two_kinds, raises, within_another, entered_later, never_entered])
def test_what_is_left_to_eager_mode(two: Ranks, fn: Any) -> None:
    assert two.run(as_in_eager_mode, fn) == [[True, True]] * 2
