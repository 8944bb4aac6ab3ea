"""Each program hundreds of times: objects, blocks of Python's memory and bytes of malloc's stay level."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dynajit

CALLS = 300
X = torch.ones(3)


class _Mallinfo2(ctypes.Structure):
    """Of ten numbers the eighth: bytes in use."""

    _fields_ = [("others", ctypes.c_size_t * 7), ("used", ctypes.c_size_t), ("rest", ctypes.c_size_t * 2)]


def allocated() -> tuple[int, int, int]:
    """Objects that the collector knows, blocks of Python's allocator, bytes of malloc's."""
    gc.collect()
    gc.collect()
    libc = ctypes.CDLL(None)
    used = 0
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _Mallinfo2
        used = libc.mallinfo2().used
    return len(gc.get_objects()), sys.getallocatedblocks(), used


@contextlib.contextmanager
def doubled(seen: list[int]) -> Iterator[int]:
    seen.append(1)
    yield 2
    seen.pop()


def straight(x: torch.Tensor) -> Any:
    return x * 2 + 1, [x, {"a": x + 1}]


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    dynajit.graph_break()
    return y * 2


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x + 1
        dynajit.graph_break()
    return x


def in_a_block(x: torch.Tensor) -> torch.Tensor:
    seen: list[int] = []
    with doubled(seen) as by:
        x = x * by
        dynajit.graph_break()
    return x + len(seen)


def raised_and_caught(x: torch.Tensor) -> torch.Tensor:
    try:
        dynajit.graph_break()
        raise ValueError(x)
    except ValueError as error:
        return error.args[0] * 2


def through_closures(x: torch.Tensor) -> torch.Tensor:
    count = 0

    def inner(y: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        dynajit.graph_break()
        return y + count

    return inner(x) + inner(x)


def generated(x: torch.Tensor) -> torch.Tensor:
    def parts() -> Iterator[torch.Tensor]:
        for i in range(3):
            yield x + i

    return sum(parts(), x)


def branched(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def mutated(x: torch.Tensor) -> Any:
    table: dict[str, Any] = {"x": x}
    table["y"] = x.clone().add_(1)
    table.pop("x")
    return table


def fails(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    dynajit.graph_break()
    raise KeyError(y)


@pytest.fixture(autouse=True)
def what_is_there_does_not_count() -> Iterator[None]:
    """The collector passes over what torch's import made, which is most of a collection's time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


PROGRAMS = [
    *(straight, broken, in_a_loop, in_a_block, raised_and_caught, through_closures, generated, branched, mutated, fails)
]


def level(step: Callable[[torch.Tensor], Any], calls: int) -> None:
    """Check that so many calls leave nothing behind."""

    def run(count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(KeyError):
                step(X)

    run(60)
    before = allocated()
    run(calls)
    growth = [after - first for first, after in zip(before, allocated(), strict=True)]
    # What grows with every call grows by as many; caches of the interpreter's and of torch's may take a little.
    assert growth[0] < calls // 10 and growth[1] < calls // 4 and growth[2] < 40 * calls, growth


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_calls_leave_nothing(program: Callable[[torch.Tensor], Any]) -> None:
    level(dynajit.compile(program, backend="eager"), CALLS)


def test_generated_kernels_leave_nothing() -> None:
    level(dynajit.compile(straight), CALLS)


def test_some_of_the_test_programs_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make leaks` calls each of them a thousand times."""
    folder = Path(__file__).resolve().parents[2] / "tools"
    monkeypatch.syspath_prepend(str(folder))
    leaks = importlib.import_module("leaks")
    chosen = list(leaks.programs("test_functions."))[::12]
    assert len(chosen) > 2
    assert {name: leaks.leaks(case, 100, "eager") for name, case in chosen} == dict.fromkeys(name for name, _ in chosen)
