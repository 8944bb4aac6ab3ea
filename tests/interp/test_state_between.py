"""What a program changes between calls of equal modules, or of one function, and they read without being handed it."""

import contextvars
import decimal
import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit

VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("variable", default=1.0)
LOCAL = threading.local()
SPACE = types.SimpleNamespace(by=1.0)
LIST, TABLE, SET = [1.0], {"by": 1.0}, {1.0}
GLOBAL = 1.0


class Holder:
    by = 1.0

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


HOLDER = Holder()


def function() -> float:
    return function.by  # type: ignore[attr-defined, no-any-return]


def counter() -> tuple[Callable[[], float], Callable[[float], None]]:
    held = 1.0

    def read() -> float:
        return held

    def write(value: float) -> None:
        nonlocal held
        held = value

    return read, write


READ, WRITE = counter()


def _global(value: float) -> None:
    global GLOBAL
    GLOBAL = value


def _set_item(container: Any, key: Any) -> Callable[[float], None]:
    return lambda value: container.__setitem__(key, value)


def _set_attr(obj: Any, name: str) -> Callable[[float], None]:
    return lambda value: setattr(obj, name, value)


def _only(value: float) -> None:
    SET.clear()
    SET.add(value)


# what is changed -> what changes it to a number, what reads it
STATES: dict[str, tuple[Callable[[float], object], Callable[[], float]]] = {
    "context variable": (VARIABLE.set, VARIABLE.get),
    "thread's local": (_set_attr(LOCAL, "by"), lambda: LOCAL.by),
    "attribute": (_set_attr(SPACE, "by"), lambda: SPACE.by),
    "attribute through __getattribute__": (_set_attr(HOLDER, "by"), lambda: HOLDER.by),
    "attribute of a class": (_set_attr(Holder, "by"), lambda: Holder.by),
    "attribute of a function": (_set_attr(function, "by"), function),
    "item of a list": (_set_item(LIST, 0), lambda: LIST[0]),
    "item of a dict": (_set_item(TABLE, "by"), lambda: TABLE["by"]),
    "item of an instance's dict": (lambda value: vars(SPACE).__setitem__("by", value), lambda: SPACE.by),
    "set": (_only, lambda: sum(SET)),
    "cell": (WRITE, READ),
    "global": (_global, lambda: GLOBAL),
    "global through the dict": (lambda value: globals().__setitem__("GLOBAL", value), lambda: GLOBAL),
    "default of a function": (
        lambda value: setattr(given, "__defaults__", (value,)),
        lambda: given(),
    ),
    "gradients": (lambda value: torch.set_grad_enabled(value > 1), lambda: float(torch.is_grad_enabled())),
    "default dtype": (
        lambda value: torch.set_default_dtype(torch.float64 if value > 1 else torch.float32),
        lambda: float(torch.get_default_dtype() is torch.float64),
    ),
    "recursion limit": (
        lambda value: sys.setrecursionlimit(1000 + int(value)),
        lambda: float(sys.getrecursionlimit() - 1000),
    ),
    "environment": (
        lambda value: os.environ.__setitem__("DYNAJIT_TEST_STATE", str(value)),
        lambda: float(os.environ["DYNAJIT_TEST_STATE"]),
    ),
    "precision": (
        lambda value: setattr(decimal.getcontext(), "prec", int(value)),
        lambda: float(decimal.getcontext().prec),
    ),
}


def given(value: float = 1.0) -> float:
    return value


class Layer(nn.Module):
    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.read()


class Stack(nn.Module):
    def __init__(self, what: str, layers: bool) -> None:
        super().__init__()
        self.write, self.read = STATES[what]
        self.layers = nn.ModuleList(Layer(self.read if layers else float) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            if at in (3, 5):
                self.write(float(at))
            x = layer(x) + self.read() + self.read()
        return x


@pytest.mark.parametrize("layers", [True, False], ids=["layers", "function"])
@pytest.mark.parametrize("what", STATES)
def test_state_changed_between_equal_calls(what: str, layers: bool) -> None:
    torch.manual_seed(0)
    stack, x = Stack(what, layers), torch.randn(2, 4)
    compiled = dynajit.compile(stack, backend="eager")
    before, limit, dtype = decimal.getcontext().prec, sys.getrecursionlimit(), torch.get_default_dtype()
    found = []
    try:
        for call in (stack, compiled, compiled):
            stack.write(1.0)
            torch.set_grad_enabled(False)
            found.append(call(x))
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(dtype)
        sys.setrecursionlimit(limit)
        decimal.getcontext().prec = before
        os.environ.pop("DYNAJIT_TEST_STATE", None)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
