"""Python floats that vary are added and multiplied as Python does: in the program's order, with signed zeros."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.guards.guard import kinds

NUMBERS = (0.5, 1.1, -2.3, 7.7, 1e300, -1e-300)
OTHERS = (2.5, 3.3, -0.0, 0.0)
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "one product after the other": lambda x, y: x * 0.1 * 3.0,
    "times zero": lambda x, y: x * 0.0,
    "times a zero that varies": lambda x, y: x * y * 3,
    "minus itself": lambda x, y: x - x,
    "there and back": lambda x, y: x + y - x,
    "plus one, minus one": lambda x, y: (x + 1.0) - 1.0,
    "two products": lambda x, y: 0.1 * x + 0.2 * x,
    "a fraction": lambda x, y: x * 3.0 / 3.0,
    "with an integer": lambda x, y: x * 3 + 1 - x,
    "from zero": lambda x, y: 0.0 - x,
    "beside zero": lambda x, y: (y + 0.0, 0 + y, y - 0.0, 0.0 - y, x - 0, sum([x, y])),
    "the larger": lambda x, y: max(x * 0.1, y),
    "a branch": lambda x, y: "more" if x + y - x > y else "not more",
    "the larger of two zeros": lambda x, y: (max(y * x, -(y * x)), min(-(y * x), y * x), max(x * y, 0.0)),
    "remainders": lambda x, y: (x // 0.1, x % 0.1, y % 2.5, y // -3.0, divmod(x, 0.7), 1.5 % x),
    "a remainder's branch": lambda x, y: ("high" if y % 2.5 > 1.7 else "low", x % -2.5 < -1.7),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_python_computes(name: str) -> None:
    program = PROGRAMS[name]
    compiled = dynajit.compile(program, backend="eager")
    for x, y in itertools.product(NUMBERS, OTHERS):
        assert repr(compiled(x, y)) == repr(program(x, y))


@pytest.mark.parametrize("seed", range(3))
def test_random_expressions(seed: int) -> None:
    chance = random.Random(seed)

    def expression(depth: int) -> str:
        if depth == 0:
            return chance.choice(["x", "y", "x", repr(round(chance.uniform(-3, 3), 1)), "2"])
        if chance.random() < 0.2:
            return f"({expression(depth - 1)} {chance.choice(['//', '%'])} {chance.choice(['0.1', '-0.7', '2.5'])})"
        if chance.random() < 0.2:
            return f"{chance.choice(['max', 'min'])}({expression(depth - 1)}, {expression(depth - 1)})"
        return f"({expression(depth - 1)} {chance.choice('+-*')} {expression(chance.randrange(depth))})"

    for _ in range(12):
        text = expression(chance.choice([2, 3]))
        program = eval(f"lambda x, y: {text}")
        compiled = dynajit.compile(program, backend="eager")
        for _ in range(4):
            x, y = chance.uniform(-9, 9), chance.uniform(-9, 9)
            assert repr(compiled(x, y)) == repr(program(x, y)), text


@pytest.mark.parametrize("seed", range(3))
def test_sizes_computed_from_floats(seed: int) -> None:
    """Floats below 1 too, and quotients and roots, which not every number has."""
    chance = random.Random(seed)

    def expression(depth: int) -> str:
        if depth == 0:
            return chance.choice(["x", "y", "x", "y", "0.3", "2"])
        left, right = expression(depth - 1), expression(chance.randrange(depth))
        return chance.choice(
            [f"({left} / {right})", f"({left} * {right})", f"math.sqrt({left})", f"({left} + {right})"]
        )

    for _ in range(4):
        text = f"{chance.choice(['int', 'round', 'math.floor', 'math.ceil'])}({expression(chance.choice([2, 3]))})"
        program = eval(f"lambda x, y: torch.ones(2, 1 + {text} % 20) * x + {text}", {"math": math, "torch": torch})
        compiled = dynajit.compile(program)
        for _ in range(3):
            x, y = chance.uniform(0.05, 0.95), chance.uniform(0.05, 9)
            found, wanted = compiled(x, y), program(x, y)
            assert found.shape == wanted.shape, text
            torch.testing.assert_close(found, wanted)


def test_they_stay_symbolic_and_in_the_graph() -> None:
    def program(x: torch.Tensor, rate: float) -> tuple[torch.Tensor, float]:
        scaled = rate * 0.1 * 3.0 + 1.0 - rate
        return x * scaled, scaled

    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(program, backend=counter)
    x = torch.ones(3)
    for rate in (0.3, 0.7, 1.9, 2.3, 11.1):
        found, wanted = compiled(x, rate), program(x, rate)
        assert torch.equal(found[0], wanted[0]) and found[1] == wanted[1]
    assert counter.frame_count == 2


# of a number that is computed, and that is 0.0 or -0.0 at some calls: what tells which, and what decides
ASKED_OF_ZEROS: dict[str, Callable[[float, float], Any]] = {
    "itself": lambda a, w: (a, -a, a * -1, 0 - a, a + 0, a / w, a * w, -a * w, abs(a), a // -3.0),
    "its sign": lambda a, w: (math.copysign(1.0, a), math.copysign(1.0, -a), math.copysign(1.0, a * w + 0)),
    "a text": lambda a, w: {"0.0": 1, "-0.0": 2}.get(f"{a}", 3),
    "a tensor": lambda a, w: (1 / torch.full((2,), a), 1 / torch.tensor([a, a * w])),
    "an operation": lambda a, w: 1 / F.threshold(torch.zeros(2), 1.0, a),
    "an attribute of an operation": lambda a, w: 1 / F.leaky_relu(-torch.ones(2), a),
    "a branch": lambda a, w: (1 / torch.full((2,), a * w), a / w) if a == 0 else a * 2,
    "an angle": lambda a, w: math.atan2(a, -1.0) if not a else math.atan2(-a, -1.0),
}


@pytest.mark.parametrize("name", ASKED_OF_ZEROS)
def test_zeros_that_are_computed(name: str) -> None:
    """The first number that a part of the program sees is one, of either sign."""
    asked = ASKED_OF_ZEROS[name]

    def program(x: torch.Tensor, i: int, w: float) -> Any:
        a = (i - 5) * w
        return (asked(a, w), x * a) if i >= 5 else x

    calls = [(1, 0.5), (2, 0.25), (5, 0.5), (5, -0.5), (5, 0.25), (7, -0.5), (5, -0.25), (9, 0.5), (6, 0.25)]
    for order in (calls, calls[::-1], calls[3:] + calls[:3]):
        dynajit.reset()
        compiled = dynajit.compile(program, backend="eager")
        for i, w in order:
            assert repr(compiled(torch.ones(2), i, w)) == repr(program(torch.ones(2), i, w)), (i, w)


def test_a_computed_zero_is_one_of_many() -> None:
    """A branch that begins with 0.0, as a schedule behind a warm-up does, is compiled once."""

    def program(x: torch.Tensor, step: int) -> torch.Tensor:
        rate = step / 8 if step < 8 else 0.5 * (1 + math.cos(math.pi * (step - 8) / 20))
        return x * rate

    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(program, backend=counter)
    for step in range(1, 20):
        assert torch.equal(compiled(torch.ones(3), step), program(torch.ones(3), step))
    assert counter.frame_count == 3


def test_zeros_beside_them_fix_none() -> None:
    def program(x: torch.Tensor, rate: float, lowest: float) -> torch.Tensor:
        return x * (lowest + (rate - lowest) * 0.5) * sum([rate, rate]) * (0 - rate)

    counter = dynajit.testing.CompileCounter()
    compiled = dynajit.compile(program, backend=counter)
    for rate in (0.3, 0.7, -1.9, 2.3):
        assert torch.equal(compiled(torch.ones(3), rate, 0.0), program(torch.ones(3), rate, 0.0))
    assert counter.frame_count == 2


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_remainders_of_floats_that_vary_in_training(backend: str) -> None:
    """AOTAutograd makes tensors of symbolic floats, and knows no remainders."""
    compiled = dynajit.compile(lambda x, rate: x * (rate % 2), backend=backend)
    for rate in (1.5, 2.5, 3.75):
        x = torch.arange(3.0).requires_grad_()
        result = compiled(x, rate)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close((result, gradient), (x * (rate % 2), torch.full((3,), rate % 2)))


def test_gradients_turned_on_inside_where_tracing_starts_again() -> None:
    """What comes before has no gradient, whatever the first trace left behind."""

    def step(x: torch.Tensor, weight: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.sigmoid(x + weight)
        torch.set_grad_enabled(True)
        return (weight * 3 + before) * int(scale), before

    compiled = dynajit.compile(step, backend="codegen")
    for scale in (1.5, 2.5, 3.5, 4.5):
        weight = torch.ones(2, 2, requires_grad=True)
        with torch.no_grad():
            after, before = compiled(torch.ones(2, 2), weight, scale)
        assert after.requires_grad and not before.requires_grad
        (gradient,) = torch.autograd.grad(after.sum(), weight)
        assert torch.equal(gradient, torch.full((2, 2), 3.0 * int(scale)))


ASKS_WHAT_NUMBER = {
    "norm": lambda x, n: torch.norm(x, n, dim=-1),
    "vector_norm": lambda x, n: torch.linalg.vector_norm(x, n, dim=0),
    "renorm": lambda x, n: torch.nn.functional.normalize(x, n, dim=1),
    "pow": lambda x, n: x.abs() ** n,
    "clamp": lambda x, n: x.clamp(-n, n),
    "nan_to_num": lambda x, n: (x * n).nan_to_num(n),
    "compared": lambda x, n: x if n == float("inf") else x * n,
    "told": lambda x, n: x + 1 if n != n else x / n,
    "finite": lambda x, n: x * n if math.isfinite(n) else x - 1,
}


@pytest.mark.parametrize("name", ASKS_WHAT_NUMBER)
@pytest.mark.filterwarnings("ignore:dynajit. <lambda> .* was compiled 8 times")
def test_no_symbol_is_infinite(name: str) -> None:
    """torch takes an infinite float for another function, and its symbols for finite ones."""
    function = ASKS_WHAT_NUMBER[name]
    compiled = dynajit.compile(function)
    x = torch.tensor([[0.5, -2.0], [3.0, 4.0]])
    for number in (2.5, 1.5, 3.5, math.inf, -math.inf, math.nan, 4.5):
        torch.testing.assert_close(compiled(x, number), function(x, number), equal_nan=True)


def test_that_a_float_is_finite_fixes_no_number() -> None:
    assert kinds["RELATION"].pins((("eq", ("mul", "n", 2.0), 6.0), ("n",), (), "it is 3"))
    assert not kinds["RELATION"].pins((("eq", ("mul", "n", 0.0), 0.0), ("n",), (), "it is finite"))


RAISING: dict[str, Callable[[Any, Any], Any]] = {
    "pow": lambda x, y: x**y,
    "builtin pow": lambda x, y: pow(x, y),
    "sqrt": lambda x, y: math.sqrt(x),
    "cosh": lambda x, y: math.cosh(x),
    "sinh": lambda x, y: math.sinh(x),
    "asin": lambda x, y: math.asin(x),
    "sin": lambda x, y: math.sin(x),
    "tan": lambda x, y: math.tan(x),
}


@pytest.mark.parametrize("name", RAISING)
def test_what_raises_for_some_numbers_raises_where_the_program_computes_it(name: str) -> None:
    """Not before the graph, where the program's own handler does not see it."""

    def program(t: torch.Tensor, x: Any, y: float) -> Any:
        try:
            found = RAISING[name](x, y)
        except (ArithmeticError, ValueError) as error:
            found = repr(error)
        return t * 2, found

    compiled = dynajit.compile(program, backend="eager")
    pairs = [(0.5, 2.0), (0.25, 3.0), (0.75, 2.5), (1e308, 3.0), (-8.0, 1 / 3), (0.0, -1.0), (math.inf, 2.0)]
    integers = [(2, 0.5), (3, 1.5), (4, 2.5), (-3, 0.5), (1000, 1e3), (0, -2.0)]
    for x, y in [*pairs, *integers]:
        found, expected = (run(torch.ones(2), x, y) for run in (compiled, program))
        assert repr(found) == repr(expected), (x, y)
