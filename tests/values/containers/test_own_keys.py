"""Dictionaries and sets: keys with a `__hash__` of their own, keys exchanged meanwhile, mappings in their own order.

Each program is compared with eager: what it returns or raises, and how often the keys' methods ran where that shows.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import compare

x = torch.arange(3.0)
Program = Callable[..., Any]


def check(program: Program, make: Callable[[], tuple[Any, ...]] = tuple) -> None:
    """Eager and compiled give the same, twice."""
    compiled = dynajit.compile(program, backend="eager")
    for _ in range(2):
        args, others = make(), make()
        compare((_outcome(compiled, x, *args), args), (_outcome(program, x, *others), others))


def _outcome(fn: Program, *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error).__name__, str(error)


class Fickle:
    """A key that is hashed as long as it does not fail."""

    fails = False

    def __hash__(self) -> int:
        if self.fails:
            raise ValueError("no hash any more")
        return 42


class Counting:
    """Counts the calls of its methods."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.hashed = self.compared = 0

    def __hash__(self) -> int:
        self.hashed += 1
        return 7

    def __eq__(self, other: object) -> bool:
        self.compared += 1
        return isinstance(other, Counting) and self.number == other.number


def hash_that_fails_later(x: torch.Tensor) -> Any:
    key = Fickle()
    table, members = {key: 1}, {key}
    key.fails = True
    dynajit.graph_break()
    return len(table), len(members), table[key]


def methods_with_side_effects(x: torch.Tensor) -> Any:
    one, two = Counting(1), Counting(2)
    table = {one: x + 1}
    table.setdefault(two, x + 2)
    dynajit.graph_break()
    return one.hashed, two.hashed, one.compared + two.compared, list(table.values())


class Large:
    """Its hash is larger than the modulus of numbers' hashes."""

    def __hash__(self) -> int:
        return 2**61 + 5


def large_hash(x: torch.Tensor) -> Any:
    return hash(Large()), hash((Large(), 1)), x + 1


def same_hash_before_a_break(x: torch.Tensor) -> Any:
    class Key:
        def __hash__(self) -> int:
            return 3

        def __eq__(self, other: object) -> bool:
            return len(table) > 5

    table: dict[Any, int] = {}
    table[Key()] = 1
    table[Key()] = 2
    dynajit.graph_break()
    return len(table), x + len(table)


@pytest.mark.parametrize(
    "program", [hash_that_fails_later, methods_with_side_effects, large_hash, same_hash_before_a_break]
)
def test_keys_with_methods_of_their_own(program: Program) -> None:
    check(program)


class Sly:
    """Equal to a string."""

    def __init__(self) -> None:
        self.asked = 0

    def __hash__(self) -> int:
        return hash("name")

    def __eq__(self, other: object) -> bool:
        self.asked += 1
        return other == "name"


def test_looking_for_a_string_asks_the_keys() -> None:
    def program(x: torch.Tensor, table: dict[Any, int]) -> Any:
        found = table.get("name"), "name" in table
        return found, x + 1, [key.asked for key in table if isinstance(key, Sly)]

    compiled = dynajit.compile(program, backend="eager")
    compare(compiled(x, {"other": 1, Sly(): 2}), program(x, {"other": 1, Sly(): 2}))


def taken_and_put_back(x: torch.Tensor, table: dict[Any, Any]) -> Any:
    for key in table:
        del table[key]
        table[key] = x + 1
    return table


def exchanged(x: torch.Tensor, table: dict[Any, Any]) -> Any:
    seen = []
    for key in table.items():
        seen.append(key)
        table.pop("a", None)
        table["b"] = 2
    return seen, x + 1


def exchanged_members(x: torch.Tensor, table: dict[Any, Any]) -> Any:
    seen, members = 0, {1}
    for member in members:
        members.remove(member)
        members.add(100 + seen)
        seen += 1
        if seen > 3:
            break
    return seen, sorted(members)[0] > 0, x + 1


@pytest.mark.parametrize("program", [taken_and_put_back, exchanged, exchanged_members])
def test_keys_exchanged_during_iteration(program: Program) -> None:
    check(program, lambda: ({"a": 1},))


class Reversed(dict[str, int]):
    """Iterates backwards."""

    def keys(self) -> Any:
        return reversed(list(dict.keys(self)))

    def __iter__(self) -> Iterator[str]:
        return reversed(list(dict.keys(self)))


def test_a_subclass_that_iterates_in_its_own_way_is_asked() -> None:
    check(lambda x, table: (list(dict(table).items()), x + 1), lambda: (Reversed(a=1, b=2),))


class Sequence:
    """Its iterator is made of its attributes."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def test_lazy_iterators_ask_for_the_iterator_at_once() -> None:
    def program(x: torch.Tensor) -> Any:
        made = Sequence(1, 2, 3)
        found = filter(lambda item: item > 1, made), map(str, made)
        made.items = (7,)
        dynajit.graph_break()
        return [list(part) for part in found]

    check(program)
    check(lambda x: map(str, 5))


class Dying:
    """Writes down its death."""

    dead: list[str] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        Dying.dead.append(self.name)


def test_finalisers_run_where_the_last_reference_goes() -> None:
    def program(x: torch.Tensor, holder: dict[str, Any]) -> Any:
        Dying.dead.clear()
        thing = Dying("local")
        y = x + 1
        del thing
        after_local = list(Dying.dead)
        holder["thing"] = None
        return after_local, list(Dying.dead), y

    check(program, lambda: ({"thing": Dying("held")},))


def test_a_class_s_dict_is_a_view() -> None:
    class Local:
        number = 1

    def program(x: torch.Tensor) -> Any:
        return type(Local.__dict__).__name__, Local.__dict__["number"], "other" in vars(Local), x + 1

    check(program)
    check(lambda x: isinstance(type.__dict__, dict))


def test_ordered_dictionaries_with_own_keys() -> None:
    def program(x: torch.Tensor) -> Any:
        key = Fickle()
        table = collections.OrderedDict([(key, x + 1)])
        key.fails = True
        dynajit.graph_break()
        return len(table)

    check(program)


def test_keys_named_like_parameters() -> None:
    def program(x: torch.Tensor) -> Any:
        table: dict[str, Any] = {}
        table.update(other=1, self=2, tx=3)
        return table, dict(self=1, other=2), dict({"a": 1}, self=x + 1)  # noqa: C408

    check(program)


class Point(collections.namedtuple("Point", "a b")):
    """Has a dictionary, too."""


def test_instances_of_c_classes_with_a_dictionary() -> None:
    def program(x: torch.Tensor) -> Any:
        point = Point(1, x + 1)
        point.c = 5
        ordered = collections.OrderedDict(a=1)
        return point.__dict__, point, ordered.__dict__, type(iter(ordered)).__name__

    check(program)


class ByAddress:
    """Hashed by its id, as registries of backends are."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class ByLength:
    """Hashed by the length of a tensor."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return len(self.value)

    def __eq__(self, other: object) -> bool:
        return True


class ByName(ByLength):
    """Hashed by no number."""

    def __hash__(self) -> Any:
        return "name"


KNOWN = ByAddress()
TABLE = {KNOWN: 3}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("make", [lambda x: KNOWN, lambda x: ByAddress(), ByLength, ByName])
def test_numbers_that_hashes_are(make: Program, dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> Any:
        key = make(x)
        try:
            return x * TABLE.get(key, 5), len({key: x, **TABLE})
        except TypeError as error:
            return x * 100, str(error)

    compiled = dynajit.compile(program, backend="eager", dynamic=dynamic)
    for length in (3, 4, 5):
        value = torch.ones(length)
        compare(compiled(value), program(value))


def test_a_hash_by_address_is_part_of_the_graph() -> None:
    assert dynajit.explain(lambda x: x * TABLE[KNOWN])(x).graph_break_count == 0


class Kept:
    """Keeps its hash when it is asked for it first."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kept: int | None = None

    def __hash__(self) -> int:
        if self.kept is None:
            self.kept = hash(self.number)
        return self.kept

    def __eq__(self, other: Any) -> bool:
        return bool(self.number == other.number)


def test_a_hash_that_is_kept() -> None:
    def program(x: torch.Tensor, key: Kept) -> Any:
        made = Kept(2)
        table = {Kept(2): 3}
        return x * table[made], made.kept, key in table, key.kept

    check(program, lambda: (Kept(2),))
    check(program, lambda: (Kept(5),))
    assert dynajit.explain(program)(x, Kept(2)).graph_break_count == 0


def counted_and_added_to(x: torch.Tensor, table: dict[Any, Any]) -> int:
    count = 0
    for _ in table:
        count += 1
    table[count] = x * 2
    return count


KEYED: list[Callable[[torch.Tensor, torch.Tensor], dict[Any, Any]]] = [
    lambda a, b: {a: b},
    lambda a, b: {(a, b): 1.5},
    lambda a, b: {((a,), 1): "text"},
    lambda a, b: collections.OrderedDict([((a, b), 1.5)]),
]


@pytest.mark.parametrize("made", KEYED)
def test_tensors_of_one_value_are_different_keys(made: Callable[..., dict[Any, Any]]) -> None:
    compiled = dynajit.compile(counted_and_added_to, backend="eager")
    for _ in range(3):
        a, b = torch.tensor(1.0), torch.tensor(2.0)
        mine, theirs = made(a, b), made(a, b)
        compare((compiled(x, mine), [*mine.values()]), (counted_and_added_to(x, theirs), [*theirs.values()]))
        assert next(iter(mine)) is next(iter(theirs)) or next(iter(mine)) == next(iter(theirs))


def test_ids_are_keys_beside_those_of_real_tables() -> None:
    def visit(x: torch.Tensor, node: Any, seen: Any, order: Any) -> Any:
        if id(node) in seen:
            return "again"
        seen[id(node)] = len(seen)
        order.add(id(node))
        found = []
        for part in node:
            dynajit.graph_break()
            found.append(visit(x, part, seen, order))
        return found, id(node) in seen, id(node) in order, seen[id(node)]

    def f(x: torch.Tensor, node: Any, seen: Any) -> Any:
        return x + 1, visit(x, node, seen, set()), len(seen)

    node: list[Any] = [[], ()]
    node[0].append(node)
    compiled = dynajit.compile(f, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), node, {})[1:] == f(torch.ones(2), node, {})[1:]
        seen = {id(node): 7}
        assert compiled(torch.ones(2), node, seen)[1:] == f(torch.ones(2), node, seen)[1:]
