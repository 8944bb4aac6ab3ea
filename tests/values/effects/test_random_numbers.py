"""Python's random numbers: drawn when the compiled function runs, in order, and symbolic in the graph."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import dynajit
from dynajit.testing import assert_same

X = torch.linspace(-1.0, 1.0, 8)

DRAWS: dict[str, Callable[..., Any]] = {
    "random": lambda x: x * random.random() + random.random(),
    "uniform": lambda x: (x * random.uniform(1, 2) + random.gauss(0, 1), random.betavariate(1, b := 2) * b),
    "integers": lambda x: (x * random.randint(1, 10), x.roll(random.randrange(3)), random.getrandbits(5)),
    "bounds": lambda x: x * random.randint(0, x.shape[0]),
    "choice": lambda x: x * random.choice([1, 2, 3]) + random.choice((0.5, 1.5)),
    "results": lambda x: (x + 1, random.random(), [random.randint(0, 9)]),
    "arithmetic": lambda x: x * (random.random() * 2 - 1),
    "loop": lambda x: torch.stack([x + random.random() for _ in range(4)]),
    "own": lambda x: x * random.Random(3).random(),
    "seeded": lambda x: (random.seed(3), x * random.random())[1],
    "functions": lambda x: (x.clamp(max=(a := random.random())), x.add(x, alpha=a), torch.full((2,), a), x - a),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_draws_are_part_of_the_graph(name: str, backend: str) -> None:
    assert_same(DRAWS[name], X, repeat=3, graphs=1, breaks=0, recompiles=0, backend=backend)


def test_object_of_the_programs() -> None:
    def draw(x: Tensor, source: random.Random) -> Tensor:
        return x * source.random() + source.randint(0, 4)

    assert_same(draw, X, random.Random(3), repeat=3, graphs=1, breaks=0)


def test_state_is_put_back_by_the_program() -> None:
    def draw(x: Tensor) -> tuple[Tensor, float]:
        state = random.getstate()
        first = random.random()
        random.setstate(state)
        return x * first, random.random()

    assert_same(draw, X, repeat=3, graphs=1, breaks=0)


def test_number_is_symbolic_behind_a_break() -> None:
    def draw(x: Tensor) -> Tensor:
        factor = random.random()
        y = x * factor
        dynajit.graph_break()
        return y + factor

    assert_same(draw, X, repeat=4, graphs=2, breaks=1, recompiles=0)


def test_decision_breaks() -> None:
    def drop(x: Tensor) -> Tensor:
        return x * 2 if random.random() < 0.5 else x + 1

    report = assert_same(drop, X, repeat=6, breaks=1, recompiles=0)
    assert [found.kind for found in report.break_reasons] == ["run-time-number"]


def test_layers_dropped_in_a_loop() -> None:
    def layers(x: Tensor) -> Tensor:
        for i in range(12):
            if random.random() < 0.5:
                continue
            x = x + i
        return x.sin()

    assert_same(layers, X, repeat=4, breaks=1, recompiles=0)


def test_power_of_what_may_be_negative_breaks() -> None:
    assert_same(lambda x: x * (random.random() * 2 - 1) ** 2, X, repeat=4, breaks=1)


def test_sizes_break() -> None:
    report = assert_same(lambda x: x[: random.randint(2, 5)] * 2, X, repeat=3, breaks=1)
    assert [found.kind for found in report.break_reasons] == ["run-time-number"]


def test_draws_once_more_where_the_graph_raises() -> None:
    def index(x: Tensor, at: Tensor) -> Tensor:
        return (x * random.random())[at]

    later = [(X, torch.tensor([100])), (X, torch.tensor([2]))]
    assert_same(index, X, torch.tensor([1]), then=later, graphs=1, breaks=0)


# programs that draw, and how often a call keeps the generator's state: for graphs alone that may raise
KEEPING: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "no graph": (lambda x: x if random.random() < 2 else None, 0),
    "a graph": (lambda x: x * random.random() + random.random(), 0),
    "a graph behind a break": (lambda x: (x + 1) * random.random() if random.random() < 2 else None, 0),
    "may raise": (lambda x: x[torch.zeros(1, dtype=torch.int64)] * random.random(), 1),
    "in no graph that may raise": (lambda x: x * (random.random() if random.random() < 2 else 1), 0),
}


@pytest.mark.parametrize("name", KEEPING)
def test_the_state_is_kept_where_the_graph_may_raise(name: str) -> None:
    program, expected = KEEPING[name]
    compiled = dynajit.compile(program)
    compiled(X)
    found: list[str] = []

    def noted(frame: Any, event: str, called: Any) -> None:
        found.extend(["getstate"] if event == "c_call" and called.__name__ == "getstate" else [])

    sys.setprofile(noted)
    try:
        compiled(X)
    finally:
        sys.setprofile(None)
    assert len(found) == expected


RAISING: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "item": lambda x, i: x[i] * random.random(),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x[:, None]) + random.random(),
    "gather": lambda x, i: x.gather(0, i) * random.random(),
    "division": lambda x, i: (i // (i - i)) + random.random(),
    "distribution": lambda x, i: torch.bernoulli(x * 9) + random.random(),
    "classes": lambda x, i: torch.nn.functional.cross_entropy(x[None], i[:1]) * random.random(),
    "factor": lambda x, i: torch.linalg.cholesky(-torch.eye(2) * i.sum()) * random.random(),
}


@pytest.mark.parametrize("name", RAISING)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_draws_are_as_often_where_operations_raise(name: str, backend: str) -> None:
    program = RAISING[name]
    compiled = dynajit.compile(program, backend=backend)
    for index in (torch.tensor([1, 2]), torch.tensor([9, 2]), torch.tensor([9, 3])):
        outcomes = []
        for function in (program, compiled):
            random.seed(3)
            torch.manual_seed(3)
            with contextlib.suppress(Exception):
                function(X, index)
            outcomes.append(random.getstate())
        assert outcomes[0] == outcomes[1]


def test_wrong_bounds_raise() -> None:
    assert_same(lambda x: x * random.randint(5, 1), X)


def test_subclass_draws_in_its_own_way() -> None:
    class Fixed(random.Random):
        def random(self) -> float:
            return 0.25

    assert_same(lambda x, source: x * source.uniform(0, 1), X, Fixed(3))


def test_checkpoint_draws_again_in_backward() -> None:
    def train(x: Tensor) -> Tensor | None:
        checkpoint(lambda t: (t * random.random()).sin(), x, use_reentrant=False).sum().backward()
        return x.grad

    assert_same(train, X.clone().requires_grad_(), repeat=1)


def test_training() -> None:
    def train(x: Tensor) -> Tensor | None:
        (x * random.random()).sin().sum().backward()
        return x.grad

    for backend in ("eager", "codegen"):
        assert_same(train, X.clone().requires_grad_(), graphs=1, breaks=1, backend=backend)


def test_drawing_while_a_method_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(x: Tensor) -> Any:
        return x + 1, random.Random(1).uniform(0, 1)

    numbers = iter([0.25, 0.5])
    monkeypatch.setattr(random.Random, "random", lambda self: next(numbers))
    compiled = dynajit.compile(draw, backend="eager")
    assert [compiled(X)[1], compiled(X)[1]] == [0.25, 0.5]


def test_choice_of_what_is_no_number() -> None:
    def draw(x: Tensor) -> Any:
        return x + 1, random.choice("abc"), random.choice(["a", 1]), random.choice([])

    def some(x: Tensor) -> Any:
        return x + 1, random.choice("abc"), random.choice(["a", 1])

    assert_same(some, X, repeat=3)
    assert_same(draw, X)
