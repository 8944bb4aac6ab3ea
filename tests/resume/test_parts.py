"""Continuations as stubs: captured in the middle of the original's code, assembled only where one runs uncaptured."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.bytecode import continuation, decode, part
from dynajit.config import config
from dynajit.testing import assert_same

X = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions whose rest was assembled."""
    made: list[str] = []
    emit = continuation.Tail.emit

    def record(tail: continuation.Tail, index: int) -> None:
        made.append(tail.code.name)
        emit(tail, index)

    monkeypatch.setattr(continuation.Tail, "emit", record)
    return made


def many_breaks(x: Tensor) -> Tensor:
    x = x.sin()
    print("one")
    x = x.cos()
    print("two")
    x = rest(x) + 1
    print("three")
    try:
        x = x * 2
        print("four")
    except ValueError:
        x = x - 1
    return x.tan()


def rest(x: Tensor) -> Tensor:
    x = x + 2
    print("inside")
    return x * 3


def test_captured_continuations_are_not_assembled(assembled: list[str]) -> None:
    assert_same(many_breaks, X, graphs=6, breaks=5)
    assert assembled == []


def test_original_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    module: Any = sys.modules["dynajit.bytecode.decode"]
    real = module._decode_instrs

    def record(code: CodeType) -> Any:
        decoded.append(code.co_name)
        return real(code)

    monkeypatch.setattr(module, "_decode_instrs", record)
    assert_same(many_breaks, X)
    assert decoded.count("many_breaks") <= 1
    assert decoded.count("rest") <= 1


def counts(x: Tensor, n: int) -> Tensor:
    x = x + 1
    print("before")
    return x * n + after(x, n)


def after(x: Tensor, n: int) -> Tensor:
    print("n is", n)
    if n == 3:
        raise ValueError(n)
    return x / n


@pytest.mark.parametrize("limit", [1, 2])
def test_over_the_recompile_limit(limit: int, assembled: list[str], recwarn: Any) -> None:
    with config.patch(recompile_limit=limit):
        assert_same(counts, X, 1.5, then=[(X, n) for n in (2.5, "b", 3, [1], 4.5, 3)])
    assert assembled


def caught(x: Tensor, n: int) -> tuple[Tensor, str]:
    x = x + 1
    try:
        print("before")
        y = after(x, n)
    except ValueError as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        return x, "".join(names)
    return y, "none"


def test_handlers_over_the_limit(recwarn: Any) -> None:
    with config.patch(recompile_limit=1):
        assert_same(caught, X, 1.5, then=[(X, 3), (X, 2), (X, 3)])


def traced(x: Tensor, seen: list[str]) -> Tensor:
    x = x + 1

    def trace(frame: Any, event: str, arg: Any) -> None:
        seen.append(frame.f_code.co_name)

    sys.settrace(trace)
    x = x * 2
    print("traced")
    sys.settrace(None)
    return x - 1


def test_under_a_trace_function() -> None:
    compiled = dynajit.compile(traced, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X, []), (X + 1) * 2 - 1)


def replaces(x: Tensor, change: Callable[[bool], None]) -> Tensor:
    x = x + 1
    change(True)
    x = x * len([1, 2])
    change(False)
    return x - 1


def test_where_a_builtin_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    real = len

    @dynajit.disable
    def change(on: bool) -> None:
        builtins.len = (lambda items: 7) if on else real  # type: ignore[assignment]

    try:
        for _ in range(2):
            assert torch.equal(dynajit.compile(replaces, backend="eager")(X, change), (X + 1) * 7 - 1)
    finally:
        builtins.len = real


def loops(x: Tensor, items: list[int]) -> Tensor:
    for item in Iterable(items):
        x = x * item
        print(item)
    return x + 1


class Iterable:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        print("begins")
        return iter(self.items)


def test_loop_behind_a_break_at_its_iterator() -> None:
    assert_same(loops, X, [1, 2, 3], then=[(X, [])])


def empties(x: Tensor, n: int) -> Tensor:
    for item in range(n):
        found = x * item
        print(item)
        if item == 1:
            del found
    print("behind")
    return x + found


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_a_local_that_may_be_unbound(n: int) -> None:
    assert_same(empties, X, n)


def test_arguments_by_kind() -> None:
    code = decode(many_breaks.__code__)
    made = part.Part(code, code.entry, ["value", "null", "value"], ["x"], [])
    line = code.instrs[code.entry].lineno
    on_stack = [f"value {number} on the stack before line {line}" for number in (1, 2)]
    assert made.names == (*on_stack, "x")
    assert list(made.split([1, 2, 3])) == [[1, 2], [3], [], [], []]
