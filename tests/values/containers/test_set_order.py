"""The order of sets whose members collide in the table, as only what was done with a set decides it."""

from __future__ import annotations

import collections
import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same


def made(seed: int) -> set[int]:
    """With gaps, and a table larger than one for its members alone; the same for each call."""
    numbers = random.Random(seed)
    found: set[int] = set()
    for _ in range(numbers.randint(2, 40)):
        found.add(8 * numbers.randint(0, 2000))
    for _ in range(numbers.randint(0, len(found) - 2) if len(found) > 2 else 0):
        found.discard(numbers.choice(list(found)))
    return found


def grown(x: Any, s: Any) -> Any:
    t = set()
    for each in sorted(s):
        t.add(each)
    return list(t), x + 1


def shrunk(x: Any, s: Any) -> Any:
    t = set(sorted(s))  # noqa: C414 (other orders)
    t.add(24)
    for each in sorted(s)[::3]:
        t.discard(each)
    t |= {7, 56, 3000}
    return list(t), list(t - {56}), list(t & {24, 7, 3000, 8}), list(frozenset(t).union([1, 2])), x + 1


def of_dict(x: Any, s: Any) -> Any:
    d = dict.fromkeys(sorted(s), 1)
    return list(set(d)), list(set(d.keys())), list(d.keys() - {24}), list(d.keys() | {24, 7}), x + 1


def popped(x: Any, s: Any) -> Any:
    t = set(sorted(s))  # noqa: C414 (other orders)
    first = t.pop()
    t.add(16)
    return first, list(t), x + 1


FUNCTIONS: list[Callable[..., Any]] = [
    lambda x, s: (list(s), list(iter(s)), x + 1),
    lambda x, s: (list(s | {5}), list(set(s)), list(s.copy()), list(s - {8}), list(s.union([16, 40])), x + 1),
    lambda x, s: (s.add(3), x + 1, list(s), sorted(s))[1:],
    *(grown, shrunk, of_dict, popped),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_order_is_eagers(function: Callable[..., Any]) -> None:
    for seed in range(12):
        dynajit.reset()
        x = torch.ones(2)
        expected = function(x, made(seed))
        found = dynajit.compile(function, backend="eager")(x, made(seed))
        assert repr(found) == repr(expected)


def test_the_guard_is_on_the_order_that_was_seen() -> None:
    """A copy may have another one: the guard failed on what it was made from."""
    before = dynajit.counters["internal_errors"].total()
    compiled = dynajit.compile(lambda x, s: x + len(s), backend="eager")
    for seed in range(12):
        compiled(torch.ones(2), made(seed))
    assert dynajit.counters["internal_errors"].total() == before


def test_a_set_of_a_class_of_the_programs_has_its_own_order() -> None:
    class Members(set):  # type: ignore[type-arg]
        pass

    assert_same(lambda x, s: (x + 1, list(s)), torch.ones(2), Members(made(3)))


# of each, members that collide in the tables of small sets
POOLS: list[list[Any]] = [
    [0, 8, 16, 24, 1, 9],
    [0, 8, 16, 32, 64, 128, 256, 5, 13],
    [-1, -2, 7, 15, 31, 3],
    [*range(0, 400, 40)],
    [1.5, None, 8, 0, 16, (8,), True],
]


def program(numbers: random.Random, pool: list[Any]) -> str:
    """Makes sets of sets, a frozenset and a dict, and gives their members, or has them go over a break."""
    names, lines = ["s", "f", "k"], []
    for place in range(numbers.randint(1, 5)):
        one, other = numbers.choices(names, k=2)
        few, member = numbers.sample(pool, 3), numbers.choice(pool)
        method = numbers.choice(["union", "intersection", "difference", "symmetric_difference"])
        operator = numbers.choice("|&-^")
        made = numbers.choice(
            [
                "{" + ", ".join(map(repr, few)) + "}",
                f"{one} {operator} {other}",
                f"{one} {operator} {one}",
                f"{numbers.choice(['set', 'frozenset'])}({numbers.choice([one, 'd', 'd.keys()', few])})",
                f"{one}.{method}({numbers.choice([other, one, 'd', 'd.keys()', 'o.keys()', few])})",
                f"{numbers.choice('do')}.keys() {operator} {numbers.choice([one, 'd.keys()', 'd.values()'])}",
                f"{one} {operator} {numbers.choice('do')}.keys()",
                f"copy.deepcopy({one})",
            ]
        )
        name = f"v{place}"
        lines.append(f"{name} = {made}")
        if numbers.random() < 0.4:
            lines.append(f"{name} = set({name})")
            change = [f"{name}.add({member!r})", f"{name}.discard({member!r})", f"{name} {operator}= {other}"]
            lines += numbers.sample(change, 2)
        names.append(name)
    made_here = names[3:]
    if numbers.random() < 0.3:
        lines.append(f"g.update({', '.join(made_here)}); g.discard({numbers.choice(pool)!r})")
    if numbers.random() < 0.3:
        lines.append("dynajit.graph_break()")
    shown = [numbers.choice([name, f"[*{name}]"]) for name in made_here]
    lines.append(f"return x + 1, g, {', '.join(shown)},")
    return "\n    ".join(["def main(x, s, f, d, o, g):", "k = frozenset(s)", *lines])


def arguments(numbers: random.Random, pool: list[Any]) -> tuple[Any, ...]:
    some = [numbers.sample(pool, numbers.randint(0, len(pool))) for _ in range(4)]
    s = set(some[0])
    s.difference_update(numbers.sample(pool, 2))
    ordered = collections.OrderedDict.fromkeys(some[3], 1)
    return torch.ones(2), s, frozenset(some[1]), dict.fromkeys(some[2], 1), ordered, set(numbers.sample(pool, 2))


@pytest.mark.parametrize("seed", range(60))
def test_order_after_random_programs(seed: int) -> None:
    numbers = random.Random(seed)
    pool = POOLS[seed % len(POOLS)]
    source = program(numbers, pool)
    namespace: dict[str, Any] = {"copy": copy, "collections": collections, "dynajit": dynajit}
    exec(source, namespace)
    dynajit.reset()
    compiled = dynajit.compile(namespace["main"], backend="eager")
    for call in (0, 1, 0):
        expected = namespace["main"](*arguments(random.Random(call), pool))
        found = compiled(*arguments(random.Random(call), pool))
        assert repr(found) == repr(expected), source
