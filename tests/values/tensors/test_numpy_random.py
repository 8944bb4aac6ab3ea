"""What NumPy's generators draw: the numbers and the states of eager, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import dynajit
from dynajit.outcomes import compare
from dynajit.testing import CompileCounter

SHARED = np.random.default_rng(1)
OLD = np.random.RandomState(1)


def check(fn: Callable[[torch.Tensor], Any], graphs: int | None = 1) -> None:
    """Three calls give what eager gives, and leave all generators as eager leaves them."""
    outcomes, counter = [], CompileCounter()
    for run in (fn, dynajit.compile(fn, backend=counter, fullgraph=graphs == 1)):
        np.random.seed(5)
        SHARED.bit_generator.state = np.random.default_rng(1).bit_generator.state
        OLD.seed(1)
        found = [run(torch.ones(4)) for _ in range(3)]
        states = (np.random.get_state()[1:], SHARED.bit_generator.state, OLD.get_state()[1:])
        outcomes.append((found, repr(states)))
    compare(outcomes[1], outcomes[0])
    if graphs is not None:
        assert counter.frame_count == graphs


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "functions": lambda x: x * torch.from_numpy(np.random.randn(4)) * np.random.rand(),
    "results": lambda x: (np.random.normal(0, 2, (3,)), np.random.permutation(4), np.random.choice(5, 2), x + 1),
    "integers": lambda x: (torch.from_numpy(np.random.randint(3, size=(4,))) + x, np.random.randint(7) * x),
    "generator": lambda x: x * torch.from_numpy(SHARED.standard_normal(4)) + float(SHARED.normal() > 9) + x.sum(),
    "state": lambda x: (x * torch.from_numpy(OLD.uniform(size=4)), OLD.beta(1.0, 2.0, size=(2, 2)) * 2),
    "made inside": lambda x: x * torch.from_numpy(np.random.default_rng(3).normal(size=4)) + 1,
    "made inside, old": lambda x: x * torch.from_numpy(np.random.RandomState(3).randn(4)) + 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_draws_are_in_the_graph(name: str) -> None:
    check(PROGRAMS[name], graphs=None if name == "generator" else 1)


def test_seeds_and_writes_come_in_order() -> None:
    def fn(x: torch.Tensor) -> Any:
        before = np.random.randn(2)
        np.random.seed(3)
        drawn = np.random.randn(4)
        drawn[0] = 7
        return before * 2, drawn * 2, x * np.random.rand()

    check(fn)


def test_a_break_between_draws() -> None:
    def fn(x: torch.Tensor) -> Any:
        first = torch.from_numpy(np.random.randn(4)) + x
        dynajit.graph_break()
        return first, torch.from_numpy(np.random.randn(4)) * first

    check(fn, graphs=2)


def test_what_raises_and_what_is_not_known() -> None:
    def wrong(x: torch.Tensor) -> Any:
        try:
            return np.random.normal(0, -1, 3)
        except ValueError as error:
            return x + 1, str(error)

    check(wrong, graphs=None)
    check(lambda x: (np.random.choice([0.5, 0.25], 3), np.random.normal(x.numpy()), x * 2), graphs=None)
    check(lambda x: x * 2 if np.random.randint(2) else x * 3, graphs=None)


def test_a_graph_that_raises_draws_once() -> None:
    def fn(x: torch.Tensor) -> Any:
        drawn = np.random.randn(3)
        try:
            return torch.linalg.inv(x.new_zeros(2, 2)), drawn
        except RuntimeError:
            return x, drawn

    check(fn, graphs=None)
