"""Objects that outlive or don't outlive a call: results behind lru_cache, weak references, weights cast by autocast."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import compare

Program = Callable[..., Any]


class Thing:
    """Something a weak reference can refer to."""


def holder() -> Any:
    made = Thing()
    made.held = Thing()  # type: ignore[attr-defined]
    made.reference = weakref.ref(made.held)  # type: ignore[attr-defined]
    return made


def changed_in_place() -> Program:
    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.zeros(n, n)

    def f(x: torch.Tensor) -> Any:
        found = table(4)
        found.add_(x)
        return found * 2, found is table(4)

    return f


def same_object_each_call() -> Program:
    @functools.cache
    def tables(n: int) -> tuple[torch.Tensor, int]:
        return torch.arange(n).float(), n

    seen: list[Any] = []

    def f(x: torch.Tensor) -> Any:
        seen.append(tables(4)[0])
        return x + seen[0], all(one is seen[0] for one in seen)

    return f


def random_numbers_drawn_once() -> Program:
    @functools.lru_cache
    def noise(n: int) -> torch.Tensor:
        return torch.randn(n)

    return lambda x: x + noise(4)


def computed_from_a_tensor() -> Program:
    @functools.lru_cache
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def f(x: torch.Tensor) -> Any:
        before = double(x)
        x.add_(1)
        return before, double(x)

    return f


def effects_at_the_first_call() -> Program:
    seen: list[int] = []

    @functools.cache
    def size(n: int) -> int:
        seen.append(n)
        return n * 2

    return lambda x: (x + size(4) + size(4), len(seen))


def effects_at_the_first_call_on_what_has_changed() -> Program:
    seen: list[int] = []

    @functools.cache
    def size(n: int) -> int:
        seen.append(n)
        return n * 2

    def f(x: torch.Tensor) -> Any:
        seen.append(1)
        return x + size(4) + size(4), len(seen)

    return f


def break_inside_cached() -> Program:
    @functools.cache
    def size(n: int) -> int:
        print("once", n)
        return n * 2

    return lambda x: x + size(4)


def tables_of_tables() -> Program:
    @functools.lru_cache
    def angles(n: int, base: float = 100.0) -> torch.Tensor:
        return torch.outer(torch.arange(n), 1.0 / base ** (torch.arange(0, n, 2) / n))

    @functools.lru_cache
    def rotations(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return angles(n).cos(), angles(n, base=10.0).sin()

    def f(x: torch.Tensor) -> Any:
        cosines, sines = rotations(4)
        return x[:, :2] * cosines + x[:, 2:] * sines, rotations(4)[0] is cosines

    return f


def made_where_modes_are_on() -> Program:
    @functools.lru_cache
    def ones(n: int) -> torch.Tensor:
        return torch.ones(n, n) @ torch.ones(n, n)

    def f(x: torch.Tensor) -> Any:
        with torch.device("meta"):
            on_meta = ones(4)
        with torch.autocast("cpu"):
            lower = ones(5)
        return x + 1, on_meta.device.type, lower.dtype, ones(4) is on_meta

    return f


def cleared_between_calls() -> Program:
    base = [1.0]

    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.full((n,), base[0])

    def f(x: torch.Tensor) -> Any:
        found = x + table(4)
        base[0] += 1
        if base[0] == 3:
            table.cache_clear()
        return found

    return f


def mask_of_a_method() -> Program:
    class Masked(torch.nn.Module):
        @functools.lru_cache(maxsize=2)  # noqa: B019
        def mask(self, n: int) -> torch.Tensor:
            return torch.triu(torch.ones(n, n))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.mask(4)

    return Masked()


def table_of_a_changed_module() -> Program:
    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = 1.0

        @functools.lru_cache  # noqa: B019
        def table(self, n: int) -> torch.Tensor:
            return torch.full((n,), self.base)

    one, other = Table(), Table()

    def f(x: torch.Tensor) -> Any:
        one.base += 1.0
        return x + one.table(4) * 2 + other.table(4), one.table(4) is one.table(4)

    return f


def tables_of_modules() -> Program:
    class Table(torch.nn.Module):
        def __init__(self, base: float) -> None:
            super().__init__()
            self.base = base

        @functools.cache  # noqa: B019
        def table(self, n: int) -> torch.Tensor:
            return torch.arange(n) * self.base

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(x.shape[0])

    return torch.nn.Sequential(Table(1.0), Table(2.0), Table(3.0))


CACHED = (
    table_of_a_changed_module,
    tables_of_modules,
    changed_in_place,
    same_object_each_call,
    random_numbers_drawn_once,
    computed_from_a_tensor,
    effects_at_the_first_call,
    effects_at_the_first_call_on_what_has_changed,
    break_inside_cached,
    mask_of_a_method,
    tables_of_tables,
    made_where_modes_are_on,
    cleared_between_calls,
)


@pytest.mark.parametrize("make", CACHED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_lru_cache(make: Callable[[], Program], backend: str, capsys: Any) -> None:
    outcomes = []
    for wrap in (lambda fn: fn, dynajit.compile(backend=backend)):
        fn, x = wrap(make()), torch.eye(4)
        torch.manual_seed(0)
        outcomes.append(([fn(x) for _ in range(3)], torch.get_rng_state(), capsys.readouterr().out))
    compare(outcomes[1], outcomes[0])


def test_constants_behind_lru_cache_stay_in_the_graph() -> None:
    @functools.lru_cache
    def size(n: int) -> tuple[int, ...]:
        return (n, n * 2)

    report = dynajit.explain(lambda x: x * size(4)[1])(torch.ones(4))
    assert (report.graph_count, report.graph_break_count) == (1, 0)


@pytest.mark.parametrize(
    "make", [changed_in_place, same_object_each_call, tables_of_tables, mask_of_a_method, tables_of_modules]
)
def test_tensors_behind_lru_cache_are_in_the_graph(make: Callable[[], Program]) -> None:
    fn = make()
    report = dynajit.explain(fn)(torch.eye(4))
    assert (report.graph_count, report.graph_break_count) == (1, 0)


def local_set_to_none(x: torch.Tensor, _: Any) -> Any:
    thing = Thing()
    reference = weakref.ref(thing)
    before = reference() is thing
    thing = None  # type: ignore[assignment]
    return x + 1, before, reference() is None


def list_cleared(x: torch.Tensor, _: Any) -> Any:
    things = [Thing()]
    reference = weakref.ref(things[0])
    alive = reference() is things[0]
    things.clear()
    return x + 1, alive, reference() is None


def attribute_deleted(x: torch.Tensor, made: Any) -> Any:
    thing = made.held
    alive = made.reference() is thing
    del made.held
    again = made.reference() is thing
    del thing
    return x + 1, alive, again


@pytest.mark.parametrize("fn", [local_set_to_none, list_cleared, attribute_deleted])
def test_weak_reference(fn: Program) -> None:
    compiled = dynajit.compile(fn, backend="eager")
    for _ in range(3):
        compare(compiled(torch.ones(2), holder()), fn(torch.ones(2), holder()))


def test_weak_parent_stays_in_the_graph() -> None:
    class Child(torch.nn.Module):
        def __init__(self, parent: Any) -> None:
            super().__init__()
            self.parent = weakref.ref(parent)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.parent().scale

    class Parent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(2))
            self.child = Child(self)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(x)

    report = dynajit.explain(Parent())(torch.ones(2))
    assert (report.graph_count, report.graph_break_count) == (1, 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
def test_nested_autocast_dtypes_share_cast_weights(backend: str) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def f(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outer = x @ weight
            with torch.autocast("cpu", dtype=torch.float16):
                inner = weight @ weight
        with torch.autocast("cpu", dtype=torch.float16):
            return outer, inner, x @ weight

    compare(dynajit.compile(f, backend=backend)(torch.ones(4, 4)), f(torch.ones(4, 4)))
