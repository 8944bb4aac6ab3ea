"""Programs that go another way for each set of numbers or texts, called 25 times with others: the same as eager at each
call, few captures, none after the first calls, and never so many that the rest runs eagerly."""

import bisect
import collections
import dataclasses
import enum
import functools
import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import dynajit
from dynajit.report import records
from dynajit.report.counters import counters
from dynajit.testing import compare

CALLS = 25
X = torch.linspace(-1, 1, 8)
WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "mu",
    "nu",
    "xi",
    "pi",
    "tau",
]


class Color(enum.Enum):
    RED, GREEN, BLUE, CYAN = range(4)


@dataclasses.dataclass(order=True)
class Item:
    score: float
    size: int = 0


def drawn(call: int) -> random.Random:
    return random.Random(call * 7919 + 13)


def numbers(call: int, count: int = 5) -> list[int]:
    draw = drawn(call)
    return [draw.randint(0, 1000) for _ in range(count)]


def words(call: int) -> list[str]:
    return [drawn(call * 31 + place).choice(WORDS) for place in range(4)]


def entries(call: int) -> dict[str, int]:
    return dict(zip("abcd", numbers(call), strict=False))


def items(call: int) -> list[Item]:
    return [Item(number / 1000, place) for place, number in enumerate(numbers(call))]


def colors(call: int) -> list[Color]:
    return [drawn(call * 5 + place).choice(list(Color)) for place in range(4)]


def best_of(x: Any, v: list[int]) -> Any:
    best = -1
    for n in v:
        if n > best:
            best = n
    return x * best


def bubbled(x: Any, v: list[int]) -> Any:
    v = list(v)
    for end in range(len(v) - 1, 0, -1):
        for at in range(end):
            if v[at] > v[at + 1]:
                v[at], v[at + 1] = v[at + 1], v[at]
    return x * v[0], v


def branches(x: Any, v: list[int]) -> Any:
    for n in v:
        x = x * 2 if n > 500 else x + 1
    return x


def stops(x: Any, v: list[int]) -> Any:
    for n in v:
        x = x + n
        if n > 700:
            break
    return x


def collatz(x: Any, v: list[int]) -> Any:
    n, steps = v[0] % 40 + 1, 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return x * steps


def many_ifs(x: Any, v: list[int]) -> Any:
    x = x * 2 if v[0] > 500 else x + 1
    x = x * 3 if v[1] > 500 else x + 2
    x = x * 4 if v[2] > 500 else x + 3
    x = x * 5 if v[3] > 500 else x + 4
    return x - 1 if v[4] > 500 else x - 2


def helped(x: Any, v: list[int]) -> Any:
    return x * sum([_doubled(n) for n in v])


def _doubled(n: int) -> int:
    return n * 2 if n > 500 else n


def told(x: Any, v: list[int]) -> Any:
    try:
        for n in v:
            if n > 800:
                raise ValueError(n)
    except ValueError as error:
        return x + error.args[0]
    return x


@dataclasses.dataclass
class Link:
    value: int
    following: Any = None


def chain(call: int) -> Link | None:
    link = None
    for number in numbers(call, 1 + call % 6):
        link = Link(number, link)
    return link


def followed(x: Any, link: Link | None) -> Any:
    while link is not None:
        x, link = x + link.value, link.following
    return x


def tree(call: int) -> Any:
    draw = drawn(call)

    def branch(depth: int) -> Any:
        if depth == 0 or draw.random() < 0.3:
            return draw.randint(0, 9)
        return [branch(depth - 1), branch(depth - 1)]

    return [branch(2), branch(2)]


def leaves(node: Any) -> int:
    return node if isinstance(node, int) else sum(map(leaves, node))


def walked(x: Any, node: Any) -> Any:
    return x + node if isinstance(node, int) else functools.reduce(walked, node, x * 2)


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def entered(x: Any, **named: int) -> Any:
    return x * sum(named.values())


# name -> the program, what it is given, and how many captures it may cost; of them how many behind the fourth call
PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[int], Any], int, int]] = {
    "nlargest": (lambda x, v: x * heapq.nlargest(2, v)[0], numbers, 6, 1),
    "nsmallest": (lambda x, v: x * sum(heapq.nsmallest(3, v)), numbers, 5, 0),
    "nlargest by key": (lambda x, v: x * heapq.nlargest(2, v, key=lambda n: -n)[1], numbers, 8, 1),
    "a heap": (lambda x, v: (heapq.heapify(v), x * heapq.heappop(v), v)[1:], numbers, 6, 0),
    "sort by key": (lambda x, v: (v.sort(key=abs, reverse=True), x * v[0], v)[1:], numbers, 5, 0),
    "min by key": (lambda x, v: x * min(v, key=lambda n: (n - 500) ** 2), numbers, 8, 5),
    "the place of the largest": (lambda x, v: x * max(range(len(v)), key=v.__getitem__), numbers, 5, 0),
    "any": (lambda x, v: x * 2 if any(n > 900 for n in v) else x, numbers, 10, 7),
    "all": (lambda x, v: x * 2 if all(n > 200 for n in v) else x, numbers, 11, 2),
    "counted": (lambda x, v: x * sum(n > 500 for n in v), numbers, 2, 0),
    "filtered": (lambda x, v: x * sum([n for n in v if n % 2]), numbers, 7, 0),
    "a set of flags": (lambda x, v: x * len({n > 500 for n in v}), numbers, 6, 0),
    "a set of remainders": (lambda x, v: x * len({n % 3 for n in v}), numbers, 6, 0),
    "bisect": (lambda x, v: x * bisect.bisect([100, 300, 500, 700], v[0]), numbers, 2, 0),
    "bisect among those that vary": (lambda x, v: x * bisect.bisect_left(sorted(v), 500, 1), numbers, 2, 0),
    "a Counter": (lambda x, v: x * collections.Counter(n % 4 for n in v).most_common(1)[0][1], numbers, 12, 3),
    "groups": (lambda x, v: x * len([*itertools.groupby(v, key=lambda n: n > 500)]), numbers, 7, 0),
    "those before": (lambda x, v: x * len([*itertools.takewhile(lambda n: n < 700, v)]), numbers, 8, 5),
    "reduced": (lambda x, v: x * functools.reduce(lambda n, m: n if n > m else m, v), numbers, 8, 0),
    "best_of": (best_of, numbers, 8, 1),
    "bubbled": (bubbled, numbers, 18, 6),
    "branches": (branches, numbers, 7, 0),
    "stops": (stops, numbers, 8, 5),
    "collatz": (collatz, numbers, 10, 2),
    "many ifs": (many_ifs, numbers, 17, 13),
    "helped": (helped, numbers, 8, 1),
    "told": (told, numbers, 12, 5),
    "the longest word": (lambda x, w: x * len(max(w, key=len)), words, 5, 0),
    "words counted": (lambda x, w: x * sum("a" in word for word in w), words, 3, 0),
    "the largest entry": (lambda x, d: x * d[max(d, key=d.get)], entries, 5, 0),
    "entries filtered": (lambda x, d: x * len({key: n for key, n in d.items() if n > 500}), entries, 8, 1),
    "colors": (lambda x, c: x * sum(color is Color.RED for color in c), colors, 10, 0),
    "the best item": (lambda x, i: x * max(i, key=lambda item: item.score).size, items, 6, 0),
    "items in order": (lambda x, i: x * sorted(i)[0].size, items, 5, 0),
    "numbers or None": (
        lambda x, v: x * sum(n for n in v if n is not None),
        lambda call: [n if n > 300 else None for n in numbers(call)],
        12,
        8,
    ),
    "numbers or texts": (
        lambda x, v: x * sum(part if isinstance(part, int) else len(part) for part in v),
        lambda call: [n if n > 500 else word for n, word in zip(numbers(call), words(call), strict=False)],
        12,
        2,
    ),
    "a chain": (followed, chain, 9, 2),
    "a tree": (lambda x, node: x * leaves(node), tree, 9, 2),
    "a tree walked": (walked, tree, 9, 4),
    "fibonacci": (lambda x, v: x * fibonacci(v[0] % 8), numbers, 11, 8),
    "lists of all lengths": (lambda x, v: x * sum(v[-3:]), lambda call: numbers(call, 1 + call % 9), 8, 4),
    "dictionaries of all keys": (
        lambda x, d: x * sum(d.values()),
        lambda call: {f"k{n}": n for n in numbers(call)},
        8,
        4,
    ),
    "arguments of all names": (
        lambda x, d: entered(x, **d),
        lambda call: {f"k{n}": n for n in numbers(call, 2)},
        18,
        14,
    ),
    "items filtered": (lambda x, i: x * sum(item.size for item in i if item.score > 0.5), items, 10, 1),
}


def captures_of(compiled: Any, eager: Any, given: Callable[[int], Any], x: torch.Tensor, calls: int) -> list[int]:
    """How many each call made, with eager's results. `given`: what it is given beside `x`."""
    found: list[int] = []
    for call in range(calls):
        made: list[records.CompileRecord] = []
        with records.listen(made.append):
            result = compiled(x, given(call))
        compare(eager(x, given(call)), result)
        found.append(len(made))
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_ways_that_vary_cost_few_captures(name: str) -> None:
    fn, given, most, late = PROGRAMS[name]
    found = captures_of(dynajit.compile(fn, backend="eager"), fn, given, X, CALLS)
    assert sum(found) <= most and sum(found[4:]) <= late, found
    assert not any(found[20:]) and not counters["recompile_limit"], found


def dimensions(x: torch.Tensor, y: torch.Tensor) -> Any:
    strides = y.stride()
    falling = sorted([(2, 1), (0, 3), (3, 0), (1, 2)], key=lambda pair: strides[pair[0]], reverse=True)
    same = sorted("dcba", key=lambda name: -len(name) - y.size(2))
    return x.sum() + y, sorted(range(y.dim()), key=strides.__getitem__), falling, same


def flexible(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return flex_attention(y, y, y, score_mod=lambda score, batch, head, i, j: score + x[head] * (i - j))


@pytest.mark.parametrize("fn", [dimensions, flexible])
def test_an_order_that_holds_for_all_sizes_compiles_nothing_late(fn: Any) -> None:
    compiled = dynajit.compile(fn, backend="eager")
    found = captures_of(compiled, fn, lambda call: torch.ones(1, 2, 16 + call * 4, 8), torch.ones(2), 6)
    assert found == [1, 1, 0, 0, 0, 0]


def test_ways_that_come_again_keep_their_graphs() -> None:
    states = [[1, 9, 1], [9, 1, 1], [1, 1, 9], [9, 9, 9]]
    compiled = dynajit.compile(branches, backend="eager")
    for call in range(40):
        state = [n * 100 for n in states[call // 10]]
        assert torch.equal(compiled(X, state), branches(X, state))
    counted = dynajit.counters()
    assert counted["recompiles"] == 3 and not counted["graph_break_events"], counted


def test_where_a_break_is_an_error_each_way_has_a_variant() -> None:
    compiled = dynajit.compile(branches, backend="eager", fullgraph=True)
    for call in range(7):
        assert torch.equal(compiled(X, numbers(call)), branches(X, numbers(call)))
    assert dynajit.counters()["recompiles"] > 4
