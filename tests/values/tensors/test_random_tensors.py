"""Tensors drawn from a generator of the program's: the same numbers, and the generator in the same state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

import dynajit
from dynajit.testing import CompileCounter

X = torch.linspace(-1.0, 1.0, 8)

PROGRAMS: dict[str, Callable[[Tensor, Generator], Any]] = {
    "rand": lambda x, g: torch.rand(8, generator=g) + x,
    "two": lambda x, g: torch.randn(8, generator=g) * x + torch.randn(3, 8, generator=g, dtype=torch.float64),
    "integers": lambda x, g: x[torch.randperm(8, generator=g)] + torch.randint(0, 5, (8,), generator=g),
    "normal": lambda x, g: torch.normal(1.0, 2.0, (8,), generator=g) + x,
    "filled": lambda x, g: (x.uniform_(0, 2, generator=g), x * 2),
    "filled_here": lambda x, g: (x.reshape(2, 4).t() * 1).normal_(generator=g) + 1,
    "written": lambda x, g: torch.rand(8, generator=g).mul_(2).add_(x),
    "own": lambda x, g: torch.rand(8, generator=Generator().manual_seed(5)) + x,
    "seeded": lambda x, g: (g.manual_seed(7), torch.rand(8, generator=g) + x)[1],
    "seeded_below_zero": lambda x, g: (g.manual_seed(-7), torch.rand(8, generator=g) + x)[1],
    "state": lambda x, g: (
        s := g.get_state(),
        torch.rand(8, generator=g) + x,
        g.set_state(s) is g,
        torch.rand(8, generator=g),
    ),
    "none": lambda x, g: torch.zeros(8).bernoulli_(1.0, generator=None) + x,
    "initialised": lambda x, g: torch.nn.init.normal_(torch.empty(8), generator=g) * x,
    "sizes": lambda x, g: torch.rand(x.shape[0], 2, generator=g) * x[:, None],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_draws_from_a_generator(name: str, backend: str, dynamic: bool | None) -> None:
    program = PROGRAMS[name]
    counter = CompileCounter()
    whole = not (dynamic and name == "filled")  # a tensor of varying size that is filled breaks
    dynajit.compile(program, backend=counter, dynamic=dynamic, fullgraph=whole)(X.clone(), Generator())
    assert counter.frame_count == 1
    dynajit.reset()
    compiled = dynajit.compile(program, backend=backend, dynamic=dynamic)
    for seed in (1, 2, 3):  # another generator each time
        ours, theirs = Generator().manual_seed(seed), Generator().manual_seed(seed)
        x, y = X.clone(), X.clone()
        torch.manual_seed(seed)
        wanted = program(x, theirs)
        after = torch.get_rng_state()
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(y, ours), wanted)
        torch.testing.assert_close(y, x)
        assert torch.equal(ours.get_state(), theirs.get_state()) and torch.equal(torch.get_rng_state(), after)


def test_weights_from_outside() -> None:
    def sample(weights: Tensor, generator: Generator) -> Tensor:
        return torch.multinomial(weights, 3, generator=generator) * 2

    report = dynajit.explain(sample)(torch.ones(5), Generator().manual_seed(1))
    assert (report.graph_count, report.graph_break_count) == (1, 0)
    wanted = sample(torch.ones(5), Generator().manual_seed(1))
    assert torch.equal(dynajit.compile(sample)(torch.ones(5), Generator().manual_seed(1)), wanted)


def test_graph_that_raises_draws_once_more() -> None:
    def index(x: Tensor, at: Tensor, generator: Generator) -> Tensor:
        return (torch.rand(8, generator=generator) + x)[at]

    compiled = dynajit.compile(index, backend="eager")
    ours, theirs = Generator().manual_seed(1), Generator().manual_seed(1)
    for at in (1, 100, 2):
        for function, generator in ((compiled, ours), (index, theirs)):
            try:
                function(X, torch.tensor([at]), generator)
            except IndexError as error:
                assert "out of bounds" in str(error)
        assert torch.equal(ours.get_state(), theirs.get_state())


def test_default_generator_after_another() -> None:
    def draw(x: Tensor, generator: Generator) -> Tensor:
        return torch.rand(8, generator=generator) + x

    compiled = dynajit.compile(draw, backend="eager")
    for generator in (Generator(), torch.default_generator, Generator()):
        state = generator.get_state()
        wanted = draw(X, generator)
        generator.set_state(state)
        assert torch.equal(compiled(X, generator), wanted)


def test_sizes_that_vary() -> None:
    def draw(x: Tensor, generator: torch.Generator) -> Any:
        noise = torch.randn(x.shape, generator=generator)
        more = torch.rand((x.shape[0] + 1, 2), generator=generator, dtype=torch.float64)
        places = torch.randint(0, x.shape[0], [x.shape[0], 3], generator=generator)
        return x + noise, more, places, torch.randn(*x.shape, generator=generator)

    for backend in ("eager", "codegen"):
        run = dynajit.compile(draw, backend=backend, fullgraph=True, dynamic=True)
        for rows in (4, 3, 7):
            x = torch.arange(rows * 2.0).reshape(rows, 2)
            ours, eagers = torch.Generator().manual_seed(rows), torch.Generator().manual_seed(rows)
            torch.testing.assert_close(run(x, ours), draw(x, eagers))
            assert torch.equal(ours.get_state(), eagers.get_state())


def test_a_size_that_varies_breaks_no_graph() -> None:
    def sample(x: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(3)
        for _ in range(2):
            x = x * 0.5 + torch.randn(x.shape, generator=generator)
        return x

    run = dynajit.compile(sample, backend="eager", fullgraph=True)
    for rows in (2, 3, 5):
        assert torch.equal(run(torch.ones(rows, 4)), sample(torch.ones(rows, 4)))


def test_seeds_of_an_own_generator_vary() -> None:
    def draw(x: Tensor, seed: int) -> Tensor:
        return x + torch.rand(8, generator=torch.Generator().manual_seed(seed))

    counter = CompileCounter()
    run = dynajit.compile(draw, backend=counter, fullgraph=True)
    for seed in (3, 5, -2, 8):
        assert torch.equal(run(X, seed), draw(X, seed))
    assert counter.frame_count == 2
