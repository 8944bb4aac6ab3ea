"""Operators between sets, views of dictionaries and other containers: the same result, or the same error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynajit

SIDES = ["d.keys()", "d.values()", "d.items()", "{1}", "frozenset([1])", "[1]", "d"]
OPERATORS = ["|", "&", "-", "^", "<=", "<", ">", "==", "!="]


def outcome(call: Any) -> Any:
    try:
        found = call(torch.ones(2), {"a": 1})[1]
    except Exception as error:
        return type(error), str(error)
    return type(found), found


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("made_inside", [False, True])
def test_between_all_kinds(operator: str, made_inside: bool) -> None:
    for left in SIDES:
        for right in SIDES:
            made = "d = {**d, 'b': 1}" if made_inside else "pass"
            namespace: dict[str, Any] = {}
            exec(f"def program(x, d):\n    {made}\n    return x + 1, {left} {operator} {right}", namespace)
            program = namespace["program"]
            compiled = dynajit.compile(program, backend="eager")
            assert outcome(compiled) == outcome(program), (left, operator, right)


class Alike:
    """Equal to all, with a hash of its own."""

    def __init__(self, hashed: int) -> None:
        self.hashed = hashed

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        return True


class Itemless(tuple):
    def __iter__(self) -> Any:
        return iter(())


# A key is looked up by its hash, its value is compared and needs none; what is no pair is never among items.
MEMBERS = {
    "no tuple": lambda: Alike(1) in {"a": 1}.items(),
    "another hash": lambda: (Alike(1), 5) in {Alike(2): 5}.items(),
    "the same hash": lambda: (Alike(1), 5) in {Alike(1): 5}.items(),
    "an equal value": lambda: ("a", Alike(1)) in {"a": 2}.items(),
    "three": lambda: ("a", 1, 2) in {"a": 1}.items(),
    "a subclass": lambda: (Itemless(("a", 1)) in {"a": 1}.items(), Itemless(("a", 2)) in {"a": 1}.items()),
    "no key": lambda: ([], 1) in {"a": 1}.items(),
    "equal views": lambda: {"a": Alike(1)}.items() == {"a": Alike(2)}.items(),
    "smaller": lambda: ({"a": [1]}.items() < {"a": [1], "b": 2}.items(), {"a"} >= {"a": 1}.keys()),
    "a value without a hash": lambda: {"a": [1]}.items() == {("a", 1)},
}


@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_among_items(name: str) -> None:
    ask = MEMBERS[name]

    def program(x: torch.Tensor, d: Any) -> Any:
        return x + 1, ask()

    assert outcome(dynajit.compile(program, backend="eager")) == outcome(program)


class Frozen(frozenset[Any]):
    pass


@pytest.mark.parametrize("members", [(), ("a",), ("a", "b", 3)])
def test_a_copy_of_a_subclass_is_another_object(members: tuple[Any, ...]) -> None:
    def program(x: torch.Tensor, given: Frozen) -> Any:
        copied, own = given.copy(), Frozen(members)
        return x + 1, (copied, id(copied) == id(given), own.copy(), [*copied], [*own.copy()])

    plain, compiled = (fn(torch.ones(2), Frozen(members))[1] for fn in (program, dynajit.compile(program)))
    assert repr(plain) == repr(compiled)


@pytest.mark.parametrize("kind", [set, frozenset, dict.fromkeys])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (3, 1), (3, 3)])
def test_of_equal_members_that_of_the_operand_that_is_looked_through(kind: Any, sizes: tuple[int, int]) -> None:
    def f(x: Any, n: int, m: int, made: Any) -> Any:
        view, other = dict.fromkeys(range(n)).keys(), made([float(i) for i in range(m)])
        other = other.keys() if hasattr(other, "keys") else other
        found, swapped = view & other, other & view
        return x, sorted(map(repr, found)), sorted(map(repr, swapped))

    x = torch.ones(2)
    assert dynajit.compile(f, backend="eager")(x, *sizes, kind)[1:] == f(x, *sizes, kind)[1:]


LETTERS = frozenset("ab")
OTHERS: dict[str, Any] = {
    "set": lambda x: {"a"},
    "frozenset": lambda x: frozenset("abc"),
    "of what is computed": lambda x: {x * 2, "a"},
    "list": lambda x: ["a", x],
    "iterator": lambda x: iter(["a", "b", "c"]),
}
UNBOUND = [
    "copy",
    "union",
    "intersection",
    "difference",
    "symmetric_difference",
    "isdisjoint",
    "issubset",
    "issuperset",
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", UNBOUND)
def test_the_class_s_method_on_a_constant(name: str, other: str) -> None:
    given = [] if name == "copy" else [OTHERS[other]]

    def f(x: torch.Tensor) -> Any:
        found = getattr(frozenset, name)(LETTERS, *[make(x) for make in given])
        told = found if isinstance(found, bool) else sorted(each if type(each) is str else "?" for each in found)
        return x, (told, type(found), found is LETTERS)

    assert dynajit.compile(f, backend="eager")(torch.ones(2))[1] == f(torch.ones(2))[1]
    assert not dynajit.counters["internal_errors"]
