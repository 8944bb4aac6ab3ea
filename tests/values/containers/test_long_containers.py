"""Copies of long containers and single members of long sets: eager's answers, and nothing depends on other items."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import outside, same

import dynajit
from dynajit.report import records

MANY = 100

# each is called with a container that another item is written to between the calls
ALONE = {
    list: (
        "list(c), x + 1",
        "c.copy(), c[:2] == [0, 1], x + 1",
        "c[:], c[:] is c, x + 1",
        "[*c, x], x + len(c)",
        "tuple([*c]) + (x,), x + 1",
        "c + [x], x + 1",
        "(lambda made: (made.append(x), made, made is c, c))(list(c))",
    ),
    dict: (
        "dict(c), x + 1",
        "c.copy(), x, c[3]",
        "{**c, 'a': x}, x + 1",
        "c | {3: x}, x + 1",
        "dict(c, a=x), dict.copy(c), x + len(c)",
        "(lambda made: (made.setdefault(3, x), made, made is c, c))(dict(c))",
        "(lambda made: (made.update(a=made), len(made['a']), made is made['a'], c, x))({**c})",
    ),
    set: ("x * (5 in c)", "x + ('a' in c) + bool(c)", "x * (1.0 in c) + (True in c)"),
    collections.deque: (
        "c.append(x), len(c), x + 1",
        "c.append(x), c.popleft(), c, x + len(c)",
        "x + c[0], c[-1] == ('c', 1), bool(c)",
        "c.appendleft(x), c.extend([x, x]), x + 1",
    ),
    frozenset: ("x * (5 in c)", "x + ('a' in c) + bool(c)"),
}
WHOLE = (
    "sorted(map(str, c)), x",
    "sum(each for each in c if type(each) is int) * x",
    "c == {1}, c == copy.copy(c), c <= {*c}, x",
    "c & {1, 2}, c.isdisjoint([1]), c.copy(), set(c), frozenset(c), x",
    "{*c, x.dim() + 1000}, c - {3}, c ^ {5, -1}, x",
    "isinstance(c, frozenset) and {c: hash(c)}[c] == hash(c), x",
    "x, float('nan') in c",
    "c.add(-5) if isinstance(c, set) else c, c, x",
)


def _holding(kind: type) -> Any:
    if kind is dict:
        return {number: f"item {number}" if number % 2 else number for number in range(MANY)}
    return kind([*range(MANY), "b", ("c", 1)])


def _with_another(container: Any, call: int) -> Any:
    if isinstance(container, dict):
        container[MANY + call] = container[90] = call
    elif isinstance(container, (list, collections.deque)):
        container[90] = [call]
    elif isinstance(container, set):
        container.discard(80 + call)
        container.add(f"k{call}")
    else:
        return container - {80 + call} | {f"k{call}"}
    return container


def _captures(body: str, kind: type, changed: bool) -> list[int]:
    run: Callable[..., Any] = eval(f"lambda c, x: ({body})", {"copy": copy})
    compiled = dynajit.compile(run, backend="eager")
    ours, theirs, counts = _holding(kind), _holding(kind), []
    for call in range(4):
        x = torch.arange(3.0) + call
        seen: list[Any] = []
        with records.listen(seen.append):
            found = compiled(ours, x)
        assert repr(found) == repr(run(theirs, x))
        assert repr(ours) == repr(theirs)
        counts.append(len(seen))
        if changed:
            ours, theirs = _with_another(ours, call), _with_another(theirs, call)
    return counts


@pytest.mark.parametrize(("kind", "body"), [(kind, body) for kind, bodies in ALONE.items() for body in bodies])
def test_copies_and_questions_depend_on_no_other_item(kind: type, body: str) -> None:
    counts = _captures(body, kind, changed=True)
    assert sum(counts) <= 1 + ("len(" in body), counts  # which was another one


@pytest.mark.parametrize("kind", [set, frozenset])
@pytest.mark.parametrize("body", WHOLE)
def test_all_members_of_a_long_set(kind: type, body: str) -> None:
    counts = _captures(body, kind, changed=False)
    assert not any(counts[2:]), counts
    _captures(body, kind, changed=True)


def test_long_containers_are_left_to_python() -> None:
    """It took minutes: every item was a model of its own, at every call."""

    def program(count: int) -> int:
        items: collections.deque[int] = collections.deque(range(count))
        total = 0
        for _ in range(20):
            total += items.popleft()
            items.append(total)
        outside()
        return total + items.popleft()

    same(program, 50_000)
