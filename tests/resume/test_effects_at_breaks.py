"""Mutations before a break are seen by the broken call and after it: in order, once, and as far as eager code got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same, compare

COUNT = 0
TABLE: dict[str, Any] = {"runs": 0}
HISTORY: list[Any] = []


class State:
    def __init__(self) -> None:
        self.value = 1
        self.items: list[Any] = []
        self.table: dict[str, Any] = {}
        self.members = {1}
        self.tensor = torch.zeros(3)
        self.extra: Any = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


def show(state: State) -> None:
    print(
        state.value,
        len(state.items),
        sorted(state.table),
        sorted(state.members),
        state.tensor.tolist(),
        state.extra is None,
    )


def everything(x: Tensor, s: State) -> Any:
    y = x.sin()
    s.value += 1
    s.items.append(y)
    s.items.extend([1, y])
    s.table["k"] = s.items
    s.members.add(s.value)
    s.tensor = y + s.tensor
    s.extra = s
    show(s)
    s.value *= 2
    s.items.pop(0)
    s.items.remove(1)
    s.items.insert(0, s.items)
    s.table["n"] = s.table.pop("k")
    s.tensor.mul_(2)
    show(s)
    del s.extra
    s.extra = None
    s.items.clear()
    return s.tensor + y, s.table["n"] is s.items


def globals_written(x: Tensor, s: State) -> Any:
    global COUNT
    y = x.sin()
    COUNT += 1
    TABLE["runs"] += 1
    HISTORY.append(COUNT)
    show_globals()
    COUNT += 10
    z = y * COUNT
    show_globals()
    return z


def show_globals() -> None:
    print(COUNT, TABLE, HISTORY)


def new_global(x: Tensor, s: State) -> Any:
    global FRESH
    y = x.sin()
    FRESH = y
    print(FRESH.shape)
    del FRESH
    return "FRESH" in globals()


def aliases(x: Tensor, s: State) -> Any:
    a = b = [x]
    s.items.append(a)
    c = {"a": a}
    b.append(x + 1)
    print(len(a), len(s.items[-1]), c["a"] is b)
    s.items[-1].append(c)
    return a, b, c, a is s.items[-1]


def order_of_stores(x: Tensor, s: State) -> Any:
    s.first, s.second = x + 1, x + 2  # type: ignore[attr-defined]
    s.table["b"] = 1
    s.table["a"] = 2
    del s.table["b"]
    s.table["b"] = 3
    print(list(s.table), [k for k in vars(s) if k in ("first", "second")])
    s.table.update(c=1, a=5)
    s.table.setdefault("d", []).append(x)
    return list(s.table.items())


def new_object_before(x: Tensor, s: State) -> Any:
    t = State()
    t.value = s.value + 1
    t.items.append(t)
    s.extra = t
    show(t)
    t.value += 1
    t.tensor = t.tensor + x
    return t, t.items[0] is t, s.extra is t


def closure_mutated(x: Tensor, s: State) -> Any:
    n = 0

    def bump() -> None:
        nonlocal n
        n += 1
        s.items.append(n)

    bump()
    print("break", n)
    bump()
    bump()
    return x * n, s.items


@pytest.mark.parametrize(
    "fn", [everything, globals_written, new_global, aliases, order_of_stores, new_object_before, closure_mutated]
)
def test_effects(fn: Callable[..., Any]) -> None:
    _restart()
    assert_same(_restarting(fn), torch.randn(3), State(), repeat=1)


def _restart() -> None:
    global COUNT
    COUNT = 0
    TABLE.clear()
    TABLE["runs"] = 0
    HISTORY.clear()


def _restarting(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The globals as they were before each side's call; the function's results and the globals after it."""

    def call(x: Tensor, s: State) -> Any:
        result = fn(x, s)
        after = COUNT, dict(TABLE), list(HISTORY)
        _restart_unseen()
        return result, after

    return call


def _restart_unseen() -> None:
    print("restart")
    _restart()


def stops_in_the_middle(x: Tensor, s: State) -> Any:
    y = x.sin()
    s.items.append(y)
    s.value += 1
    s.table["a"] = s.missing  # type: ignore[attr-defined]
    s.value += 100


def stops_in_a_callee(x: Tensor, s: State) -> Any:
    s.items.append(x.sin())
    fails_late(s)
    s.value += 100


def fails_late(s: State) -> None:
    s.value += 1
    s.table["b"] = {}["missing"]
    s.value += 1000


def stops_in_an_operation(x: Tensor, s: State) -> Any:
    s.items.append(x.sin())
    x.add_(1)
    s.tensor = x @ torch.ones(9, 9)
    x.add_(100)


def stops_after_a_break(x: Tensor, s: State) -> Any:
    s.items.append(x.sin())
    print("break", s.value)
    s.value += 1
    x.add_(1)
    if s.value > 0:
        raise ValueError(s.value)
    s.value += 1000


def caught(x: Tensor, s: State) -> Any:
    try:
        s.items.append(x.sin())
        fails_late(s)
    except KeyError as error:
        s.items.append(str(error))
    return s.value


def caught_break(x: Tensor, s: State) -> Any:
    try:
        stops_after_a_break(x, s)
    except ValueError as error:
        s.items.append(str(error))
    return x * s.value


def wrong_index(x: Tensor, s: State) -> Any:
    s.items.append(1)
    s.items[5] = x + 1
    s.items.append(2)


@pytest.mark.parametrize(
    "fn",
    [
        stops_in_the_middle,
        stops_in_a_callee,
        stops_in_an_operation,
        stops_after_a_break,
        caught,
        caught_break,
        wrong_index,
    ],
)
def test_exceptions_leave_the_state_as_eager(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.randn(3), State(), repeat=3)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.seen: Tensor
        self.last: Any = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.seen += 1
        self.last = y.detach()
        self.calls += 1
        print("break", self.seen.item(), self.calls)
        self.seen.mul_(2)
        self.last = self.last + 1
        self.new_attribute = y.shape
        return y + self.last + self.seen


def test_module_state() -> None:
    assert_same(Counting(), torch.randn(2, 3), repeat=3)


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = model(x).pow(2).sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_backward_in_the_middle(kind: Any) -> None:
    def run(compiled: bool) -> list[Any]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizer = kind(model.parameters(), lr=0.1)
        step = dynajit.compile(training_step, backend="eager") if compiled else training_step
        losses = [step(model, optimizer, torch.ones(2, 3) * i).item() for i in range(4)]
        return [torch.tensor(losses), [p.detach() for p in model.parameters()], [p.grad for p in model.parameters()]]

    # a traced Adam counts its steps in tensors, in float32
    compare(run(True), run(False), exact=False)


def gradients(x: Tensor, w: Tensor) -> Any:
    y = (x * w).sum()
    y.backward()
    g = w.grad.clone()
    w.grad = None
    z = (x * w).pow(2).sum()
    z.backward()
    w.grad += g
    return y.detach(), w.grad * 2


def test_gradients_across_breaks() -> None:
    assert_same(gradients, torch.randn(3), torch.randn(3, requires_grad=True), breaks=2)


def random_numbers(x: Tensor) -> Any:
    a = torch.rand(3)
    print("break", torch.rand(1).item())
    b = torch.rand(3)
    torch.manual_seed(3)
    return a + b + x, torch.rand(2), torch.nn.functional.dropout(x)


def test_random_numbers_come_in_order() -> None:
    assert_same(random_numbers, torch.randn(3), repeat=3)
