"""Objects that a program changes and that are distinct at one call may be one object at the next."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter


class Box:
    def __init__(self) -> None:
        self.value = 1

    def __repr__(self) -> str:
        return f"Box({self.value})"


class Stack(list):  # type: ignore[type-arg]
    pass


def appends(a: Any, b: Any, x: Any) -> Any:
    a.append(1)
    return x * len(b)


def sets_key(a: Any, b: Any, x: Any) -> Any:
    a["k"] = 5
    return x * b.get("k", 1)


def adds_member(a: Any, b: Any, x: Any) -> Any:
    a.add(3)
    return x * len(b)


def sets_attribute(a: Any, b: Any, x: Any) -> Any:
    a.value = 7
    return x * b.value


def notes(a: Any, b: Any, x: Any) -> Any:
    a.note = 7
    return x * getattr(b, "note", 2)


def transposes(a: Any, b: Any, x: Any) -> Any:
    a.t_()
    return x * b.shape[0]


def squeezes_and_writes(a: Any, b: Any, x: Any) -> Any:
    a.squeeze_()
    b.add_(1)
    return b.dim(), a + x


def begins_to_require_gradients(a: Any, b: Any, x: Any) -> Any:
    a.add_(x.clone().requires_grad_())
    return b.requires_grad, x


def both_append(a: Any, b: Any, x: Any) -> Any:
    a.append(x)
    b.append(x + 1)
    return len(a) + len(b)


CASES: list[tuple[Callable[..., Any], Callable[[], Any]]] = [
    (appends, lambda: [2]),
    (appends, lambda: collections.deque([2])),
    (appends, lambda: Stack([2])),
    (sets_key, dict),
    (adds_member, lambda: {1}),
    (sets_attribute, Box),
    (notes, lambda: torch.ones(3)),
    (transposes, lambda: torch.ones(2, 3)),
    (squeezes_and_writes, lambda: torch.ones(1, 3)),
    (begins_to_require_gradients, lambda: torch.ones(3)),
    (both_append, list),
]


@pytest.mark.parametrize(("function", "make"), CASES)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_one_object_in_both_places(function: Callable[..., Any], make: Callable[[], Any], backend: str) -> None:
    compiled = dynajit.compile(function, backend=backend)
    for same in (False, True, False, True):
        results = []
        for call in (function, compiled):
            first = make()
            second = first if same else make()
            results.append((call(first, second, torch.ones(3)), getattr(first, "__dict__", None), repr(first)))
        assert repr(results[0]) == repr(results[1]), f"same object: {same}"


def test_an_object_of_the_module_comes_as_an_argument() -> None:
    def function(a: Any, x: torch.Tensor) -> torch.Tensor:
        KEPT.append(1)
        return x * len(a)

    compiled = dynajit.compile(function, backend="eager")
    for argument in ([], KEPT, [], KEPT):
        KEPT.clear()
        wanted = function(list(KEPT) if argument is not KEPT else KEPT, torch.ones(2))
        KEPT.clear()
        assert torch.equal(compiled(argument, torch.ones(2)), wanted)


KEPT: list[int] = []


def test_cells_of_two_closures_may_be_one() -> None:
    def make() -> tuple[Callable[[], None], Callable[[], int]]:
        count = 1

        def raises() -> None:
            nonlocal count
            count += 1

        def reads() -> int:
            return count

        return raises, reads

    def function(write: Callable[[], None], read: Callable[[], int], x: torch.Tensor) -> torch.Tensor:
        write()
        return x * read()

    compiled = dynajit.compile(function, backend="eager")
    for same in (False, True, False):
        write, read = make()
        if not same:
            read = make()[1]
        assert torch.equal(compiled(write, read, torch.ones(2)), torch.full((2,), 2.0 if same else 1.0))


def test_what_is_not_changed_may_be_one_object() -> None:
    counter = CompileCounter()

    def function(a: list[int], b: list[int], x: torch.Tensor) -> torch.Tensor:
        return x * (len(a) + len(b))

    compiled = dynajit.compile(function, backend=counter)
    one = [1]
    compiled([1], [1], torch.ones(2))
    assert torch.equal(compiled(one, one, torch.ones(2)), torch.full((2,), 2.0))
    assert counter.frame_count == 1


def test_many_objects_that_count_their_calls() -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = torch.ones(())
            self.seen: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(len(self.seen))
            return x * len(self.seen)

    def function(layers: list[Layer], x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        return x

    compiled = dynajit.compile(function, backend="eager")
    for shared in (False, True):
        layers = [Layer() for _ in range(12)]
        others = [Layer() for _ in range(12)]
        if shared:
            layers[7] = layers[2]
            others[7] = others[2]
        assert torch.equal(compiled(layers, torch.ones(2)), function(others, torch.ones(2)))


def test_an_integer_tensor_that_requires_gradients() -> None:
    def function(z: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
        for _ in range(2):
            z[:1] = sum(item.sum() for item in items)
        return z

    def call(f: Callable[..., Any]) -> tuple[list[int], bool]:
        items = [torch.full((2, 2), 1.5, requires_grad=True) for _ in range(2)]
        z = torch.tensor([1, 2, 3])
        with pytest.raises(RuntimeError, match="Autograd not support dtype"):
            f(z, items)
        return z.tolist(), z.requires_grad

    before = dict(dynajit.counters["internal_errors"])
    assert call(dynajit.compile(function, backend="codegen")) == call(function)
    assert dict(dynajit.counters["internal_errors"]) == before
