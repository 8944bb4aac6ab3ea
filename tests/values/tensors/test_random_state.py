"""torch's own generators, seeded and put into states between draws: the same numbers, and the same state afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynajit
from dynajit.testing import CompileCounter, compare

X = torch.linspace(-1.0, 1.0, 8)


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        y = x + torch.randn(8)
    return y * torch.rand(8)


def forked_where_nothing_follows(x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        y = x + torch.randn(8)
    return y * 2


def fetched_and_put_back(x: Tensor) -> tuple[Tensor, ...]:
    state = torch.get_rng_state()
    first = torch.rand(8) * x
    torch.set_rng_state(state)
    return first, torch.rand(8), state


def of_the_default_generator(x: Tensor) -> Any:
    generator = torch.default_generator.manual_seed(3)
    state = generator.get_state()
    y = torch.rand(8, generator=generator) + x
    return y, generator.set_state(state) is torch.default_generator


def same_dropout(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    y = F.dropout(x, 0.5)
    torch.manual_seed(3)
    return y + F.dropout(x, 0.5)


# what is compiled, and into how many graphs
PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], int]] = {
    "before": (lambda x: (torch.manual_seed(7), x + torch.rand(8))[1], 1),
    "behind": (lambda x: (x + torch.rand(8), torch.manual_seed(7))[0], 1),
    "behind_and_on": (lambda x: (torch.rand(8), torch.manual_seed(7), x * 2)[::2], 1),
    "between": (lambda x: (torch.rand(8) + x, torch.manual_seed(7), torch.rand(8) * x)[::2], 2),
    "twice": (lambda x: (torch.rand(8), torch.manual_seed(7), torch.manual_seed(8), x * 2)[::3], 1),
    "read_behind": (lambda x: (torch.rand(8) + x, torch.manual_seed(7), torch.get_rng_state(), x * 2)[::3], 2),
    "generator": (lambda x: (torch.manual_seed(7) is torch.default_generator, torch.rand(8) + x), 1),
    "all": (lambda x: (torch.cuda.manual_seed_all(7), torch.rand(8) + x)[1], 1),
    "forked": (forked, 2),
    "forked_where_nothing_follows": (forked_where_nothing_follows, 1),
    "fetched_and_put_back": (fetched_and_put_back, 2),
    "of_the_default_generator": (of_the_default_generator, 1),
    "same_dropout": (same_dropout, 2),
    "by_chance": (lambda x: (torch.seed() > 0, torch.manual_seed(1), x * 2)[::2], 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_states_between_draws(name: str, backend: str) -> None:
    program, graphs = PROGRAMS[name]
    counter = CompileCounter()
    dynajit.compile(program, backend=counter)(X.clone())
    assert counter.frame_count == graphs
    dynajit.reset()
    compiled = dynajit.compile(program, backend=backend)
    for seed in (1, 2):
        torch.manual_seed(seed)
        wanted, after = program(X.clone()), torch.get_rng_state()
        torch.manual_seed(seed)
        compare(compiled(X.clone()), wanted, exact=False)
        assert torch.equal(torch.get_rng_state(), after)


def test_seeds_vary() -> None:
    def f(x: Tensor, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return x + torch.rand(8)

    counter = CompileCounter()
    compiled = dynajit.compile(f, backend=counter)
    for seed in range(5):
        compare(compiled(X, seed), f(X, seed))
    assert counter.frame_count == 2


def test_a_state_that_is_none() -> None:
    def f(x: Tensor, state: Tensor) -> Tensor:
        y = x.add_(1)
        torch.set_rng_state(state)
        return y

    for call in (f, dynajit.compile(f, backend="eager")):
        x = torch.zeros(2)
        with pytest.raises(RuntimeError, match="found the input RNG state size to be 3"):
            call(x, torch.zeros(3, dtype=torch.uint8))
        assert x.tolist() == [1, 1]
