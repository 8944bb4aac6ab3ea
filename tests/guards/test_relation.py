"""Relations among numbers, evaluated in C, against Python's arithmetic."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest

from dynajit import symbols
from dynajit.guards.guard import Guard, kinds
from dynajit.guards.program import GuardSet
from dynajit.guards.source import LocalSource

INTS = [0, 1, 2, 3, 7, -1, -2, -5, 10**5]
FLOATS = [0.0, -0.0, 0.5, 1.0, 2.0, -1.5, 3.25, 1e300, -1e-300, math.inf, -math.inf, math.nan]
ARITHMETIC = ["add", "mul", "floordiv", "mod", "pow", "min", "max", "truediv"]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge", "and", "or"]


def in_c(tree: Any, values: dict[str, Any]) -> bool:
    first, *others = [LocalSource(number, name) for number, name in enumerate(values)]
    guards = GuardSet()
    guards.add(Guard(first, "RELATION", tree, tuple(values), tuple(others), ""))
    assert kinds["RELATION"].encode(guards[0].params)[0] == "RELATION"
    return guards.build(len(values)).check(tuple(values.values())) == -1


def in_python(tree: Any, values: dict[str, Any]) -> bool:
    try:
        return bool(symbols.value_of(tree, values))
    except (ArithmeticError, ValueError):
        return False


@pytest.mark.parametrize("operation", ARITHMETIC)
def test_arithmetic_and_comparisons(operation: str) -> None:
    numbers = [*INTS, *FLOATS]
    for a, b in itertools.product(numbers, numbers):
        values = {"a": a, "b": b}
        if operation == "pow" and not (math.isfinite(a) and abs(b) <= 7 and (b >= 0 or type(a) is float)):
            continue  # an int to a negative power is a float, which only Python computes
        try:
            result = symbols.value_of((operation, "a", "b"), values)
        except (ArithmeticError, ValueError):
            result = 0
        if isinstance(result, complex) or (type(result) is int and abs(result) > 1 << 53):
            continue
        for comparison in COMPARISONS:
            for bound in (0, 1, -1.5, result):
                tree = (comparison, (operation, "a", "b"), bound)
                assert in_c(tree, values) == in_python(tree, values), (tree, values)


UNARY = ["float", "abs", "trunc", "floor", "ceil", *(name for name in symbols.OPERATIONS if name.startswith("math."))]


@pytest.mark.parametrize("operation", UNARY)
def test_functions_of_one_number(operation: str) -> None:
    held = set()
    for a in [*INTS, *FLOATS, 1 << 53, 0.999, -1.0, 709.7, 709.8, 2.0**62, 2.0**63, -(2.0**63), 0.1, 12.75, -12.75]:
        tree = (operation, "a")
        try:
            result = symbols.value_of(tree, {"a": a}, limit=symbols.INT_LIMIT)
        except (ArithmeticError, ValueError):
            assert not in_c(("or", ("mul", tree, 0), 1), {"a": a}), a
            continue
        relations: list[Any] = [("ne", ("mod", tree, 2), 0)]
        if type(result) is float or abs(result) <= 1 << 53:  # larger ints are not compared with floats
            relations += [("eq", tree, result), ("le", ("truediv", tree, 3.0), 0.25)]
        for relation in relations:
            assert in_c(relation, {"a": a}) == in_python(relation, {"a": a}), (relation, a)
            held.add(in_c(relation, {"a": a}))
    assert held == {True, False}


def test_random_trees() -> None:
    rng = random.Random(0)

    def tree(depth: int) -> Any:
        if depth == 0:
            return rng.choice(["a", "b", rng.choice(INTS[:6]), rng.choice(FLOATS[:7])])
        if rng.random() < 0.2:
            return rng.choice(UNARY), tree(depth - 1)
        return rng.choice(ARITHMETIC[:4] + ARITHMETIC[5:]), tree(depth - 1), tree(depth - 1)

    held = 0
    for _ in range(600):
        values = {"a": rng.choice([*INTS[:8], *FLOATS[:7]]), "b": rng.choice([*INTS[:8], *FLOATS[:7]])}
        relation = ("not", (rng.choice(COMPARISONS), tree(2), ("float", tree(1))))
        found = in_c(relation, values)
        assert found == in_python(relation, values), (relation, values)
        held += found
    assert 50 < held < 550


def test_no_number_and_numbers_too_large() -> None:
    for value in ("1", None, 1 << 64, True):
        assert not in_c(("ge", "a", 0), {"a": value})
    assert not in_c(("lt", "a", 0.5), {"a": (1 << 53) + 1}) and not in_c(("gt", "a", 0.5), {"a": (1 << 53) + 1})


@pytest.mark.parametrize("operation", ["add", "mul", "pow"])
def test_results_beyond_64_bits_make_a_relation_false_in_both_leaves(operation: str) -> None:
    held = set()
    for base, other in itertools.product((2, -3, 10, (1 << 61) - 1, -(1 << 61)), (0, 1, 5, 18, 62, 63, 64, 1 << 62)):
        if operation == "pow" and other > 64:
            continue  # a number that fills the memory
        values = {"a": base, "b": other}
        tree = ("ne", (operation, "a", ("mul", "b", 3)), (operation, "a", ("add", "b", 1)))
        check = Guard(LocalSource(0, "a"), "RELATION", tree, ("a", "b"), (LocalSource(1, "b"),), "").check
        assert in_c(tree, values) == check((base, other)), values
        held.add(in_c(tree, values))
    assert held == {True, False}
