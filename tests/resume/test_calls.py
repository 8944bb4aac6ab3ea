"""Breaks inside inlined calls: a continuation for every frame of the chain, two graphs in all."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from assert_programs import asserts_python, asserts_tensor
from resume_harness import skipped
from torch import Tensor, nn

import dynajit
from dynajit.testing import assert_same


def one(x: Tensor) -> Tensor:
    y = x.sin()
    print("deepest")
    return y.cos() + x


def two(x: Tensor) -> Tensor:
    y = x * 2
    return y + one(x + 1) * y


def three(x: Tensor) -> Tensor:
    y = x * 3
    z = [y, two(x + 2), y]
    return sum(z[1:], z[0])


def four(x: Tensor, *, scale: float = 4.0) -> Tensor:
    y = x * scale
    return torch.stack([three(y), y]).sum(0)


def five(x: Tensor) -> Tensor:
    first, second = four(x, scale=5.0), x + 5
    return first / second


@pytest.mark.parametrize("fn", [one, two, three, four, five])
def test_two_graphs_at_any_depth(fn: Callable[[Tensor], Tensor]) -> None:
    report = assert_same(fn, torch.randn(3), graphs=2, breaks=1, recompiles=0)
    names = [location.function for location in report.break_reasons[0].user_stack]
    assert names == ["five", "four", "three", "two", "one"][-len(names) :] and names[0] == fn.__name__


def twice(x: Tensor) -> Tensor:
    return two(x) + two(x.cos())


def test_breaks_in_two_calls_one_after_the_other() -> None:
    assert_same(twice, torch.randn(3), graphs=3, breaks=2, recompiles=0)


def noisy_inside(x: Tensor) -> Tensor:
    x = x + 1
    print("a")
    x = x * 2
    print("b")
    return x - 1


def noisy_outside(x: Tensor) -> Tensor:
    y = noisy_inside(x.sin())
    print("c")
    return y.cos() + x


def test_breaks_in_both_frames() -> None:
    assert_same(noisy_outside, torch.randn(3), graphs=4, breaks=3, recompiles=0)


def raising(x: Tensor) -> Tensor:
    y = x + 1
    print("before")
    if y.dim() == 1:
        raise ValueError("inside")
    return y


def calls_raising(x: Tensor) -> Tensor:
    y = x * 2
    return raising(y) + 1


def calls_calls_raising(x: Tensor) -> Tensor:
    z = calls_raising(x.sin())
    return z + 1


@pytest.mark.parametrize("fn", [raising, calls_raising, calls_calls_raising])
def test_exceptions_after_a_break_show_all_frames(fn: Callable[[Tensor], Tensor]) -> None:
    assert_same(fn, torch.randn(3), breaks=2)


def fails(text: str) -> str:
    raise KeyError(text)


def break_raises(x: Tensor, call: Callable[..., Any]) -> Tensor:
    y = x + 1
    call("a")
    return y


def subscript_raises(x: Tensor, items: Any) -> Tensor:
    y = x.sin()
    _first, _second = items
    return y


def outer_of(x: Tensor, fn: Callable[..., Any], arg: Any) -> Tensor:
    y = x.sin()
    return [y, middle_of(y, fn, arg)][1]


def middle_of(x: Tensor, fn: Callable[..., Any], arg: Any) -> Tensor:
    y = x.cos()
    z = fn(x, arg) + y
    return z


def ambiguous(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    if y > 0:
        return y
    return x


def missing_attribute(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    return y + arg.nothing


def missing_name(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    return y + nothing  # type: ignore[name-defined]  # noqa: F821


def missing_local(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    if arg:
        z = y
    return y + z


def wrong_shape(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    return y @ torch.ones(7, 7)


def wrong_call(x: Tensor, arg: Any) -> Tensor:
    y = x.cos()
    return middle_of(y)  # type: ignore[call-arg]


def raises_from(x: Tensor, arg: Any) -> Tensor:
    x.cos_()
    raise RuntimeError("a", 1) from KeyError("b")


RAISING: list[tuple[Callable[..., Any], Any]] = [
    (break_raises, fails),
    (subscript_raises, [1, 2, 3]),
    (ambiguous, None),
    (missing_attribute, 1),
    (missing_name, 1),
    (missing_local, 0),
    (wrong_shape, 0),
    (wrong_call, 0),
    (raises_from, 0),
    (asserts_tensor, 100),
    (asserts_python, 1),
]


@pytest.mark.parametrize(("fn", "arg"), RAISING, ids=lambda value: getattr(value, "__name__", ""))
def test_a_raising_instruction_shows_all_frames(fn: Callable[..., Any], arg: Any) -> None:
    assert_same(fn, torch.randn(3), arg)
    assert_same(outer_of, torch.randn(3), fn, arg)


class Thing:
    def __init__(self, x: Tensor) -> None:
        self.x = x + 1
        print("init")
        self.y = x + 2

    @property
    def total(self) -> Tensor:
        t = self.x * 2
        print("property")
        return t + self.y

    @classmethod
    def make(cls, x: Tensor) -> Thing:
        y = x * 3
        print("make")
        return cls(y)

    @staticmethod
    def helper(x: Tensor) -> Tensor:
        y = x * 4
        print("helper")
        return y + 1

    def method(self, x: Tensor) -> Tensor:
        y = x * self.x
        print("method")
        return y + self.y

    def __call__(self, x: Tensor) -> Tensor:
        y = x - self.x
        print("call")
        return y - self.y

    def __enter__(self) -> Tensor:
        y = self.x * 5
        print("enter")
        return y + 1

    def __exit__(self, *exc_info: object) -> None:
        self.y = self.y + 1
        print("exit", exc_info[0])

    def __add__(self, other: Tensor) -> Tensor:
        y = self.x + other
        print("add")
        return y * 2


class Child(Thing):
    def __init__(self, x: Tensor) -> None:
        y = x.sin()
        super().__init__(y)
        self.z = y + self.y

    def method(self, x: Tensor) -> Tensor:
        y = super().method(x.cos())
        return y + self.z


def constructs(x: Tensor) -> Any:
    t = Thing(x.sin())
    return t.x + t.y


def constructs_child(x: Tensor) -> Any:
    t = Child(x.sin())
    return t.x + t.y + t.z


def reads_property(x: Tensor, t: Thing) -> Any:
    return x.sin() + t.total * 2


def class_method(x: Tensor) -> Any:
    return Thing.make(x.sin()).x


def static_method(x: Tensor) -> Any:
    return Thing.helper(x.sin()) + 1


def method(x: Tensor, t: Thing) -> Any:
    return t.method(x.sin()) + 1


def calls_instance(x: Tensor, t: Thing) -> Any:
    return t(x.sin()) + 1


def enters(x: Tensor, t: Thing) -> Any:
    y = x.sin()
    with t as inside:
        y = y + inside
    return y.cos() + t.y


def operator(x: Tensor, t: Thing) -> Any:
    return (t + x.sin()) + 1


def partial(x: Tensor, t: Thing) -> Any:
    return functools.partial(t.method)(x.sin()) + 1


def local_function(x: Tensor) -> Any:
    def inner(y: Tensor) -> Tensor:
        z = y + x
        print("inner")
        return z * x

    return inner(x.sin()) + inner(x.cos())


def lambda_function(x: Tensor) -> Any:
    f = lambda y: [y.sin(), print("lambda"), y.cos()][2]  # noqa: E731
    return f(x.sin()) + 1


def callback(x: Tensor) -> Any:
    def key(pair: tuple[int, Tensor]) -> int:
        print("key", pair[0])
        return -pair[0]

    y = x.sin()
    ordered = sorted([(1, y), (2, y + 1)], key=key)
    return ordered[0][1] * 2


def comprehension(x: Tensor) -> Any:
    y = x.sin()
    z = [h(y + i) for i in range(3)]
    return sum(z, y)


def h(x: Tensor) -> Tensor:
    y = x.cos()
    print("h")
    return y.sin() + 1


def generator(x: Tensor) -> Any:
    def items() -> Any:
        yield x + 1
        print("between")
        yield x + 2

    y = x.sin()
    total = sum(items(), y)
    return total.cos()


def in_generator_expression(x: Tensor) -> Any:
    y = x.sin()
    return sum((h(y + i) for i in range(2)), y).cos()


def recursion(x: Tensor, n: int = 4) -> Any:
    if n == 0:
        print("bottom")
        return x.sin()
    return recursion(x + 1, n - 1) * 2


METHODS = [reads_property, method, calls_instance, operator, partial]
FUNCTIONS = [constructs, constructs_child, class_method, static_method, local_function, lambda_function]
LIFTED = [callback, comprehension, generator, in_generator_expression]


@pytest.mark.parametrize("fn", METHODS)
@pytest.mark.parametrize("kind", [Thing, Child])
def test_methods(fn: Callable[..., Any], kind: type[Thing], capsys: pytest.CaptureFixture[str]) -> None:
    report = assert_same(fn, torch.randn(3), kind(torch.randn(3)), graphs=2, breaks=1, recompiles=0)
    assert not skipped(report), report


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_functions(fn: Callable[..., Any]) -> None:
    report = assert_same(fn, torch.randn(3), recompiles=0)
    assert not skipped(report), report


@pytest.mark.parametrize("fn", LIFTED)
def test_breaks_in_callbacks_and_iterators(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.randn(3))


def test_context_manager(capsys: pytest.CaptureFixture[str]) -> None:
    assert_same(enters, torch.randn(3), Thing(torch.randn(3)), recompiles=0)


def test_recursion() -> None:
    assert_same(recursion, torch.randn(3), graphs=2, breaks=1, recompiles=0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        print("layer", self.calls)
        self.calls += 1
        return y.relu() + x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Layer(), Layer()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x.sin())
        return self.second(y.cos()) * y


def test_modules() -> None:
    report = assert_same(Net(), torch.randn(2, 3), repeat=1, graphs=3, breaks=2)
    assert not skipped(report), report
    assert_same(Net(), torch.randn(2, 3), repeat=3)


def test_module_in_sequential() -> None:
    report = assert_same(nn.Sequential(Net(), nn.ReLU(), Net()), torch.randn(2, 3), repeat=1)
    assert report.graph_count >= 5


def writes_to(x: Tensor, file: io.StringIO) -> Tensor:
    y = x.sin()
    log(y.shape, file)
    return y.cos()


def log(value: object, file: io.StringIO) -> None:
    try:
        file.write(f"{value}\n")
    finally:
        file.flush()


def test_region_in_a_callee() -> None:
    file = io.StringIO()
    report = dynajit.explain(writes_to)(torch.randn(3), file)
    assert file.getvalue() == "torch.Size([3])\n"
    assert (report.graph_count, report.graph_break_count) == (2, 2)
    assert all(broken.lifted_from is None for broken in report.break_reasons)
