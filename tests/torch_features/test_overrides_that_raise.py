"""`__torch_function__` raises: an operator makes NotImplemented of a TypeError, everything else hands it on."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

import dynajit
from dynajit.testing import compare

BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
UNARY = ("neg", "pos", "abs", "invert")

Op = Callable[[Any, Any], Any]


def named(name: str) -> Any:
    return getattr(operator, name)


def swapped(op: Op) -> Op:
    return lambda a, b: op(b, a)


def on_number(op: Op) -> Op:
    return lambda a, b: op(2, a)


def unary(op: Callable[[Any], Any]) -> Op:
    return lambda a, b: op(a)


OPS: dict[str, Op] = {
    **{name: named(name) for name in (*BINARY, *IN_PLACE, *COMPARED)},
    **{f"{name}, reflected": swapped(named(name)) for name in BINARY},
    **{f"{name} with a number": on_number(named(name)) for name in BINARY},
    **{name: unary(named(name)) for name in UNARY},
    "method": lambda a, b: a.add(b),
    "special method": lambda a, b: a.__add__(b) is NotImplemented,
    "function": lambda a, b: torch.add(a, b),
    "item": lambda a, b: a[0],
    "set item": lambda a, b: operator.setitem(a, 0, 1),
    "attribute": lambda a, b: a.T,
    "in": lambda a, b: 1 in a,
}


class Refusing(Tensor):
    error: type[Exception] = TypeError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise cls.error(f"not {func.__name__}")


class RefusingMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Refusing.error(f"not {func.__name__}")


def raised_by(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("error", [TypeError, ValueError])
@pytest.mark.parametrize("asked", ["class", "mode"])
@pytest.mark.parametrize("name", OPS)
def test_what_an_override_raises(
    name: str, asked: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Refusing, "error", error)
    op = OPS[name]

    def program(x: Tensor) -> Any:
        other = x + 1
        if asked == "class":
            return raised_by(op, x.as_subclass(Refusing), other), other * 2
        with RefusingMode():
            found = raised_by(op, x, other)
        return found, other * 2

    compiled = dynajit.compile(program, backend="eager")
    for _ in range(2):
        compare(compiled(torch.tensor([1, 2])), program(torch.tensor([1, 2])))
