"""What is raised while the rest of a function is compiled leaves the blocks that are open there, as in eager mode."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit


class Noted:
    """A context manager that tells how it is left."""

    def __init__(self, seen: list[Any], swallows: bool = False) -> None:
        self.seen, self.swallows = seen, swallows

    def __enter__(self) -> Noted:
        self.seen.append("enter")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        self.seen.append(("exit", kind))
        return self.swallows


def broken(x: Tensor) -> Tensor:
    y = x + 1
    print(end="")
    return y * 2


def without_grad(x: Tensor, seen: list[Any]) -> Tensor:
    with torch.no_grad():
        y = broken(x) + broken(x + 1)
    return y * x


def in_a_manager(x: Tensor, seen: list[Any]) -> Tensor:
    with Noted(seen):
        y = x + 1
        print(end="")
        y = y * 2
    return y + 1


def in_two_managers(x: Tensor, seen: list[Any]) -> Tensor:
    with Noted(seen), torch.autocast("cpu"), Noted(seen):
        return broken(x) + broken(x) @ x


def in_a_callee(x: Tensor, seen: list[Any]) -> Tensor:
    with torch.no_grad(), Noted(seen):
        return in_a_manager(x, seen) + 1


def finally_(x: Tensor, seen: list[Any]) -> Tensor:
    seen.append("enter")
    try:
        x = broken(x) + 1
        return broken(x)
    finally:
        seen.append(("exit", None))


def swallowed(x: Tensor, seen: list[Any]) -> Tensor:
    with Noted(seen, swallows=True):
        return broken(x) + broken(x)
    return x - 7


def caught(x: Tensor, seen: list[Any]) -> Tensor:
    y = x
    try:
        y = x.sin()
        y = broken(y) + broken(y)
    except BaseException:
        return y - 7
    return y


def within_a_handler(x: Tensor, seen: list[Any]) -> Tensor:
    with Noted(seen):
        try:
            y = broken(x)
            raise ValueError
        except ValueError:
            y = broken(y)
            with torch.no_grad():
                y = broken(y + 1)
    return y


def in_a_loop(x: Tensor, seen: list[Any]) -> Tensor:
    for _ in range(3):
        with Noted(seen), torch.no_grad():
            x = broken(x) + 1
    return x


@contextmanager
def by_generator(seen: list[Any]) -> Iterator[None]:
    seen.append("enter")
    try:
        with torch.no_grad():
            yield
    finally:
        seen.append(("exit", None))


def in_a_generator(x: Tensor, seen: list[Any]) -> Tensor:
    with by_generator(seen):
        x = broken(x)
    return broken(x)


def steps(x: Tensor, seen: list[Any]) -> Iterator[Tensor]:
    with Noted(seen):
        x = x + 1
        print(end="")
        yield x * 2
        with torch.no_grad():
            yield broken(x)


def over_a_generator(x: Tensor, seen: list[Any]) -> Tensor:
    with torch.no_grad():
        for y in steps(x, seen):
            x = x + y
    return x


PROGRAMS: list[Callable[[Tensor, list[Any]], Tensor]] = [
    *(without_grad, in_a_manager, in_two_managers, in_a_callee, finally_, swallowed, caught, within_a_handler),
    *(in_a_loop, in_a_generator, over_a_generator),
]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_blocks_are_left(program: Callable[[Tensor, list[Any]], Tensor], kind: type[BaseException]) -> None:
    x, n_graphs, failing = torch.eye(2, requires_grad=True), 0, 0

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        nonlocal n_graphs
        n_graphs += 1
        if n_graphs == failing:
            raise kind
        return gm.forward

    def run(function: Callable[[Tensor, list[Any]], Tensor]) -> tuple[Any, list[Any]]:
        nonlocal n_graphs
        n_graphs, seen = 0, []
        try:
            result: Any = function(x, seen).tolist()
        except KeyboardInterrupt:
            result = KeyboardInterrupt
        except dynajit.exc.BackendCompilerFailed:
            result = RuntimeError
        return result, seen

    wanted, events = run(program)
    run(dynajit.compile(program, backend=backend))
    total = n_graphs
    assert total > 1
    for failing in range(2, total + 1):
        dynajit.reset()
        compiled = dynajit.compile(program, backend=backend)
        result, seen = run(compiled)
        gc.collect()  # generators that a traceback holds
        left = [event for event in seen if event != "enter"]
        assert seen.count("enter") == len(left)
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
        if program not in (swallowed, caught):
            assert result == kind
        assert n_graphs == failing or program in (swallowed, caught)
        failing = 0
        assert run(compiled) == (wanted, events)
