"""Tensor subclasses and other objects with `__torch_function__`, followed into one graph; with `__torch_dispatch__`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import dynajit
from dynajit.testing import compare

BACKENDS = ["eager", "codegen"]


class Plain(torch.Tensor):
    """Has torch's own `__torch_function__`, and a property and a method."""

    @property
    def twice(self) -> Any:
        return self * 2

    def scaled(self, factor: float) -> Any:
        return self.mul(factor)


class Tagged(torch.Tensor):
    """Hands its tag on to results."""

    tag: Any = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Tagged):
            result.tag = next((arg.tag for arg in args if isinstance(arg, Tagged)), None)
        return result


class Unit(torch.Tensor):
    """Made with attributes by its own `__new__`; addition of different units raises."""

    unit: str

    def __new__(cls, data: torch.Tensor, unit: str = "m") -> Any:
        made = super().__new__(cls, data)
        made.unit = unit
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        units = [arg.unit for arg in args if isinstance(arg, Unit)]
        if func in (torch.Tensor.add, torch.add) and len(set(units)) > 1:
            raise ValueError(f"units {units}")
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return cls(result, units[0]) if type(result) is torch.Tensor else result


class Swapped(torch.Tensor):
    """Takes one function for another, by a table."""

    handled: dict[Any, Callable[..., Any]] = {}

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in cls.handled:
            return cls.handled[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


Swapped.handled = {torch.sin: torch.cos, torch.cat: lambda parts, dim=0: torch.stack(list(parts), dim) * 2}


class Boxed:
    """No tensor, but torch's functions take it."""

    def __init__(self, value: torch.Tensor, seen: list[str]) -> None:
        self.value = value
        self.seen = seen

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen = next(arg.seen for arg in args if isinstance(arg, Boxed))
        seen.append(func.__name__)
        plain = [arg.value if isinstance(arg, Boxed) else arg for arg in args]
        return Boxed(func(*plain, **(kwargs or {})), seen)


class Unwilling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


class Own(torch.Tensor):
    """Operators of its own."""

    def __add__(self, other: Any) -> Any:
        return torch.sub(self, other)

    def __radd__(self, other: Any) -> Any:
        return torch.mul(self, other)


def sub(cls: Any, *, grad: bool = False, **attributes: Any) -> Any:
    made = (torch.arange(6.0).reshape(2, 3) / 7).as_subclass(cls)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made.requires_grad_() if grad else made


def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3) / 5


def arithmetic(a: Any, b: torch.Tensor) -> Any:
    y = (a * 2 + b).sin().sum(0)
    return y, 1 - a, b / a, -a, a[0], a > b, a @ b.T, a.shape, a.dtype, len(a), type(y) is Plain, a.twice, a.scaled(3)


def containers(a: Any, b: torch.Tensor) -> Any:
    high, place = a.max(1)
    return torch.cat([a, b]), torch.stack((b, a)), high, place, [part.tag for part in a.unbind()]


def made_inside(b: torch.Tensor) -> Any:
    a = b.as_subclass(Tagged)
    a.tag = "inside"
    y = torch.relu(a)
    return y, y.tag, y.as_subclass(torch.Tensor), a.requires_grad


def units(b: torch.Tensor) -> Any:
    a = Unit(b, "kg")
    y = a * 2 + a
    try:
        y + Unit(b, "s")
    except ValueError as error:
        return y, y.unit, str(error)
    return None


def table(a: Any, b: torch.Tensor) -> Any:
    return torch.sin(a), torch.cat([b, a]), torch.nn.functional.dropout(a, 0.0)


def boxed(b: torch.Tensor) -> Any:
    seen: list[str] = []
    y = torch.add(torch.sin(Boxed(b, seen)), 1)
    return y.value, seen  # type: ignore[attr-defined]


def own_operators(a: Any, b: torch.Tensor) -> Any:
    return a + b, b + a, 2 + a


def changes(a: Any, b: torch.Tensor) -> Any:
    c = a.add_(b)
    a.note = "changed"
    a[0] = 0
    return c is a, a.note, a * 1


def loss(a: Any, b: torch.Tensor) -> Any:
    return (a.sin() * b).sum()


def switched_off(a: Any, b: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        inner = torch.sin(a)
    return inner, torch.sin(a), torch.overrides.has_torch_function((a, b)), torch.overrides.has_torch_function((b,))


CASES: list[tuple[Callable[..., Any], Callable[[], list[Any]]]] = [
    (arithmetic, lambda: [sub(Plain), x()]),
    (containers, lambda: [sub(Tagged, tag="t"), x()]),
    (made_inside, lambda: [x()]),
    (units, lambda: [x()]),
    (table, lambda: [sub(Swapped), x()]),
    (boxed, lambda: [x()]),
    (own_operators, lambda: [sub(Own), x()]),
    (changes, lambda: [sub(Tagged, tag=3), x()]),
    (loss, lambda: [sub(Plain, grad=True), x()]),
    (loss, lambda: [sub(Tagged, tag=1), x().requires_grad_()]),
    (switched_off, lambda: [sub(Plain), x()]),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_one_graph_with_eagers_results(case: Any, backend: str) -> None:
    fn, make = case
    dynajit.reset()
    compiled = dynajit.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        outcomes = []
        for run in (compiled, fn):
            args = make()
            result = run(*args)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.backward()
            outcomes.append((result, args, [arg.grad for arg in args]))
        compare(outcomes[0], outcomes[1], exact=False)
        for got, want in zip(flat(outcomes[0][0]), flat(outcomes[1][0]), strict=True):
            assert type(got) is type(want)
            assert getattr(got, "__dict__", None) == getattr(want, "__dict__", None)


def flat(value: Any) -> list[Any]:
    return [part for item in value for part in flat(item)] if isinstance(value, (tuple, list)) else [value]


def test_the_class_is_guarded() -> None:
    compiled = dynajit.compile(lambda a: a * 2, backend="eager")
    for cls in (Plain, torch.Tensor, Tagged, Plain):
        assert type(compiled(sub(cls))) is cls


def test_attributes_are_guarded() -> None:
    def fn(a: Tagged) -> torch.Tensor:
        return a + (1 if a.tag == "one" else 2)

    compiled = dynajit.compile(fn, backend="eager")
    for tag in ("one", "two", "one", None):
        compare(compiled(sub(Tagged, tag=tag)), fn(sub(Tagged, tag=tag)))


def test_a_break_inside_of_torch_function_keeps_the_rest() -> None:
    printed: list[str] = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            dynajit.graph_break()
            printed.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def f(b: torch.Tensor, a: Any) -> Any:
        y = (b * 2).sin()
        return y.cos() * torch.exp(a)

    report = dynajit.explain(f, backend="eager")(x(), sub(Loud))
    assert report.error is None and report.graph_count == 1
    compare(report.result.as_subclass(torch.Tensor), (x() * 2).sin().cos() * torch.exp(sub(torch.Tensor)), exact=False)
    assert printed.count("exp") == 1 and printed.count("mul") == 1


def test_nobody_knows_is_torchs_own_error() -> None:
    def f(a: Any) -> Any:
        return torch.sin(a)

    for run in (f, dynajit.compile(f, backend="eager")):
        with pytest.raises(TypeError, match=r"Multiple dispatch failed|no implementation found"):
            run(sub(Unwilling))


def test_a_module_with_a_subclass_as_its_input() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    other = copy.deepcopy(model)
    compiled = dynajit.compile(other, backend="codegen", fullgraph=True)
    for _ in range(2):
        want, got = model(sub(Tagged, tag=5)), compiled(sub(Tagged, tag=5))
        assert type(got) is Tagged and got.tag == 5
        compare(got, want, exact=False)
        want.sum().backward()
        got.sum().backward()
    compare([p.grad for p in other.parameters()], [p.grad for p in model.parameters()], exact=False)


class Pair(torch.Tensor):
    """Two tensors that every operation computes on."""

    parts: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def __new__(cls, *parts: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, parts[0].size(), dtype=parts[0].dtype)  # type: ignore[attr-defined]
        made.parts = parts
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = [func(*(arg.parts[at] if isinstance(arg, Pair) else arg for arg in args)) for at in range(2)]
        return cls(*made)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_what_runs_in_torch_dispatch_is_eager(backend: str) -> None:
    pair: Any = Pair(x(), x() + 1)
    got = dynajit.compile(lambda a, b: (a * 2 + b).sin(), backend=backend)(pair, x())
    compare(got.parts, ((x() * 2 + x()).sin(), ((x() + 1) * 2 + x()).sin()), exact=False)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_dispatch_modes_see_what_they_see_in_eager(backend: str) -> None:
    class Log(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def inside(a: torch.Tensor) -> Any:
        with Log() as log:
            y = a.sin() + 1
        return y.cos(), log.seen

    def outside(a: torch.Tensor) -> Any:
        with Log() as log:
            y = compiled(a)
        return y, log.seen

    compiled = dynajit.compile(lambda a: a.sin() + 1, backend=backend)
    compiled(x())
    wanted = ["aten.sin.default", "aten.add.Tensor"]
    for _ in range(2):
        assert dynajit.compile(inside, backend=backend)(x())[1] == wanted and outside(x())[1] == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_instance_may_be_written_by_the_first_call(backend: str) -> None:
    def write(a: torch.Tensor) -> torch.Tensor:
        return a.as_subclass(torch.Tensor).mul_(2)

    given, expected = (torch.ones(3).as_subclass(Plain) for _ in range(2))
    result = dynajit.compile(write, backend=backend)(given)
    assert torch.equal(result, write(expected)) and torch.equal(given, expected)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: int) -> torch.Tensor:
        return a * b


def test_a_computed_number_given_to_apply_behind_a_break() -> None:
    def program(a: torch.Tensor, n: int) -> torch.Tensor:
        dynajit.graph_break()
        return Product.apply(a, n * 2)  # type: ignore[no-any-return]

    dynajit.counters["internal_errors"].clear()
    compiled = dynajit.compile(program, backend="eager")
    for n in (7, 5, 3):
        compare(compiled(torch.ones(3), n), program(torch.ones(3), n))
    assert not dynajit.counters["internal_errors"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_instance_made_in_the_program_becomes_a_leaf(backend: str) -> None:
    def program(a: torch.Tensor) -> Any:
        leaf = a.as_subclass(Plain).detach().requires_grad_()
        (leaf * 2).sum().backward()
        return leaf.grad

    compare(dynajit.compile(program, backend=backend)(torch.ones(3)), program(torch.ones(3)))


class Straight(torch.autograd.Function):
    """Has a backward that its forward does not have."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, factor: float) -> torch.Tensor:
        return a * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.clone(), None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [Plain, Tagged])
def test_a_function_of_autograds_keeps_its_backward(kind: type, backend: str) -> None:
    def program(a: torch.Tensor) -> Any:
        return Straight.apply(a.as_subclass(kind) + 1, -3.0) * a

    compiled = dynajit.compile(program, backend=backend)
    for run in range(2):
        sides = []
        for fn in (compiled, program):
            a = torch.arange(3.0).add(run).requires_grad_()
            result = fn(a)
            result.sum().backward()
            sides.append((type(result), result.detach().as_subclass(torch.Tensor), a.grad))
        compare(*sides)
