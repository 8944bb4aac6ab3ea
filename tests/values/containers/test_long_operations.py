"""Operations on long containers: eager's answers and changes, and no item is relied on that the program doesn't use.

In: bodies, each for the kinds of containers that have such an operation. Each is called with a container of 300 items
that grows, and of which items change, between the calls.
"""

from __future__ import annotations

import bisect
import collections
import copy
import heapq
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report import records
from dynajit.testing import assert_same

MANY = 300
CALLS = 12
#: of a trace that reads a container item by item there are more
FEW_GUARDS = 60

WRITES = {
    "item": "c.__setitem__(7, x)",
    "augmented": "c.__setitem__(7, c[7] + 1.5)",
    "del": "c.__delitem__(7)",
}
SEQUENCES = {
    **WRITES,
    "insert": "c.insert(2, x)",
    "delete": "c.insert(1, 0.5), c.__delitem__(3)",
    "remove": "c.remove(41.0)",
    "reverse": "c.reverse()",
    "pop": "c.pop(), c.append(2.5)",
    "iadd": "c.__iadd__([x, 3.5])",
    "contains": "41.0 in c, -9.5 in c",
    "index": "c.index(17.0), c.count(17.0)",
    "missing": "c.index(-77.0)",
    "all items": "sum(c), max(c), min(c)",
    "sorted": "sorted(c)[2], [*reversed(c)][-1]",
    "set": "len(set(c)), len(tuple(c))",
    "equal": "c == c.copy(), c == [1.0]",
    "out of range": "c.__setitem__(5000, 1.0)",
    "clear": "c.clear(), c.extend(map(float, range(300)))",
    "twice": "(lambda other: (other.insert(0, x), c[0] is other[0], other is c))(c)",
}
DICTS = {
    **WRITES,
    "pop": "c.pop(3), c.setdefault(3, 1.5)",
    "again": "c.__setitem__(3, c.pop(3))",
    "popitem": "c.popitem()",
    "missing": "c.pop(-3)",
    "default": "c.pop(-3, x)",
    "listed": "list(c)[2], list(c.values())[2], list(c.items())[2]",
    "sorted": "sorted(c)[2], max(c.values()), sum(c.values()), max(c, key=c.get)",
    "equal": "c == dict(c), c.keys() == set(c)",
    "views": "len(c.keys() | {1, -1}), len(c.keys() & {1, -1}), 2.0 in c.values()",
    "update": "c.update({5: x, -5: 2.5})",
    "clear": "c.clear(), c.__setitem__(1, 2.5)",
    "twice": "(lambda other: (other.pop(2), 2 in c, other is c))(c)",
}
OPERATIONS: dict[Any, dict[str, str]] = {
    list: {
        **SEQUENCES,
        "slices": "c[::-1][-1], c[1:][0], len(c[:-1])",
        "write slice": "c.__setitem__(slice(2, 4), [x, 1.5, 2.5])",
        "delete slice": "c.__delitem__(slice(0, 2))",
        "pop inside": "c.pop(5)",
        "pop too far": "c.pop(9000)",
        "sort": "c.sort()",
        "sort by key": "c.sort(key=lambda item: -item)",
        "heap": "heapq.heapify(c), heapq.heappush(c, 4.5), heapq.heappop(c), heapq.heapreplace(c, 2.5)",
        "bisect": "bisect.bisect([*c], 3.0), bisect.insort(c, 3.0)",
        "repeat": "len(c * 2), len(c + c)",
    },
    collections.deque: {
        **SEQUENCES,
        "rotate": "c.rotate(2)",
        "ends": "c.appendleft(1.5), c.pop(), c.popleft(), c.append(x)",
    },
    dict: DICTS,
    collections.OrderedDict: {
        **DICTS,
        "move": "c.move_to_end(4), c.move_to_end(5, last=False)",
        "move none": "c.move_to_end(-4)",
        "oldest": "c.popitem(last=False)",
    },
    collections.defaultdict: {**DICTS, "new": "c[-9], c[7]"},
    collections.Counter: {
        **{name: body for name, body in DICTS.items() if name not in ("default", "update")},
        "count": "c.update([1, 2, -2]), c[-100]",
        "total": "c.total()",
    },
    set: {
        "add": "c.add(x.dim() - 50), c.add(4)",
        "discard": "c.discard(7), c.discard(-7)",
        "remove": "c.remove(8), c.add(8)",
        "missing": "c.remove(-8)",
        "pop": "c.add(c.pop())",
        "operators": "len(c | {1, -1}), len(c & {1, -1}), len(c - {1}), len(c ^ {1, -1})",
        "methods": "len(c.union([-1])), len(c.difference([1])), c.isdisjoint([-1]), c.issuperset({1})",
        "in place": "c.__ior__({1, -1}), c.__isub__({-1}), c.update([2, -2]), c.difference_update([-2])",
        "all": "sum(c), max(c), sorted(c)[2], len([*c]), len(set(c))",
        "equal": "c == set(c), c <= {1}, {1} <= c",
        "clear": "c.clear(), c.update(range(300))",
    },
}
NAMES = {"heapq": heapq, "bisect": bisect}


def _made(kind: Any) -> Any:
    if kind is collections.Counter:
        return kind({number: number + 1 for number in range(MANY)})
    if kind is collections.defaultdict:
        return kind(float, {number: number + 0.5 for number in range(MANY)})
    if issubclass(kind, dict):
        return kind((number, number + 0.5) for number in range(MANY))
    return kind(range(MANY)) if kind is set else kind(map(float, range(MANY)))


def _change(container: Any, call: int) -> None:
    """Another length, and other items at their places."""
    if isinstance(container, dict):
        container[MANY + call] = container[20] = call + 1
    elif isinstance(container, set):
        container.add(MANY + call)
    else:
        container.append(float(call))
        container[20] = call + 0.25


def _outcome(function: Callable[..., Any], container: Any, x: Tensor) -> str:
    try:
        return repr(function(container, x))
    except (LookupError, ValueError, TypeError) as error:
        return repr(error)


def _called(body: str, kind: Any, changes: bool = True) -> tuple[list[int], list[records.CompileRecord]]:
    """How many captures each call made, and all of them."""
    run = eval(f"lambda c, x: (x * 2, {body}, x + 1)", dict(NAMES))
    compiled = dynajit.compile(run, backend="eager")
    ours, theirs, counts = _made(kind), _made(kind), []
    seen: list[records.CompileRecord] = []
    for call in range(CALLS):
        x, before = torch.tensor(float(call)), len(seen)
        with records.listen(seen.append):
            found = _outcome(compiled, ours, x)
        assert found == _outcome(run, theirs, x)
        assert repr(ours) == repr(theirs)
        counts.append(len(seen) - before)
        if changes:
            _change(ours, call)
            _change(theirs, call)
    return counts, seen


CASES = [
    pytest.param(kind, body, id=f"{kind.__name__} {name}")
    for kind, rows in OPERATIONS.items()
    for name, body in rows.items()
]


@pytest.mark.parametrize(("kind", "body"), CASES)
def test_no_item_is_relied_on(kind: Any, body: str) -> None:
    counts, seen = _called(body, kind)
    assert sum(counts[1:]) <= 3 and not any(counts[3:]), counts  # lengths and numbers that were other ones
    assert max(len(record.guards) for record in seen) <= FEW_GUARDS


def _breaks(seen: list[records.CompileRecord]) -> list[str]:
    return [found.kind for record in seen for found in record.breaks]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (list, "[item * 2 for item in c if item < 9]"),
        (dict, "[value for key, value in c.items() if key < 9]"),
        (set, "sum([member for member in c if member < 9])"),
        (collections.deque, "[item for item in c if item < 9]"),
    ],
)
def test_loops_are_traced(kind: Any, body: str) -> None:
    assert _breaks(_called(body, kind, changes=False)[1]) == []


def test_tensors_are_read_for_the_graph() -> None:
    def run(c: list[Tensor], x: Tensor) -> Any:
        return torch.stack(c).sum() + x, sum(c), [one + other for one, other in zip(c, reversed(c), strict=True)]

    assert_same(run, [torch.tensor(float(at)) for at in range(150)], torch.ones(2), graphs=1, breaks=0)


@pytest.mark.parametrize(
    ("container", "body"),
    [([*range(150)], "c.insert(3, 5)"), ({at: at for at in range(150)}, "c.pop(3)"), ({*range(150)}, "c.discard(4)")],
)
def test_where_breaks_are_errors_all_is_read(container: Any, body: str) -> None:
    run = eval(f"lambda c, x: ({body}, x + 1)")
    theirs = copy.copy(container)
    x = torch.ones(2)
    assert repr(dynajit.compile(run, fullgraph=True, backend="eager")(container, x)) == repr(run(theirs, x))
    assert repr(container) == repr(theirs)


def test_breaks_in_blocks_and_callees() -> None:
    def swapped(c: Any, key: int) -> Any:
        c[key] = value = c.pop(key)
        return value

    def run(c: Any, x: Tensor) -> Any:
        for at in range(3):
            x = x * swapped(c, at)
        with torch.no_grad():
            c.move_to_end(5)
            y = x + c[5]
        try:
            c.move_to_end(-1)
        except KeyError as error:
            return y, str(error), list(c.items())[-3:]

    assert_same(run, _made(collections.OrderedDict), torch.ones(2))
