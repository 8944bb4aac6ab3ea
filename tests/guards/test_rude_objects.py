"""Objects that lie, raise or die: guards take them for a miss, and the call does what eager does."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit

x = torch.arange(3.0)


@pytest.fixture(autouse=True)
def quiet_and_fresh() -> Iterator[None]:
    """A warning of dynajit's would be an internal error."""
    dynajit.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    Liar.lies = Key.raises = Number.raises = False


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return repr(fn(*args))
    except Exception as error:
        return type(error), str(error)


def same(fn: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> None:
    assert outcome(compiled, *args) == outcome(fn, *args)


class Liar(Tensor):
    """A tensor that, asked for its metadata, says something else or raises."""

    lies = False

    @property
    def shape(self) -> Any:
        return torch.Size([99]) if Liar.lies else Tensor.shape.__get__(self)  # type: ignore[attr-defined]

    @property
    def dtype(self) -> Any:
        return torch.int8 if Liar.lies else Tensor.dtype.__get__(self)

    @property
    def requires_grad(self) -> Any:
        if Liar.lies:
            raise RuntimeError("none of your business")
        return False

    def size(self, *args: Any) -> Any:
        return torch.Size([99]) if Liar.lies else super().size(*args)


@pytest.mark.parametrize("first", [False, True])
def test_a_tensor_subclass_that_lies(first: bool) -> None:
    def fn(t: Tensor) -> Any:
        return t.shape[0], torch.relu(t).sum()

    compiled = dynajit.compile(fn, backend="eager")
    liar = x.as_subclass(Liar)
    for Liar.lies in (first, not first, first, not first):
        same(fn, compiled, liar)
    Liar.lies = False
    same(fn, compiled, x)


class Key:
    raises: bool | str = False

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        if Key.raises == "hash":
            raise ValueError("hash")
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        if Key.raises:
            raise ValueError("eq")
        return isinstance(other, Key) and self.number == other.number

    def __repr__(self) -> str:
        return f"Key({self.number})"


one = Key(1)


def by_key(d: dict[Any, Any], t: Tensor) -> Any:
    return t + d[one]


def contains(d: dict[Any, Any], t: Tensor) -> Any:
    return t + (1 if one in d else 2)


def over_items(d: dict[Any, Any], t: Tensor) -> Any:
    for key, value in d.items():
        t = t + value * key.number
    return t


def compared(d: dict[Any, Any], t: Tensor) -> Any:
    return t + 1 if next(iter(d)) == one else t - 1


@pytest.mark.parametrize("fn", [by_key, contains, over_items, compared])
def test_keys_with_code_of_their_own(fn: Callable[..., Any]) -> None:
    compiled = dynajit.compile(fn, backend="eager")
    known = {Key(1): 5, Key(2): 6}
    for raises in (False, True, "hash", False, True, "hash"):
        for number in (1, 1, 3):
            Key.raises = False
            made = {Key(number): 5, Key(2): 7}
            Key.raises = raises
            same(fn, compiled, known, x)
            same(fn, compiled, made, x)


class Text(str):
    def __eq__(self, other: object) -> bool:
        raise ValueError("eq of a text")

    __hash__ = str.__hash__


class Number(int):
    raises = False

    def __eq__(self, other: object) -> bool:
        if Number.raises:
            raise ValueError("eq of a number")
        return int(self) == other

    __hash__ = int.__hash__


def test_numbers_and_texts_whose_eq_raises() -> None:
    def number(n: Any) -> Any:
        return x * int(n)

    def item(d: dict[Any, Any]) -> Any:
        return x + d["a"]

    compiled = dynajit.compile(number, backend="eager")
    for Number.raises in (False, True, False, True):
        for value in (Number(3), Number(4), 3, True):
            same(number, compiled, value)
    compiled = dynajit.compile(item, backend="eager")
    for made in ({"a": 1}, {Text("a"): 1}, {"b": 2}, {Text("b"): 2}, {"a": 1}):
        same(item, compiled, made)


def test_modules_that_die() -> None:
    class Net(nn.Module):
        def __init__(self, gain: int) -> None:
            super().__init__()
            self.linear, self.gain = nn.Linear(3, 3), gain

        def forward(self, t: Tensor) -> Tensor:
            return self.linear(t) * self.gain

    def fn(module: nn.Module, t: Tensor) -> Tensor:
        return module(t)  # type: ignore[no-any-return]

    compiled = dynajit.compile(fn, backend="eager")
    for count in range(12):
        module = Net(count % 3)
        for _ in range(3):
            same(fn, compiled, module, x)
        died = weakref.ref(module)
        del module
        gc.collect()
        assert died() is None


SHUTDOWN = """
import torch
import dynajit

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(8))
    def forward(self, t):
        for layer in self.layers:
            t = layer(t)
        return t

net = Net()
compiled = dynajit.compile(net, backend="eager")
for _ in range(40):
    compiled(torch.ones(1, 2))

class Late:
    def __del__(self):  # dictionaries that guards have looked at change and die while the interpreter goes
        net.late = 1
        del net.layers[3]
        compiled(torch.ones(1, 2))

keep = [Late()]
keep.append(keep)
net.cycle = keep
print("end")
"""


def test_the_interpreter_shuts_down() -> None:
    done = subprocess.run([sys.executable, "-c", SHUTDOWN], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


class Texts(dict[str, int]):
    shown = int.__repr__


def test_methods_in_c_that_are_replaced() -> None:
    def shown(t: Tensor) -> Any:
        return t + 1, Texts.shown(5)

    def got(t: Tensor, d: Any) -> Any:
        return t + d.get("a")

    texts = Texts(a=1)
    for fn, args, name, other in (
        (shown, (x,), "shown", str),
        (got, (x, texts), "get", lambda self, key: 7),
    ):
        compiled = dynajit.compile(fn, backend="eager")
        same(fn, compiled, *args)
        setattr(Texts, name, other)
        same(fn, compiled, *args)
