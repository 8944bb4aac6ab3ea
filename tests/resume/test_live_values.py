"""What is alive across a break: locals, unbound and deleted names, cells, closures, iterators."""

# ruff: noqa: F821, B008, C417 (unbound names, defaults and map() are what is tested)
from __future__ import annotations

import functools
import itertools
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from resume_harness import skipped
from torch import Tensor

import dynajit
from dynajit.testing import assert_same


def unbound(x: Tensor, flag: bool) -> Tensor:
    y = x.sin()
    if flag:
        z = y + 1
    print("break")
    if flag:
        return z * y
    return y


@pytest.mark.parametrize("flag", [True, False])
def test_maybe_unbound(flag: bool) -> None:
    assert_same(unbound, torch.randn(3), flag, graphs=2 if flag else 1, breaks=1, recompiles=0)


def unbound_read(x: Tensor, flag: bool) -> Tensor:
    y = x.sin()
    if flag:
        z = y + 1
    print("break")
    return z * y


def deleted(x: Tensor, flag: bool) -> Tensor:
    y = x.sin()
    del x
    print("break")
    if flag:
        return x + y
    x = y + 1
    return x


def deleted_before(x: Tensor, flag: bool) -> Tensor:
    y = x.sin()
    del x
    return y + x


def deleted_twice(x: Tensor, flag: bool) -> Tensor:
    y = x.sin()
    del x
    del x
    return y


def deleted_cell(x: Tensor, flag: bool) -> Any:
    y = x.sin()

    def read() -> Tensor:
        return y

    z = read() + 1
    del y
    print("break")
    return z * read()


def deleted_cell_parameter(x: Tensor, flag: bool) -> Any:
    def read() -> Tensor:
        return x

    z = read() + 1
    del x
    return z * read()


@pytest.mark.parametrize(
    "fn", [unbound_read, deleted, deleted_before, deleted_twice, deleted_cell, deleted_cell_parameter]
)
@pytest.mark.parametrize("flag", [True, False])
def test_unbound_names_raise_as_eager(fn: Callable[..., Any], flag: bool) -> None:
    assert_same(fn, torch.randn(3), flag)


def unread(x: Tensor, never: Any, later: Any) -> Any:
    y = x.sin()
    print("break")
    return y.cos(), later


def test_parameters_that_nobody_reads_are_not_guarded() -> None:
    assert_same(unread, torch.randn(3), 1, [1], then=[(torch.randn(3), "a", [1])], graphs=2, breaks=1, recompiles=0)


def overwritten(x: Tensor, n: int) -> Any:
    y = x.sin()
    n = n + 1
    x = x * n
    print("break", n)
    x = x + n
    return x, y, n


def closure_after(x: Tensor, n: int) -> Any:
    k = x.sin()

    def inner(y: Tensor) -> Tensor:
        nonlocal k, n
        k = k + y
        n += 1
        return k * n

    a = inner(x)
    print("break", n)
    b = inner(x)
    print("again", n)
    return a + b + k, inner(x), n


def two_closures(x: Tensor, n: int) -> Any:
    total = x

    def add(y: Tensor) -> None:
        nonlocal total
        total = total + y

    def read() -> Tensor:
        return total

    add(x.sin())
    print("break")
    add(x.cos())
    print("again")
    return read(), add, read


def closure_returned(x: Tensor, n: int) -> Any:
    count = n

    def step(y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return y * count

    print("break")
    r = step(x)
    return r, step(r), count


def parameter_is_cell(x: Tensor, n: int) -> Any:
    y = x + n
    print("break")
    x = y * 2
    f = lambda: (x, n)  # noqa: E731
    print("again")
    n = n + 1
    return f()


def deep_cells(x: Tensor, n: int) -> Any:
    a = x

    def outer() -> Any:
        b = a + 1

        def inner() -> Tensor:
            nonlocal a
            a = a + b
            print("inner", n)
            a = a * b
            return a

        return inner() + inner()

    return outer() + a


def factory(x: Tensor, n: int) -> Any:
    def make(i: int) -> Callable[[Tensor], Tensor]:
        return lambda y: y * i + x

    fs = [make(i) for i in range(n)]
    print("break", len(fs))
    return [f(x) for f in fs]


def default_arguments(x: Tensor, n: int) -> Any:
    def inner(y: Tensor, scale: Tensor = x.sin(), *, shift: float = n * 1.0) -> Tensor:
        return y * scale + shift

    print("break")
    return inner(x), inner(x, x), inner(x, shift=2.0)


def iterator_alive(x: Tensor, n: int) -> Any:
    it = iter([x + 1, x + 2, x + 3])
    a = next(it)
    print("break")
    return a + next(it) * next(it)


def zip_alive(x: Tensor, n: int) -> Any:
    it = zip([x + 1, x + 2], [1, 2])
    a, i = next(it)
    print("break", i)
    b, j = next(it)
    return a * i + b * j, list(it)


def enumerate_alive(x: Tensor, n: int) -> Any:
    it = enumerate([x + 1, x + 2], 5)
    i, a = next(it)
    print("break", i)
    return [(j, b + a) for j, b in it]


def range_alive(x: Tensor, n: int) -> Any:
    it = iter(range(n))
    a = x * next(it)
    print("break")
    return a + next(it)


def dict_iterator_alive(x: Tensor, n: int) -> Any:
    d = {"a": x + 1, "b": x + 2}
    it = iter(d.items())
    k, a = next(it)
    print("break", k)
    k, b = next(it)
    return a + b, k


def reversed_alive(x: Tensor, n: int) -> Any:
    it = reversed([x + 1, x + 2])
    a = next(it)
    print("break")
    return a * next(it)


def map_alive(x: Tensor, n: int) -> Any:
    it = map(lambda y: y + 1, [x, x * 2])
    a = next(it)
    print("break")
    return a * next(it)


def count_alive(x: Tensor, n: int) -> Any:
    it = itertools.count(3)
    a = x * next(it)
    print("break")
    return a * next(it)


def generator_alive(x: Tensor, n: int) -> Any:
    def items() -> Any:
        yield x + 1
        yield x + 2

    it = items()
    a = next(it)
    print("break")
    return a * next(it)


def generator_not_started(x: Tensor, n: int) -> Any:
    it = (x * i for i in range(3))
    y = x.sin()
    print("break")
    return sum(it, y)


ITERATORS = [
    iterator_alive,
    zip_alive,
    enumerate_alive,
    range_alive,
    dict_iterator_alive,
    reversed_alive,
    map_alive,
    count_alive,
    generator_alive,
    generator_not_started,
]
CELLS = [
    overwritten,
    closure_after,
    two_closures,
    closure_returned,
    parameter_is_cell,
    deep_cells,
    factory,
    default_arguments,
]


@pytest.mark.parametrize("fn", CELLS)
def test_cells(fn: Callable[..., Any]) -> None:
    report = assert_same(fn, torch.randn(3), 2, repeat=3, recompiles=0)
    assert not skipped(report), report


@pytest.mark.parametrize("fn", ITERATORS)
def test_iterators(fn: Callable[..., Any]) -> None:
    # the generator's parts may be compiled anew for the second factor
    assert_same(fn, torch.randn(3), 4, repeat=3, recompiles=None if fn is generator_not_started else 0)


def test_closure_shared_with_the_outside() -> None:
    def make() -> tuple[Callable[[Tensor], Tensor], Callable[[], float]]:
        total = 0.0

        def add(x: Tensor) -> Tensor:
            nonlocal total
            y = x + total
            total += 1.5
            print("total", total)
            total += 1
            return y * total

        return add, lambda: total

    eager, read_eager = make()
    original, read = make()
    compiled = dynajit.compile(original, backend="eager")
    x = torch.randn(3)
    for _ in range(4):
        assert torch.equal(compiled(x), eager(x)) and read() == read_eager()


class Pair(NamedTuple):
    left: Any
    right: Any


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def containers(x: Tensor) -> Any:
    a = x + 1
    values: dict[str, Any] = {
        "list": [a, a],
        "tuple": (a, [1, (2,)]),
        "dict": {1: a, "k": {"deep": a}},
        "set": {1, 2},
        "pair": Pair(a, x),
        "slice": slice(0, 2),
        "range": range(3),
        "ordered": OrderedDict(a=a, b=1),
        "size": a.shape,
        "frozen": frozenset([1]),
        "dtype": a.dtype,
        "device": a.device,
        "none": None,
        "ellipsis": ...,
        "complex": 1j,
        "bytes": b"x",
        "float": -0.0,
        "partial": functools.partial(torch.add, a),
        "method": a.add,
        "class": Pair,
        "module": torch,
        "list again": None,
    }
    values["list again"] = values["list"]
    s = Slots(a, x)
    values["list"].append(values["dict"])
    print("break", sorted(values))
    values["list"].append(s.a + s.b)
    values["new"] = values["partial"](x) + values["method"](1)
    return {k: v for k, v in values.items() if k not in ("partial", "method")}


def cyclic(x: Tensor) -> Any:
    a: list[Any] = [x + 1]
    a.append(a)
    d: dict[str, Any] = {"a": a}
    d["self"] = d
    print("break", len(a))
    a.append(d)
    return a[1][1][0] + d["self"]["a"][0], a is a[1], d["self"] is d


def other_containers(x: Tensor) -> Any:
    q = deque([x + 1, x + 2], maxlen=3)
    dd: Any = defaultdict(list)
    dd["a"].append(x.sin())
    print("break")
    q.append(x)
    dd["b"].append(x.cos())
    return list(q), dict(dd)


def views_of_one(x: Tensor) -> Any:
    a = x.clone()
    v = a[1:]
    w = a.view(-1)
    print("break")
    v += 1
    w *= 2
    return a, v, w


def input_views(x: Tensor) -> Any:
    v = x[1:]
    v.add_(1)
    print("break")
    x.mul_(2)
    return v, x, x.view(-1)


@pytest.mark.parametrize("fn", [containers, cyclic, other_containers, views_of_one, input_views])
def test_objects(fn: Callable[..., Any]) -> None:
    assert_same(fn, torch.randn(3), recompiles=0)
