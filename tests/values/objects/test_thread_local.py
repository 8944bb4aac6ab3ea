"""`threading.local` in traced code: the running thread's own attributes."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

X = torch.arange(3.0)
STATE = threading.local()
STATE.factor = 3


class Own(threading.local):
    def __init__(self) -> None:
        self.factor = 5


OWN = Own()


def test_attributes_are_read() -> None:
    def read(x: Tensor) -> Any:
        try:
            missing = STATE.nothing
        except AttributeError as error:
            missing = str(error)
        return x * STATE.factor, getattr(STATE, "factor", 0), hasattr(STATE, "nothing"), missing

    assert_same(read, X, graphs=1, breaks=0)


def test_attributes_of_a_subclass_are_read() -> None:
    def read(x: Tensor) -> Any:
        return x * getattr(OWN, "factor", 0), hasattr(OWN, "nothing")

    assert_same(read, X)


def test_each_thread_has_its_own() -> None:
    def read(x: Tensor) -> Tensor:
        return x * getattr(STATE, "factor", 7)

    compiled = dynajit.compile(read, backend="eager")
    results = [compiled(X)]
    thread = threading.Thread(target=lambda: results.append(compiled(X)))
    thread.start()
    thread.join()
    assert torch.equal(results[0], X * 3)
    assert torch.equal(results[1], X * 7)


def test_attributes_are_written() -> None:
    def write(x: Tensor) -> Tensor:
        STATE.count = 2
        STATE.count += 3
        x = x * STATE.count
        del STATE.count
        return x + hasattr(STATE, "count")

    assert_same(write, X)


class Counter(threading.local):
    made = 0
    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.count = 1
        self.seen: list[int] = []

    @property
    def twice(self) -> int:
        return self.count * 2

    def more(self) -> int:
        self.count += 1
        return self.count


COUNTER = Counter()


def test_a_subclass_has_methods_and_properties() -> None:
    def use(x: Tensor) -> Any:
        COUNTER.count = 1
        y = x * COUNTER.twice + COUNTER.more() + COUNTER.limit
        COUNTER.kept = x + 1
        return y * len(COUNTER.seen), COUNTER.kept, getattr(COUNTER, "nothing", 7), COUNTER.__dict__.get("count")

    assert_same(use, X, graphs=1, breaks=0)


def test_the_dictionary_is_the_running_threads() -> None:
    def use(x: Tensor) -> Any:
        STATE.__dict__["more"] = 2
        found = x * STATE.more, STATE.__dict__.get("factor", 7), "nothing" in STATE.__dict__
        del STATE.__dict__["more"]
        return found, hasattr(STATE, "more")

    assert_same(use, X, graphs=1, breaks=0)


def test_a_subclass_begins_anew_in_each_thread() -> None:
    def count(x: Tensor) -> Tensor:
        return x * COUNTER.more() + len(COUNTER.__dict__)

    results: dict[bool, list[Tensor]] = {False: [], True: []}
    compiled = dynajit.compile(count, fullgraph=True, backend="eager")
    for is_compiled, fn in ((False, count), (True, compiled)):
        COUNTER.count = 1
        results[is_compiled] += [fn(X), fn(X)]
        for _ in range(2):
            thread = threading.Thread(target=lambda fn=fn, to=results[is_compiled]: to.extend([fn(X), fn(X)]))
            thread.start()
            thread.join()
        results[is_compiled].append(fn(X))
    assert all(map(torch.equal, results[True], results[False])) and len(results[True]) == 7


MADE: list[str] = []


class Tells(threading.local):
    def __init__(self) -> None:
        MADE.append(threading.current_thread().name)
        self.factor = 2


TELLS = Tells()


def test_one_whose_init_does_more_is_left_alone() -> None:
    def read(x: Tensor) -> Any:
        before = len(MADE)
        return x * TELLS.factor, len(MADE) - before

    compiled = dynajit.compile(read, backend="eager")
    results: list[Any] = []
    for _ in range(2):
        for fn in (read, compiled):
            thread = threading.Thread(target=lambda fn=fn: results.append(fn(X)))
            thread.start()
            thread.join()
    assert [told for _, told in results] == [1, 1, 1, 1]
