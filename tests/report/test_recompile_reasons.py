"""What a recompile says: the guard that failed, its source, the old and the new value, and the line that made it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.report import records

x = torch.ones(3)
GAIN = 1


class Thing:
    rate = 1

    def __init__(self, value: int = 1) -> None:
        self.value = value

    def method(self) -> int:
        return 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.gain = nn.Linear(3, 3), 1

    def forward(self, t: Tensor) -> Tensor:
        return self.linear(t) * self.gain


def default(t: Tensor, k: int = 1) -> Tensor:
    return t * k


def made_anew(t: Tensor) -> Tensor:
    return t - 1


def other_method(self: Thing) -> int:
    return 9


def add(t: Tensor) -> Tensor:
    return t + 1  # here


def times(t: Tensor, n: Any) -> Tensor:
    return t * n  # here


def measured(t: Tensor, n: Any) -> Tensor:
    return t * len(n)  # here


def total(t: Tensor, n: dict[str, int]) -> Tensor:
    return t * sum(n.values())  # here


def member(t: Tensor, n: set[int]) -> Tensor:
    return t * (1 if 2 in n else 2)  # here


def of_global(t: Tensor) -> Tensor:
    return t * GAIN  # here


def attribute(t: Tensor, n: Thing) -> Tensor:
    return t * n.value  # here


def absent(t: Tensor, n: Thing) -> Tensor:
    return t * (1 if hasattr(n, "extra") else 2)  # here


def of_class(t: Tensor, n: Thing) -> Tensor:
    return t * n.rate  # here


def method(t: Tensor, n: Thing) -> Tensor:
    return t * n.method()  # here


def called(t: Tensor, n: Callable[[Tensor], Tensor]) -> Tensor:
    return n(t)  # here


def by_default(t: Tensor) -> Tensor:
    return default(t)


def module(t: Tensor, n: nn.Module) -> Tensor:
    return n(t)


def behind_break(t: Tensor, n: Any) -> Tensor:
    kept = n
    print(end="")
    return t * kept


def inside_behind_break(t: Tensor, n: Any) -> Tensor:
    return t + behind_break(t, n)


def recursive(t: Tensor, n: Any, depth: int = 2) -> Tensor:
    if depth:
        return recursive(t, n, depth - 1) + n
    print(end="")
    return t * n


def stacked(t: Tensor, n: Tensor) -> list[Any]:
    return [n + 1, print(end=""), t * 2]


def stacked_inside(t: Tensor, n: Tensor) -> list[Any]:
    return [stacked(t, n)]


def nothing() -> None:
    """Between two calls."""


def set_gain() -> None:
    global GAIN
    GAIN = 2


def put(target: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(target, name, value)


thing, net = Thing(), Net()
# function, arguments, what happens then, other arguments, what the report has to say
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Callable[[], Any], tuple[Any, ...], list[str]]] = {
    "dtype": (add, (x,), nothing, (x.double(),), ["L['t']", "dtype was torch.float32, is torch.float64"]),
    "sizes": (add, (x,), nothing, (torch.ones(4),), ["L['t']", "(3,), is (4,)"]),
    "strides": (add, (torch.ones(2, 3),), nothing, (torch.ones(3, 2).t(),), ["L['t']", "(3, 1), is (1, 2)"]),
    "requires_grad": (add, (x,), nothing, (torch.ones(3, requires_grad=True),), ["was False, is True"]),
    "type": (add, (x,), nothing, (3,), ["L['t']", "a tensor, is 3"]),
    "int": (times, (x, 1), nothing, (x, 2), ["L['n'] was 1, is 2"]),
    "float": (times, (x, 1.5), nothing, (x, 2.5), ["L['n'] was 1.5, is 2.5"]),
    "text": (measured, (x, "a"), nothing, (x, "bb"), ["L['n'] was 'a', is 'bb'"]),
    "length": (measured, (x, [1]), nothing, (x, [1, 2]), ["len(L['n']) was 1, is 2"]),
    "keys": (total, (x, {"a": 1}), nothing, (x, {"b": 1}), ["L['n']", "['a'], are ['b']"]),
    "members": (member, (x, {1}), nothing, (x, {2}), ["L['n']", "{1}", "{2}"]),
    "global": (of_global, (x,), set_gain, (x,), ["GAIN", "was 1, is 2"]),
    "attribute": (attribute, (x, thing), nothing, (x, Thing(2)), ["L['n'].value was 1, is 2"]),
    "absence": (absent, (x, thing), put(thing, "extra", 1), (x, thing), ["L['n'] has now an attribute 'extra'"]),
    "class": (of_class, (x, thing), put(Thing, "rate", 7), (x, thing), ["'rate'", "was 1, is 7"]),
    "method": (
        method,
        (x, thing),
        put(Thing, "method", other_method),
        (x, thing),
        ["Thing.method", "is function other_me"],
    ),
    "function": (called, (x, made_anew), nothing, (x, add), ["was function made_anew", "is function add"]),
    "built-in": (called, (x, torch.sin), nothing, (x, torch.cos), ["was built-in sin, is built-in cos"]),
    "default": (by_default, (x,), put(default, "__defaults__", (5,)), (x,), ["default", "was 1, is 5"]),
    "module's attribute": (module, (x, net), put(net, "gain", 4), (x, net), ["L['n'].gain was 1, is 4"]),
    "hooks": (
        module,
        (x, net),
        lambda: net.linear.register_forward_hook(lambda *args: None),
        (x, net),
        ["'linear'", "has hooks now"],
    ),
    "grad mode": (add, (x,), lambda: torch.set_grad_enabled(False), (x,), ["grad mode was 1, is 0"]),
    "default dtype": (add, (x,), lambda: torch.set_default_dtype(torch.float64), (x,), ["default dtype"]),
}


@pytest.fixture(autouse=True)
def modes_as_they_were() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("fn", "before", "after", "said"),
    [
        (behind_break, 2.5, 3.5, "L['kept'] was 2.5, is 3.5"),
        (inside_behind_break, 2.5, 3.5, "L['kept of behind_break'] was 2.5, is 3.5"),
        (recursive, 2.5, 3.5, "L['n of recursive (2)'] was 2.5, is 3.5"),
        (stacked, torch.ones(3), torch.ones(3).double(), "on the stack before line {line}']: dtype was"),
        (stacked_inside, torch.ones(3), torch.ones(3).double(), "on the stack before line {line} of stacked']: dtype"),
    ],
)
def test_reason_behind_a_break_has_the_users_names(fn: Callable[..., Any], before: Any, after: Any, said: str) -> None:
    dynajit.reset()
    compiled = dynajit.compile(fn, backend="eager", dynamic=False)
    compiled(x, before)
    found: list[records.CompileRecord] = []
    with records.listen(found.append):
        compiled(x, after)
    line = stacked.__code__.co_firstlineno + 1
    reasons = [record.recompile_reason or "" for record in found]
    assert any(said.format(line=line) in reason for reason in reasons), reasons
    assert not any("inner" in reason or "stack0" in reason for reason in reasons)


@pytest.mark.parametrize("name", CASES)
def test_reason(name: str) -> None:
    fn, args, change, others, said = CASES[name]
    dynajit.reset()
    compiled = dynajit.compile(fn, backend="eager", dynamic=False)
    compiled(*args)
    change()
    found: list[records.CompileRecord] = []
    with records.listen(found.append):
        compiled(*others)
    reason = found[0].recompile_reason
    assert reason is not None
    for text in said:
        assert text in reason
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    first = fn.__code__.co_firstlineno
    if lines[first].endswith("# here") and "mode" not in name and name != "default dtype":
        assert f"{os.path.basename(__file__)}:{first + 1})" in reason
