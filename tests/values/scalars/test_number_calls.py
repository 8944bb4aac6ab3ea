"""Functions of `math` on a number that varies: one variant for all of them, and the exceptions that eager raises."""

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter, assert_same

X = torch.arange(1.0, 4.0)
FUNCTIONS = [
    lambda s: 0.05 + 0.85 * math.exp(-s / 20),
    lambda s: 1 - math.exp(-s * 0.1),
    lambda s: math.log(s + 1, 2),
    lambda s: math.pow(0.9, s),
    lambda s: math.hypot(s, 3),
    lambda s: math.gcd(s, 4),
    lambda s: abs(s - 7),
    lambda s: math.fmod(s, 3.0),
    lambda s: math.copysign(1.5, s - 6.5),
    lambda s: math.fmod(-s, 3.0),
    lambda s: (s * 3 + 1).bit_length(),
    lambda s: 1 + (s + 2).bit_count(),
    lambda s: math.exp(-s * s / 100),
    lambda s: 0.5 * (1 + np.cos(np.pi * s / 100)),
    lambda s: float(np.clip(s / 10, 0.2, 0.9)),
    lambda s: np.float32(s / 3) * 2 - np.float32(0.1),
    lambda s: np.power(2.0, -np.sqrt(s)),
    lambda s: round(s / 7, 2),
    lambda s: abs(s / 7 - 1),
    lambda s: 1.0 if math.isclose(s, 9, rel_tol=1e-3) else 2.0,
]


@pytest.mark.parametrize("number", FUNCTIONS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_one_variant_serves_all_numbers(number, backend):
    counter = dynajit.testing.CompileCounterWithBackend(backend)

    def fn(x, s):
        return x * number(s)

    compiled = dynajit.compile(fn, backend=counter)
    for s in range(4, 14):
        got, want = compiled(X, s), fn(X, s)
        assert torch.equal(got, want)
        assert torch.equal(got.signbit(), want.signbit())
    assert counter.frame_count <= 3  # the first number is taken for a constant; zeros of floats are told apart


def test_what_the_function_refuses_is_raised_where_eager_raises_it():
    def fn(x, s):
        try:
            scale = math.log(s)
        except ValueError as error:
            return x, str(error)
        return x * scale * math.exp(s), "fine"

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for s in (2, 3, 4, 0, 5, -1, 6):
        got, want = compiled(X, s), fn(X, s)
        assert torch.equal(got[0], want[0]) and got[1] == want[1]
    with pytest.raises(OverflowError, match="math range error"):
        compiled(X, 800)
    assert torch.equal(compiled(X, 7)[0], fn(X, 7)[0])
    assert counter.frame_count <= 3


def test_decisions_by_the_result_are_guarded_and_no_more_than_they():
    def fn(x, s):
        levels = int(math.log2(s))
        for _ in range(levels):
            x = x * 2
        return x if math.isclose(s, 9) else -x

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for s in (4, 8, 9, 10, 11, 12, 13, 14, 15, 5, 6, 7):
        assert torch.equal(compiled(X, s), fn(X, s))
    assert counter.frame_count == 4  # 4 itself, three doublings or two, and 9


def _functions(kind: str) -> Iterator[Callable[..., Any]]:
    """All of `math`, or NumPy's universal functions."""
    found = vars(math if kind == "math" else np).values()
    classes = (type(math.exp),) if kind == "math" else np.ufunc
    yield from (each for each in dict.fromkeys(each for each in found if isinstance(each, classes)))


def _arguments(of: type, count: int, i: int) -> tuple[Any, ...]:
    number = 0.15 + i * 0.08 if of is float else i + 2
    return (number, of(2))[:count]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("of", [int, float])
@pytest.mark.parametrize("kind", ["math", "numpy"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what it divides by zero and the like
def test_every_function_on_a_number_that_varies(kind: str, of: type, count: int) -> None:
    tried = 0
    for function in _functions(kind):
        try:
            found = [function(*_arguments(of, count, i)) for i in range(6)]
        except (TypeError, ValueError):
            continue
        if not all(isinstance(each, (int, float, np.generic)) for each in found):
            continue

        def program(x: torch.Tensor, *numbers: Any, function: Any = function) -> Any:
            return x * function(*numbers), function(*numbers)

        counter = CompileCounter()
        compiled = dynajit.compile(program, backend=counter)
        for i in range(6):
            got, want = compiled(X, *_arguments(of, count, i)), program(X, *_arguments(of, count, i))
            torch.testing.assert_close(got[0], want[0], rtol=0, atol=0, equal_nan=True)
            assert (type(got[1]), repr(got[1])) == (type(want[1]), repr(want[1])), function
        assert counter.frame_count <= 3, function
        dynajit.reset()
        tried += 1
    assert tried > 5


def test_the_distance_of_two_numbers_that_vary_is_a_relation() -> None:
    """As in `abs(loss - best) < tolerance`."""

    def fn(x: torch.Tensor, a: float, b: float) -> torch.Tensor:
        return x + 1 if abs(a - b) < 0.5 else x - abs(a - b)

    counter = CompileCounter()
    compiled = dynajit.compile(fn, backend=counter)
    for i in range(10):
        assert torch.equal(compiled(X, 0.3 + 0.37 * i, 1.1 + 0.11 * i), fn(X, 0.3 + 0.37 * i, 1.1 + 0.11 * i))
    assert counter.frame_count <= 3


def test_a_warning_that_is_an_error() -> None:
    def fn(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * np.log(s)

    compiled = dynajit.compile(fn, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for s in (1.5, 2.5, -1.0, 3.5, -2.0, 4.5):
            if s > 0:
                assert torch.equal(compiled(X, s), fn(X, s))
            else:
                with pytest.raises(RuntimeWarning, match="invalid value encountered in log"):
                    compiled(X, s)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8])
def test_texts_of_scalars_that_vary(kind: type) -> None:
    def shown(x, v):
        return x * 2, f"{v}", f"{v!r}", str(v), "%s" % v, "%.3f" % v, f"{v:>9}", "{:6.2f}".format(v)  # noqa: UP031,UP032

    numbers = [kind(n * 0.7 + 1) for n in range(1, 8)]
    report = assert_same(shown, X, kind(1), then=[(X, n) for n in numbers], repeat=1, breaks=0)
    assert len(report.recompile_reasons) <= 1


@pytest.mark.parametrize("digits", [-3, -1, 0, 2])
def test_whole_numbers_that_vary_are_rounded(digits: int) -> None:
    def f(x: torch.Tensor, number: int) -> Any:
        return x + 1, round(number, digits), round(number + 1, digits), round(number), round(number * 0.5, digits)  # noqa: RUF057

    x = torch.ones(2)
    assert_same(f, x, 17, then=[(x, value) for value in (25, 1234, -15, 0)])


def test_numbers_made_of_numbers_that_are_used_again_and_again() -> None:
    def distance(x: torch.Tensor, said: str, meant: str) -> Any:
        row, places = [0.0] + [1.0] * len(said), 0
        for letter in meant:
            following = [math.inf] * len(row)
            for i in range(len(row)):
                if i > 0:
                    changed = row[i - 1] + int(said[i - 1] != letter)
                    following[i] = min(following[i - 1] + 0.2, changed, row[i] + 1.0)
                else:
                    following[i] = row[i] + 1.0
            places += following.index(min(following))
            row = following
        return x * 2, row[-1] + places

    assert_same(distance, X, "abcde", "bcd e", then=[(X, "hello", "helo "), (X, "thing", "a not")], graphs=3, breaks=0)
