"""Builtins and containers on numbers that are others at each call: what is computed of them is computed at run time."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dynajit
from dynajit.report import records
from dynajit.testing import CompileCounter, assert_same, compare

X = torch.arange(1.0, 4.0)

# kind -> from the number of the call, two numbers; those from 2**31 on have no symbols, and may not fit into 64 bits
NUMBERS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "int": lambda i: (5 + 3 * i, 40 - i),
    "negative int": lambda i: (-5 - 3 * i, -40 + i),
    "float": lambda i: (0.35 + 0.81 * i, 9.3 - 0.1 * i),
    "negative float": lambda i: (-0.35 - 0.81 * i, -9.3 + 0.1 * i),
    "large int": lambda i: ((1 << 40) + 977 * i, (1 << 40) + 977 * (i + 1)),
    "int near 2**62": lambda i: ((1 << 62) + 977 * i, -(1 << 61) - 977 * (i + 1)),
    "int beyond 2**63": lambda i: ((1 << 63) + 977 * i, (1 << 70) + 977 * (i + 1)),
    "int about 2**31": lambda i: ((1 << 31) - 3 + i, (1 << 31) - 2 + i),
    "large float": lambda i: (1e12 + 0.5 * i, 1e300 * (1 + i)),
    "tiny float": lambda i: (1e-8 * (i + 1), 1e-300 * (i + 1)),
}


# what is computed of two numbers
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "sorted": lambda a, b: (sorted([a, b]), sorted((b, a, 7), reverse=True)[0]),
    "list.sort": lambda a, b: (numbers := [b, a, 1], numbers.sort(), numbers)[0],
    "min, max": lambda a, b: (min(a, b), max([a, b]), max(a, b, a)),
    "one of a list": lambda a, b: (min([a]), max([(a, b)]), min([(b, a)], default=0), min([[a, b]]), sorted([(b, a)])),
    "pairs": lambda a, b: (min([(a, 0), (b, 1)]), max([(a, b), (b, a)]), sorted([(a, 1), (b, 0)])[0]),
    "interp": lambda a, b: (float(np.interp(a, [0, 100], [0.1, 1.0])), np.interp(a, [0, 100], [0.1, b])),
    "np.mean": lambda a, b: np.mean([a, b]),
    "complex": lambda a, b: (complex(a), complex(a, b), complex(a).conjugate()),
    "divmod": lambda a, b: (divmod(a, b), divmod(a, 7)[0]),
    "round": lambda a, b: (round(a), round(a, 2), round(b, -1)),
    "format": lambda a, b: (f"{a:.3f}", f"{a:,}", "%g" % (a,), f"{b:>20}", str(a), repr(b)),  # noqa: UP031
    "parts": lambda a, b: (a.as_integer_ratio(), a.conjugate(), a.real, a.imag),
    "hex": lambda a, b: a.hex() if isinstance(a, float) else (a.bit_length(), a.to_bytes(16, "little", signed=True)),
    "bits": lambda a, b: (a & 255, a ^ b, a | 3, a >> 2, ~a) if isinstance(a, int) else None,
    "conversions": lambda a, b: (int(a), float(a), bool(a), abs(a), -a, +a),
    "arithmetic": lambda a, b: (a + 1, a - b, a * 3, a // 7, a % 7, a / b),
    "comparisons": lambda a, b: (a > 10**9, a == b, a < 0, a is None, a in (1, 2, 3), not a),
    "roundings": lambda a, b: (math.floor(a), math.ceil(b), math.trunc(a), math.isfinite(a)),
    "math": lambda a, b: (math.hypot(a, b), math.atan2(a, b), math.fsum([a, b]), math.sqrt(abs(a)), math.log1p(abs(b))),
    "sum": lambda a, b: (sum([a, b]), sum([a, b]) / len([a, b])),
    "hash": lambda a, b: hash(a),
    "containers": lambda a, b: {"a": a, "b": [b, (a, [b])]},
    "decision": lambda a, b: 1 if a else 2,
}


def _same(got: Any, want: Any) -> bool:
    if type(got) is not type(want):
        return False
    if isinstance(got, torch.Tensor):
        return torch.equal(got, want)
    return repr(got) == repr(want)


def _called(fn: Callable[..., Any], a: Any, b: Any) -> Any:
    try:
        return fn(X, a, b)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_variant_serves_all_numbers(name: str, kind: str) -> None:
    program, numbers = PROGRAMS[name], NUMBERS[kind]

    def fn(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x * 2, program(a, b)

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for i in range(8):
        got, want = _called(compiled, *numbers(i)), _called(fn, *numbers(i))
        assert _same(got[0], want[0]) and _same(got[1], want[1])
    # the first numbers are taken for constants, and a size is told from what is none
    assert counter.frame_count <= (3 if kind == "int about 2**31" else 2)


@pytest.mark.parametrize("kind", ["int", "large int", "float"])
def test_an_error_is_the_programs(kind: str) -> None:
    def fn(x: torch.Tensor, a: Any, b: Any) -> Any:
        try:
            return x + 1, divmod(a, b), math.fsum([a, 1 / b])
        except ZeroDivisionError as error:
            return x + 2, str(error)

    compiled = dynajit.compile(fn, backend="eager")
    for i in (0, 1, 2, 3, -1, 4):
        a, b = NUMBERS[kind](i)
        b = 0 if i < 0 else b
        got, want = compiled(X, a, b), fn(X, a, b)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]


def test_a_number_that_is_written_while_it_is_read() -> None:
    """The call's source is read before the program's own effects."""

    class Counter:
        stamp = 1 << 40
        other = 3

    def fn(x: torch.Tensor, c: Counter) -> Any:
        before = divmod(c.stamp, c.other)
        c.stamp += 977
        c.other += 1
        return x * 2, before, c.stamp % c.other

    compiled, ours, theirs = dynajit.compile(fn, backend="eager"), Counter(), Counter()
    for _ in range(8):
        got, want = compiled(X, ours), fn(X, theirs)
        assert got[1:] == want[1:] and vars(ours) == vars(theirs)


_LAWS: dict[str, Callable[[float], Any]] = {
    "equal to itself": lambda v: (v == v, v != v, v <= v, v < v),
    "its absolute value": lambda v: (abs(v) >= 0, abs(v) < 0, abs(v) == abs(v)),
    "beside what follows from it": lambda v: (v + 1 > v, v * 2 == v + v, -v == 0 - v, v - v == 0, v / 2 < v),
    "the sum's law": lambda v: (v + 1.0 == 1.0 + v, v * 0.0 == 0.0, max(v, v) == v),
    "asked in a branch": lambda v: "number" if v == v else "none",
}


@pytest.mark.parametrize("law", _LAWS)
@pytest.mark.parametrize("first", [(), (3.0,), (3.0, 1.0), (math.nan,), (math.nan, 2.0)], ids=str)
def test_laws_that_not_all_floats_keep(law: str, first: tuple[float, ...]) -> None:
    """Of real numbers they are true, so that algebra decides them: NaN and infinities come once they are symbols."""

    def fn(x: torch.Tensor, v: float) -> Any:
        return x * 2, _LAWS[law](v)

    compiled = dynajit.compile(fn, backend="eager")
    for v in (*first, math.nan, 4.5, math.inf, 0.0, -math.inf, math.nan, -2.5, 0.0):
        assert compiled(X, v)[1] == fn(X, v)[1], v


def test_past_a_graph_break() -> None:
    def fn(x: torch.Tensor, a: int, b: int) -> Any:
        y = x + 1
        dynajit.graph_break()
        return y * 2, a - b, a > b, max(a, b)

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for i in range(8):
        a, b = (1 << 40) + 3 * i, (1 << 40) + 5 * i + 1
        assert compiled(X, a, b)[1:] == fn(X, a, b)[1:]
    assert counter.frame_count <= 4


BEYOND_64_BITS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "compared": lambda x, n: x * 2 if (1 << n * 16) > (1 << (n * 15 + 20)) else x * 3,
    "fixed later": lambda x, n: (x + 1, pow(3, n, 5), 1 << n * 16, hash(1 << n * 16)),
    "a power": lambda x, n: (x + 1, 10 ** (n * 4) == 10 ** (n * 4) + 1, 10 ** (n * 4) % 7),
    "a product": lambda x, n: x * 2 if n**9 * n**9 < n**17 + 10**17 else x * 3,
    "as a float": lambda x, n: x * (10 ** (n * 4) / 10 ** (n * 4 + 1)),
}


@pytest.mark.parametrize("program", BEYOND_64_BITS.values(), ids=BEYOND_64_BITS)
def test_integers_that_grow_beyond_64_bits(program: Callable[..., Any]) -> None:
    dynajit.reset()
    compiled = dynajit.compile(program, backend="eager")
    for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]:
        assert str(compiled(torch.ones(1), n)) == str(program(torch.ones(1), n))
    assert not dynajit.counters["internal_errors"]


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("convert", [int, float, operator.index, math.trunc, math.floor, math.ceil, math.sqrt])
def test_conversions_of_numpys_numbers_that_vary(convert: Callable[[Any], Any], kind: type) -> None:
    """Some of their classes refuse one: as in eager mode, with the same words."""

    def f(x: torch.Tensor, n: Any) -> Any:
        try:
            return x + 1, convert(n)
        except TypeError as error:
            return x, str(error)

    compiled = dynajit.compile(f, backend="eager")
    for number in range(3, 7):
        compare(compiled(torch.ones(2), kind(number)), f(torch.ones(2), kind(number)))


def test_numpys_numbers_of_several_classes_in_turn() -> None:
    """One class after another varies from the start, also after a zero and where the next one's number is the same."""

    def f(x: torch.Tensor, n: Any) -> tuple[Any, ...]:
        return x * n, n + 1, float(n) * 2, int(n)

    kinds: tuple[Callable[[int], Any], ...] = (lambda n: np.float64(n / 2), np.int64, np.float32, np.int32)
    calls = [kinds[n % 4](n) for n in range(16)]
    compiled, seen = dynajit.compile(f, backend="eager"), list[records.CompileRecord]()
    with records.listen(seen.append):
        for number in calls:
            compare(compiled(X, number), f(X, number))
    assert len(seen) <= len(kinds) + 1


def test_long_numbers_that_a_program_computes_with() -> None:
    def f(x: torch.Tensor, number: int) -> Any:
        return x + 1, number * 7**6000 % 1000003, number + 10**5000 > 0

    assert_same(f, torch.ones(2), 3, then=[(torch.ones(2), value) for value in (4, 5, -6)])
