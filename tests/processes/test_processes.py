"""Compiled functions and processes: fork after and while compiling, spawned processes, workers of a DataLoader."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import dynajit
from dynajit.locks import process_lock

LONGEST = 120  # seconds; a child that hangs is ended


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a forked child, which ends at once."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(LONGEST)
            status = 0 if work() else 2
        except BaseException as error:
            print(f"in the child: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def scaled(x: Tensor, by: float = 2.0) -> Tensor:
    return torch.relu(x * by) + 1


def test_fork_after_compiling() -> None:
    compiled = dynajit.compile(scaled)
    x = torch.randn(4)
    compiled(x)

    def work() -> bool:
        old, new, other = torch.randn(4), torch.randn(5), torch.randn(6, dtype=torch.float64)
        again = all(torch.allclose(compiled(value), scaled(value)) for value in (old, new, other))
        dynajit.reset()
        return again and torch.allclose(compiled(old, 3.0), scaled(old, 3.0))

    assert in_child(work)
    assert torch.allclose(compiled(x), scaled(x))


# the engine asks CUDA for its devices, or for the one that fake tensors stand in for where there is none
_NEEDS_NO_CUDA = pytest.mark.skipif(torch.backends.cuda.is_built(), reason="its engine survives no fork")


@pytest.mark.parametrize("grad", [False, pytest.param(True, marks=_NEEDS_NO_CUDA)])
def test_fork_while_another_thread_compiles(grad: bool) -> None:
    """The child has only the thread that forked; what the other held must not stay held."""
    inside, go_on = threading.Event(), threading.Event()

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        compiled = dynajit.lookup_backend("codegen")(gm, inputs)
        inside.set()
        go_on.wait(LONGEST)
        return compiled

    def slow(x: Tensor) -> Tensor:
        return x.sin() * 3

    limit, thresholds = sys.getrecursionlimit(), gc.get_threshold()
    thread = threading.Thread(target=lambda: dynajit.compile(slow, backend=backend)(torch.ones(3, requires_grad=grad)))
    thread.start()
    assert inside.wait(LONGEST)

    def work() -> bool:
        compiled, x = dynajit.compile(scaled), torch.ones(3, requires_grad=grad)
        right = torch.allclose(compiled(x), scaled(x))
        return right and sys.getrecursionlimit() == limit and gc.get_threshold() == thresholds

    try:
        assert in_child(work)
    finally:
        go_on.set()
        thread.join()


def test_fork_in_the_middle_of_a_compile() -> None:
    """The thread that compiles forks: both sides go on compiling, and both are right."""
    x = torch.ones(3)
    children: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        children.append(os.fork())
        return dynajit.lookup_backend("codegen")(gm, inputs)

    status = 1
    try:
        result = dynajit.compile(lambda x: x.sin() * 3 + 1, backend=backend)(x)
        other = dynajit.compile(scaled)(x)
        right = torch.allclose(result, x.sin() * 3 + 1) and torch.allclose(other, scaled(x))
        status = 0 if right else 2
    finally:
        if children and children[0] == 0:
            os._exit(status)
    assert right
    _, ended = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(ended) == 0


def test_a_lock_held_elsewhere_is_open_in_the_child() -> None:
    lock = process_lock()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait(LONGEST)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(LONGEST)

    def work() -> bool:
        with lock, lock:
            return True

    try:
        assert in_child(work)
    finally:
        go_on.set()
        thread.join()
    with lock:
        assert in_child(work)  # held by the thread that forks


def test_compiling_in_parent_and_child() -> None:
    compiled = dynajit.compile(lambda x: (x - 1).cos())

    def work() -> bool:
        return torch.allclose(compiled(torch.ones(3)), torch.ones(()))

    assert in_child(work)
    assert work()


MODULE_LEVEL = dynajit.compile(scaled)


def _spawned(queue: Any, compiled: Any, module: nn.Module) -> None:
    x = torch.arange(3.0)
    queue.put((compiled(x).tolist(), module(x).tolist(), MODULE_LEVEL(x).tolist()))


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_spawned_process() -> None:
    module = dynajit.compile(Doubled())
    x = torch.arange(3.0)
    MODULE_LEVEL(x), module(x)
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=_spawned, args=(queue, MODULE_LEVEL, module))
    process.start()
    found = queue.get()
    process.join()
    assert process.exitcode == 0
    assert found == (scaled(x).tolist(), (x * 2).tolist(), scaled(x).tolist())


class Items(Dataset[Tensor]):
    """Each item goes through a compiled transform."""

    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Tensor:
        return self.transform(torch.full((4,), float(index)))


@pytest.mark.parametrize(("method", "warm"), [("fork", False), ("fork", True), ("spawn", True)])
def test_workers_of_a_data_loader(method: str, warm: bool) -> None:
    items = Items(MODULE_LEVEL)
    if warm:
        items[0]
    loader = DataLoader(items, batch_size=4, num_workers=2, multiprocessing_context=method)
    for turn, batch in enumerate(loader):
        expected = torch.stack([scaled(torch.full((4,), float(turn * 4 + row))) for row in range(4)])
        torch.testing.assert_close(batch, expected)


def test_copies_work_on_their_own() -> None:
    module = dynajit.compile(Doubled())
    x = torch.arange(3.0)
    module(x)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), copy.copy(module)):
        assert torch.equal(twin(x), x * 2)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.fill_(5.0)
    assert torch.equal(twin(x), x * 5)
    assert torch.equal(module(x), x * 2)
    for again in (copy.copy(MODULE_LEVEL), copy.deepcopy(MODULE_LEVEL), pickle.loads(pickle.dumps(MODULE_LEVEL))):
        assert torch.equal(again(x), scaled(x))
