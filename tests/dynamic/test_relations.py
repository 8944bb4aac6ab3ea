"""Relations among numbers: the C program, its Python twin, and what Python itself says."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import dynajit
from dynajit import _C, symbols
from dynajit.guards.guard import Guard
from dynajit.guards.program import CallValues, GuardSet
from dynajit.guards.source import LocalSource, SizeSource, StrideSource
from dynajit.loopir.size import Size, SizeSymbol, Undecided, divides, hint_of, quotient

NAMES = ("a", "b", "c")
OF_NUMBERS = ["add", "mul", "floordiv", "mod", "min", "max"]
OF_TRUTH = ["eq", "ne", "lt", "le", "gt", "ge"]


def random_tree(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(NAMES) if rng.random() < 0.7 else rng.randint(-5, 9)
    return rng.choice(OF_NUMBERS), random_tree(rng, depth - 1), random_tree(rng, depth - 1)


def random_relation(rng: random.Random) -> Any:
    relation: Any = (rng.choice(OF_TRUTH), random_tree(rng, 3), random_tree(rng, 2))
    if rng.random() < 0.3:
        relation = (rng.choice(["and", "or"]), relation, random_relation(rng))
    return ("not", relation) if rng.random() < 0.2 else relation


def guard_set(tree: Any) -> GuardSet:
    first, *others = (LocalSource(at, name) for at, name in enumerate(NAMES))
    guards = GuardSet()
    guards.add(Guard(first, "RELATION", tree, NAMES, tuple(others), ""))
    return guards


@pytest.mark.parametrize("seed", range(60))
def test_program_and_twin_agree(seed: int) -> None:
    rng = random.Random(seed)
    tree = random_relation(rng)
    guards = guard_set(tree)
    program = guards.build(3)
    for _ in range(30):
        values = tuple(rng.randint(-20, 20) for _ in NAMES)
        named = dict(zip(NAMES, values, strict=True))
        try:
            expected = bool(symbols.value_of(tree, named))
            assert expected == bool(eval(symbols.text_of(tree), named))
        except ZeroDivisionError:
            expected = False  # also where Python would not have come to the division
        assert guards.check_python(values) == program.check(values) == (-1 if expected else 0), (tree, values)


def test_numbers_that_do_not_fit() -> None:
    guards = guard_set(("lt", "a", ("mul", "b", "c")))
    program = guards.build(3)
    assert program.check((1, 2, 3)) == -1
    for values in ((1, 1 << 40, 1 << 40), (1, 2, 1 << 70), (1, 2, "3"), (True, 2, 3)):
        assert program.check(values) == 0
    assert guards.check_python((1, 2, "3")) == guards.check_python((1, 2, None)) == 0


def test_floats_are_compared_in_python() -> None:
    guards = guard_set(("eq", ("truediv", "a", 2), "b"))
    program = guards.build(3)
    for values, expected in (((3, 1.5, 0), -1), ((3, 1.0, 0), 0), ((3, None, 0), 0)):
        assert program.check(values) == guards.check_python(values) == expected


def test_sizes_and_strides_of_tensors() -> None:
    x = LocalSource(0, "x")
    guards = GuardSet()
    guards.add(Guard(StrideSource(x, 0), "RELATION", ("eq", "t", "s"), ("t", "s"), (SizeSource(x, 1),), ""))
    program = guards.build(1)
    good, bad = torch.rand(3, 4), torch.rand(3, 8)[:, :4]
    for value, expected in ((good, -1), (bad, 0), (None, 0), (torch.rand(3), 0), (torch.rand(3, 4).to_sparse(), 0)):
        assert program.check((value,)) == guards.check_python((value,)) == expected
    text = guards.failure_reason(0, CallValues((bad,)))
    assert "L['x'].stride(0) == L['x'].size(1)" in text and "L['x'].stride(0) is 8" in text


def test_bad_programs_are_refused() -> None:
    for words in ((), (1, 3), (3,), (0, 1, 0, 2), (99,), (0,)):
        with pytest.raises(ValueError, match="no program that leaves one number"):
            _C.GuardProgram([("RELATION", 0, -1, -1, (words, (0,)))], 1)
    with pytest.raises(ValueError, match="reads slot 4"):
        _C.GuardProgram([("RELATION", 0, -1, -1, ((1, 0), (4,)))], 1)


def test_reading_one_size() -> None:
    x = torch.rand(3, 4)
    assert (_C.tensor_size(x, 1), _C.tensor_stride(x, 0)) == (4, 4)
    for bad in ((x, 2), (3, 0), (x,)):
        with pytest.raises(TypeError):
            _C.tensor_size(*bad)  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------- sizes of the loop IR


def test_arithmetic_of_sizes() -> None:
    rng = random.Random(0)
    a, b = (Size({(SizeSymbol(name, 2, hint),): 1}) for name, hint in (("s0", 5), ("s1", 7)))
    values = {"s0": 5, "s1": 7}
    for _ in range(200):
        left, right = (rng.randint(-3, 3) * a + rng.randint(-3, 3) * b * a + rng.randint(-4, 4) for _ in range(2))
        for made in (left + right, left - right, left * right):
            assert eval(repr(made), dict(values)) == hint_of(made)
        assert hint_of(left * right) == hint_of(left) * hint_of(right)
        if right != 0:
            assert quotient(left * right, right) == left
    assert (a - a, a * 0, quotient(a * b * 6, a * 2), divides(b, a)) == (0, 0, b * 3, False)
    with pytest.raises(Undecided):
        _ = a // b
    with pytest.raises(Undecided):
        int(a)


def test_comparisons_of_sizes_are_proofs() -> None:
    a, b = (Size({(SizeSymbol(name, 2, 5),): 1}) for name in ("s0", "s1"))
    assert a >= 2 and a > 1 and a > 0 and not a > 2 and not a < 100
    assert a * b > b and a * b >= b * 2 and not a > b and not b > a and a != 5
    assert a - 1 > 0 and not a - 2 > 0 and a - 2 >= 0


def test_a_root_by_iteration_is_no_expression_of_the_number() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        root = n
        while root * root > n:
            root = (root + n // root) // 2
        return x * root

    compiled = dynajit.compile(program, backend="eager")
    x = torch.ones(2)
    for n in (10**4, 10**6 + 3, 10**8, 7, 10**6 + 3):
        assert torch.equal(compiled(x, n), program(x, n))
