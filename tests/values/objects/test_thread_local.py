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
