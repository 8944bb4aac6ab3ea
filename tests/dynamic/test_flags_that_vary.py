"""Comparisons of numbers and texts that vary, computed with: the same as eager, of the same types, and no variant for
each outcome."""

import itertools
import math
import operator
from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import compare

X = torch.linspace(-1, 1, 4)
# what becomes of a flag `p`, another one `q`, and two numbers
EXPRESSIONS = (
    *(
        "p + q",
        "0 + p",
        "p + 1.5",
        "p - q",
        "p * q",
        "-p",
        "+p",
        "~p",
        "abs(p)",
        "p + True",
        "p / 2",
        "p // 2",
        "p % 2",
    ),
    *("p + a", "a - p", "a * p", "p * b + q", "p == q", "p != q", "p < q", "p == 1", "p == a", "p >= b", "p & q"),
    *("p | q", "p ^ q", "p & 1", "p << 2", "1 << p", "p ** 2", "2 ** p", "int(p)", "float(p)", "bool(p)", "str(p)"),
    *(
        "f'{p}'",
        "round(p)",
        "divmod(p, 2)",
        "p + q + (a > 0)",
        "sum([p, q, a > 0])",
        "sum([p, q], 1.5)",
        "math.floor(p)",
    ),
    *(
        "max(p, q)",
        "min(p, q)",
        "max(p, a)",
        "sorted([p, q])",
        "sorted([p, q, True])",
        "[p, q].count(True)",
        "p is True",
    ),
    *(
        "p is q",
        "type(p + q)",
        "type(p)",
        "isinstance(p + q, int)",
        "p.bit_length()",
        "(p + q).bit_length()",
        "hash(p)",
    ),
    *("[1.5, 2.5][p]", "(p, q) == (True, False)", "{p, q}", "{p: 1}", "p and q", "p or q", "not p", "sum((p, q)) == 1"),
    *("1.0 if p else 2.0", "p + q if p else q - p", "operator.index(p)", "p.real + q.imag", "range(p + q)", "'ab' * p"),
)
NUMBERS = (3, 8, -1, 0, 2.5, 3, 8.0, -0.0, math.inf, 5, True, 7, math.nan, 11, -4)


FLAGS = {"numbers": "(p := a > b), (q := a <= 4)", "texts": "(p := 'a' in s), (q := s > 'b')"}
TEXTS = ("ab", "b", "", "cab", "xyz", "bb", "a")


def program(flags: str, expression: str) -> Any:
    return eval(f"lambda x, a, b, s: ({flags}, x * 2, {expression})[2:]", {"math": math, "operator": operator})


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("flags", FLAGS)
def test_flags_are_computed_with_as_in_eager(flags: str, expression: str) -> None:
    fn = program(FLAGS[flags], expression)
    compiled = dynajit.compile(fn, backend="eager")
    with dynajit.config.patch(recompile_limit=32):
        for given in zip(NUMBERS, itertools.cycle((4, 1.5, -2, 9)), itertools.cycle(TEXTS), strict=False):
            expected, found = _result(fn, *given), _result(compiled, *given)
            compare(expected, found)
            assert _shown(expected[1:]) == _shown(found[1:])


def _result(fn: Any, *given: Any) -> Any:
    try:
        return fn(X, *given)
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        return X, type(error), str(error)


def _shown(value: Any) -> str:
    return repr([(type(part), part) for part in value])


def test_counts_of_flags_have_one_variant() -> None:
    def count(x: torch.Tensor, numbers: list[int]) -> torch.Tensor:
        return x * sum(number > 5 for number in numbers) + sum([number == 3 for number in numbers])

    compiled = dynajit.compile(count, backend="eager")
    for call in range(20):
        numbers = [(call * 7 + place * 5) % 11 for place in range(4)]
        assert torch.equal(compiled(X, numbers), count(X, numbers))
    assert dynajit.counters()["recompiles"] == 1
