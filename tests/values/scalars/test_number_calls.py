"""Functions of `math` on a number that varies: one variant for all of them, and the exceptions that eager raises."""

import math

import pytest
import torch

import dynajit
from dynajit.testing import CompileCounter

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
