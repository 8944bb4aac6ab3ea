"""Containers that are others at each call: compiled twice, and the same as eager.

Dictionaries and sets whose keys vary, lists that are taken from at their ends.
"""

from __future__ import annotations

import collections
import linecache
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.report import records

CALLS = 8


class State:
    def __init__(self, table: Any) -> None:
        self.n, self.f, self.table = 0, 0.5, table


def shown(value: Any) -> Any:
    """Types, values and orders."""
    if isinstance(value, dict):
        return type(value), [(shown(key), shown(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple, set)):
        return type(value), [shown(item) for item in value]
    return type(value), repr(value)


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return shown(fn(*args))
    except (KeyError, IndexError, RuntimeError) as error:
        return repr(error)


def captures(fn: Callable[..., Any], make: Callable[[], Any]) -> list[int]:
    """How many frames each call captures, all of them compared with eager."""
    dynajit.reset()
    compiled, counts, x = dynajit.compile(fn, backend="eager"), [], torch.arange(3.0)
    ours, theirs = State(make()), State(make())
    for _ in range(CALLS):
        seen: list[Any] = []
        with records.listen(seen.append):
            found = outcome(compiled, ours, x)
        assert (found, shown(ours.table), ours.n) == (outcome(fn, theirs, x), shown(theirs.table), theirs.n)
        counts.append(len(seen))
    return counts


def numbered(s: Any, x: Any) -> Any:
    s.table[s.n] = x * 2
    s.n += 1
    return x + s.table[s.n - 1], len(s.table)


def counted(s: Any, x: Any) -> Any:
    s.table[len(s.table)] = s.n
    s.n += 1
    return x * s.n


def named(s: Any, x: Any) -> Any:
    s.table[f"loss/{s.n}"] = x * s.n
    s.n += 1
    return s.table[f"loss/{s.n - 1}"]


def paired(s: Any, x: Any) -> Any:
    s.table[s.n, "a"] = s.f
    s.n += 1
    return x + 1, (s.n, "a") in s.table


def remembered(s: Any, x: Any) -> Any:
    if s.n % 3 not in s.table:
        s.table[s.n % 3] = x * 2
    s.n += 1
    return s.table[(s.n - 1) % 3] + 1


def listed(s: Any, x: Any) -> Any:
    s.table.setdefault(s.n // 2, []).append(x.sum())
    s.n += 1
    return x + 1


def visited(s: Any, x: Any) -> Any:
    new = s.n not in s.table
    if new:
        s.table.add(s.n)
    s.n += 1
    return x + new, "other" in s.table


@pytest.mark.parametrize("fn", [numbered, counted, named, paired, remembered, listed])
def test_a_key_that_varies_is_no_constant(fn: Any) -> None:
    assert sum(captures(fn, dict)[4:]) == 0


def test_a_counter_of_a_key_that_varies() -> None:
    def f(s: Any, x: Any) -> Any:
        s.table[s.n % 2] += 1
        s.n += 1
        return x + 1

    assert sum(captures(f, collections.Counter)[4:]) == 0


def test_a_member_that_varies_is_no_constant() -> None:
    assert sum(captures(visited, set)[3:]) == 0


def test_a_set_that_is_gone_through_after_a_member_was_added() -> None:
    """Its order is known at run time only, so the graph ends there: for whatever member it was."""

    def f(s: Any, x: Any) -> Any:
        s.n += 1
        s.table.add(s.n * 7 % 11)
        return x * sum(s.table)

    found = captures(f, set)
    assert sum(found) <= 5 and sum(found[3:]) == 0


def test_a_key_that_varies_may_be_one_that_was_written() -> None:
    def f(s: Any, x: Any) -> Any:
        before = s.table.get(s.n)
        s.table[3] = "three"
        s.table[s.n + 1] = s.n
        s.n += 1
        return before, s.table[3], s.table.get(s.n - 1), s.table.get(2), len(s.table), x

    captures(f, dict)


def test_the_first_of_two_equal_keys_stays() -> None:
    def f(s: Any, x: Any) -> Any:
        s.table[0.0] = s.n
        s.table[0] = s.n
        s.n += 1
        return x

    captures(f, dict)


def test_an_index_that_varies_is_no_constant() -> None:
    def f(s: Any, x: Any) -> Any:
        s.table[s.n % 4] = x * s.n
        s.n += 1
        return s.table[(s.n - 1) % 4] + 1

    assert sum(captures(f, lambda: [None] * 4)[3:]) == 0


def test_layers_by_number_are_one_variant() -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(6)])
    listed, named = list(layers), {f"layer{i}": layer for i, layer in enumerate(layers)}

    def f(x: torch.Tensor, i: int) -> Any:
        return layers[i](x) + listed[-i](x) * named[f"layer{i}"](x)

    dynajit.reset()
    compiled, seen = dynajit.compile(f, backend="eager"), []
    for i in (0, 1, 2, 3, 4, 5, 1, 2):
        with records.listen(seen.append):
            assert torch.equal(compiled(torch.ones(4), i), f(torch.ones(4), i))
    assert len(seen) <= 3


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_two_indices_that_may_be_one(backend: str) -> None:
    def f(lists: Any, tensors: Any, x: torch.Tensor, i: int, j: int) -> Any:
        lists[i].append(7)
        before = len(lists[j])
        lists[j] = [9]
        tensors[i].add_(1)
        y = tensors[j] * 2
        tensors[j] = y
        return x + before + len(lists[i]), lists[i] is lists[j], tensors[i] + y, tensors[i] is tensors[j]

    dynajit.reset()
    compiled = dynajit.compile(f, backend=backend)
    ours, theirs = ([[[n] for n in range(6)], [torch.ones(2) * n for n in range(6)]] for _ in range(2))
    for i, j in ((0, 1), (1, 2), (3, 4), (2, 2), (4, 5), (5, 5), (0, 0), (5, 0), (2, -4), (-1, 5), (3, 1)):
        given = torch.ones(2) * i
        assert shown(compiled(*ours, given, i, j)) == shown(f(*theirs, given, i, j))
        assert shown(ours) == shown(theirs)


def test_a_stack_and_a_queue() -> None:
    def f(s: Any, x: Any) -> Any:
        last, first = s.table.pop(), s.table.pop(0)
        s.table.append(last + s.table[-1] - s.table[0])
        s.n += 1
        return x * last + first, bool(s.table)

    assert sum(captures(f, lambda: [float(i) for i in range(40)])[3:]) == 0


def test_a_list_is_emptied_after_it_grew() -> None:
    def f(s: Any, x: Any) -> Any:
        s.table.append(x)
        s.table.clear()
        return x, bool(s.table), 1 if s.table else 2

    captures(f, list)


def test_a_list_that_runs_empty() -> None:
    def f(s: Any, x: Any) -> Any:
        s.n += 1
        return x + s.table.pop(0) if s.table else x, len(s.table)

    captures(f, lambda: [1.0, 2.0, 3.0])


KEYS = (
    *("s.n", "s.n + 1", "s.n % 3", "2", "0", "f'k{s.n}'", "'k2'", "(s.n, 'a')", "(3, 'a')", "1.0", "True"),
    *("float(s.n)", "s.f", "None", "-s.n", "len(s.table)", "str(s.n)"),
)
ON_BOTH = (
    *("out.append({k} in s.table)", "out.append(len(s.table))", "out.append(bool(s.table))", "dynajit.graph_break()"),
    *("s.n += 1", "s.table.clear()", "out.append(list(s.table))"),
)
ON_DICTS = (
    *("s.table[{k}] = {v}", "out.append(s.table.get({k}))", "out.append(s.table.pop({k}, None))"),
    *("out.append(s.table.setdefault({k}, {v}))", "out.append(s.table[{k}])", "s.table.update({{{k}: {v}}})"),
    *("if {k} not in s.table: s.table[{k}] = {v}", "if {k} in s.table: del s.table[{k}]"),
)
ON_SETS = (
    *("s.table.add({k})", "if {k} not in s.table: s.table.add({k})", "s.table.discard({k})", "s.table.remove({k})"),
    *("s.table |= {{{k}}}", "out.append(s.table == {{{k}}})", "s.table.update([{k}, 3])"),
)
ON_LISTS = (
    *("out.append(s.table[s.n % 3])", "s.table[s.n % 3] = {v}", "s.table[-1 - s.n % 2] = {v}", "s.table[2] = {v}"),
    *("out.append(s.table[s.n])", "s.table[s.n] = {v}", "out.append(s.table[-s.n])"),
    *("out.append(s.table.pop())", "out.append(s.table.pop(0))", "s.table.append({v})", "s.table.extend([{v}, s.n])"),
    *("out.append(s.table[-1])", "out.append(s.table[0])", "out.append(s.table[1])", "out.append(s.table[-2])"),
    *("s.table.insert(0, {v})", "if s.table: out.append(s.table.pop())", "if len(s.table) > 2: s.table.pop(0)"),
    *("out.append(s.table.pop(1))", "s.table += [{v}]", "for item in s.table[:2]: out.append(item)"),
)


def random_program(seed: int, operations: tuple[str, ...]) -> Any:
    rng = random.Random(seed)
    lines = ["def f(s, x):", "    out = []"]
    for _ in range(rng.randint(2, 6)):
        line = rng.choice(operations * 3 + ON_BOTH)
        lines.append("    " + line.format(k=rng.choice(KEYS), v=rng.choice(("x * 2", "s.n", "7", "[s.n]"))))
    lines += [f"    s.n += {rng.choice((0, 1, 1, 2))}", "    s.f *= 1.5", "    return x * s.n, out"]
    text, name, given = "\n".join(lines), f"<keys {seed}>", {"dynajit": dynajit}
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), given)
    return given["f"]


@pytest.mark.parametrize("seed", range(16))
def test_random_programs(seed: int) -> None:
    captures(random_program(seed, ON_DICTS), random.Random(seed).choice((dict, lambda: {0: 1.5, "k2": 3})))
    captures(random_program(seed, ON_SETS), random.Random(seed).choice((set, lambda: {0, 5})))
    captures(random_program(seed, ON_LISTS), random.Random(seed).choice((list, lambda: [*range(12)])))
