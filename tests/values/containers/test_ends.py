"""Random programs that read, fill and empty lists and deques from outside at their ends, of many lengths and limits."""

import collections
import contextlib
import random
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import outside, same

import dynajit

_BOTH = ("[0]", "[-1]", "[1]", "[-2]", "[2]", "[-3]", ".pop()")
_OF_BOTH = ["items.append(x)", "out.append(len(items))", "out.append(bool(items))", "out.append(list(items))"]
_OF_BOTH += [f"out.append(items{how})" for how in _BOTH]
_OF_LISTS = ["out.append(items.pop(0))", "out.append([x, *items][1])", "out.append((items + [x])[-2])"]
_OF_DEQUES = ["items.appendleft(x * 2)", "out.append(items.popleft())", "items[0] = x"]


def program(lines: list[str]) -> Callable[..., Any]:
    made: dict[str, Any] = {}
    body = "\n    ".join(["def fn(items, x):", "out = []", *lines, "return out, x + len(out)"])
    exec(body, made)
    return made["fn"]  # type: ignore[no-any-return]


def outcome(fn: Callable[..., Any], items: Any) -> str:
    """What it gives, or which error it ends with, and what is in the container then."""
    try:
        found = fn(items, torch.tensor(10.0))
    except IndexError as error:
        found = f"IndexError: {error}"
    return f"{found}, {items}"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [list, collections.deque])
def test_ends(kind: type, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(12):
        lines = draw.choices([*_OF_BOTH, *(_OF_LISTS if kind is list else _OF_DEQUES)], k=draw.randint(2, 7))
        limit = () if kind is list else (draw.choice([None, None, 0, 2, 3, 4]),)
        fn = program(lines)
        compiled = dynajit.compile(fn, backend="eager")
        for _ in range(3):
            numbers = [torch.tensor(float(at)) for at in range(draw.randint(0, 5))]
            assert outcome(compiled, kind(numbers, *limit)) == outcome(fn, kind(numbers, *limit)), (lines, limit)


@pytest.mark.parametrize(
    "view",
    [iter, lambda d: iter(d.values()), lambda d: iter(d.items()), lambda d: reversed(d), lambda d: reversed(d.keys())],
)
def test_an_iterator_at_its_end_holds_nothing(view: Any) -> None:
    def program() -> Any:
        died = []

        class Named(dict[int, int]):
            pass

        held = Named()
        reference = weakref.ref(held, lambda _: died.append(True))
        iterator = view(held)
        del held
        found = next(iterator, None)
        outside()
        return found, died, reference() is None, type(iterator).__name__

    assert same(program)[1] == [True]


class Items:
    def __init__(self, count: int) -> None:
        self.count = count

    def __getitem__(self, index: int) -> int:
        if index < self.count:
            return index
        raise IndexError


def test_iterators_by_position_at_their_end() -> None:
    def program() -> Any:
        iterator = iter(Items(2))
        found = list(iterator)
        outside()
        return found, list(iterator), type(iterator).__name__

    same(program)


def test_iterators_are_no_constants() -> None:
    def program(code: types.CodeType) -> Any:
        lines, places = code.co_lines(), code.co_positions()
        found = [next(lines), next(places)]
        outside()
        return found, list(lines)

    same(program, program.__code__)


@pytest.mark.parametrize("kind", [list, dict, set])
def test_an_iterator_at_its_end_lets_its_container_die(kind: type) -> None:
    def program(kind: type) -> bool:
        done = False

        class Container(kind):  # type: ignore[misc]
            def __del__(self) -> None:
                nonlocal done
                done = True

        iterator = iter(Container())
        with contextlib.suppress(StopIteration):
            next(iterator)
        return done

    assert same(program, kind) is True
