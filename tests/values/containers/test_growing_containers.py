"""Containers that grow from call to call, as logs and replay buffers do: soon nothing is compiled any more."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cases import outside, same

import dynajit
from dynajit.testing import CompileCounter

X = torch.arange(1.0, 4.0)
CALLS = 12

CONTAINERS: dict[str, Callable[[], Any]] = {"list": list, "deque": collections.deque}
# what is put into it at call n, made of y
ITEMS: dict[str, Callable[[int, torch.Tensor], Any]] = {
    "number": lambda n, y: n * 0.37,
    "count": lambda n, y: n,
    "tensor": lambda n, y: y.detach(),
    "item": lambda n, y: y.sum().item(),
    "pair": lambda n, y: (n, y.detach()),
}
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "append": lambda kept, item: kept.append(item),
    "extend": lambda kept, item: kept.extend([item]),
}
READS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda kept: None,
    "length": len,
    "whether empty": bool,
    "last": lambda kept: kept[-1],
    "first": lambda kept: kept[0],
    "sum": sum,
    "mean": lambda kept: sum(kept) / len(kept),
    "largest": max,
    "np.mean": lambda kept: float(np.mean(kept)),
    "copy": lambda kept: kept.copy(),
    "window": lambda kept: list(kept)[-3:],
}
# the calls from which on nothing is compiled; others than these take two more
AT_ONCE = {"nothing", "length", "whether empty", "last", "first"}
OF_NUMBERS = {"sum", "mean", "largest", "np.mean"}


class State:
    def __init__(self, container: Callable[[], Any]) -> None:
        self.n = 0
        self.kept = container()


def _same(got: Any, want: Any) -> bool:
    if isinstance(want, (list, tuple, collections.deque)):
        return type(got) is type(want) and len(got) == len(want) and all(map(_same, got, want))
    if isinstance(want, torch.Tensor):
        return torch.equal(got, want)
    return type(got) is type(want) and repr(got) == repr(want)


def _compiled_until(container: Callable[[], Any], write: Any, read: Any, item: Any) -> int:
    """After how many calls nothing was compiled any more."""

    def step(state: State, x: torch.Tensor) -> Any:
        state.n += 1
        y = x * 2
        write(state.kept, item(state.n, y))
        return y + 1, read(state.kept)

    counter = CompileCounter()
    compiled, ours, theirs, last = dynajit.compile(step, backend=counter), State(container), State(container), 0
    for call in range(1, CALLS + 1):
        before = counter.frame_count
        got, want = compiled(ours, X), step(theirs, X)
        assert _same(got[0], want[0]) and _same(got[1], want[1]) and _same(ours.kept, theirs.kept)
        last = call if counter.frame_count > before else last
    return last


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("item", ITEMS)
def test_it_is_compiled_for_few_lengths(container: str, read: str, item: str) -> None:
    numbers = item not in ("tensor", "pair")
    if (item == "pair" and read in OF_NUMBERS) or (item == "tensor" and read in ("largest", "np.mean")):
        pytest.skip("not computed of such items")
    for write in WRITES.values():
        last = _compiled_until(CONTAINERS[container], write, READS[read], ITEMS[item])
        at_once = container == "list" and (read in AT_ONCE or (numbers and read in OF_NUMBERS))
        assert last <= (3 if at_once else 6)
        dynajit.reset()


def test_a_list_that_is_an_argument_is_compiled_for_each_length() -> None:
    def stacked(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(parts).sum(0) * 2

    counter = CompileCounter()
    compiled = dynajit.compile(stacked, backend=counter)
    for _ in range(2):
        for count in (1, 2, 3, 4):
            assert torch.equal(compiled([X] * count), stacked([X] * count))
    assert counter.frame_count == 4


def test_a_list_of_numbers_that_gets_another_item() -> None:
    class Log:
        def __init__(self) -> None:
            self.losses: list[Any] = [1.0]

    def mean(x: torch.Tensor, log: Log) -> Any:
        return x * 2, sum(log.losses) / len(log.losses), max(log.losses)

    log = Log()
    compiled = dynajit.compile(mean, backend="eager")
    for more in (2, 3.5, True, 1 << 40, torch.ones(()), 4.0):
        log.losses.append(more)
        got, want = compiled(X, log), mean(X, log)
        assert _same(got, want)
    log.losses.append("text")
    with pytest.raises(TypeError, match="unsupported operand"):
        compiled(X, log)


def test_a_long_list_is_left_to_the_program() -> None:
    """What generated code computed of it, guards would compute once more."""

    class Log:
        def __init__(self) -> None:
            self.losses: list[float] = []

    def mean(x: torch.Tensor, log: Log) -> Any:
        log.losses.append(len(log.losses) * 0.37)
        return x * 2, sum(log.losses) / len(log.losses)

    ours, theirs, counter = Log(), Log(), CompileCounter()
    compiled, compiled_at = dynajit.compile(mean, backend=counter), []
    for call in range(150):
        before = counter.frame_count
        assert _same([*compiled(X, ours)], [*mean(X, theirs)])
        compiled_at += [call] * (counter.frame_count > before)
    late = [call for call in compiled_at if call > 2]
    assert len(late) <= 2 and all(128 <= call <= 132 for call in late)


def test_whether_a_list_is_empty() -> None:
    class Log:
        def __init__(self) -> None:
            self.kept: list[int] = []

    def fn(x: torch.Tensor, log: Log) -> torch.Tensor:
        return x + 1 if log.kept else x - 1

    log, counter = Log(), CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for step in range(8):
        assert torch.equal(compiled(X, log), fn(X, log))
        log.kept = [0] * (step % 3)
    assert counter.frame_count == 2


class Log(list[Any]):
    """A list of a class of its own."""


@pytest.mark.parametrize("kind", [list, Log])
def test_a_list_that_is_put_behind_itself(kind: type) -> None:
    def doubled(x: torch.Tensor) -> Any:
        items = kind([x, x + 1])
        items.extend(items)
        items += items
        return len(items), items[-1]

    found, last = dynajit.compile(doubled, backend="eager", fullgraph=True)(X)
    assert found == 8 and torch.equal(last, X + 1)


def probe(iterator: Iterator[Any]) -> list[Any]:
    found = []
    for _ in range(3):
        try:
            found.append(next(iterator))
        except (StopIteration, RuntimeError) as error:
            found.append(repr(error))
    return found


def grow(container: Any) -> None:
    if isinstance(container, dict):
        container[9] = 1
    else:
        container.add(9)


def iterated_then_grown(make: Callable[[], Any]) -> Any:
    container = make()
    iterator = iter(container)
    first = probe(iterator)
    grow(container)
    second = probe(iterator)
    outside()
    return first, second, probe(iterator), type(iterator).__name__, sorted(container)


def grown_before_the_first(make: Callable[[], Any]) -> Any:
    container = make()
    iterator = iter(container)
    grow(container)
    return probe(iterator)


@pytest.mark.parametrize("size", [0, 1, 2, 4])
@pytest.mark.parametrize("kind", [dict.fromkeys, set])
@pytest.mark.parametrize("program", [iterated_then_grown, grown_before_the_first])
def test_containers_that_grow_while_they_are_iterated(program: Any, kind: Any, size: int) -> None:
    same(program, lambda: kind(range(size)))
