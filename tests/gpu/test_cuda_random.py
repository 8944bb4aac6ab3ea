"""Random numbers on an NVIDIA GPU: eager's, and the generator is left as eager leaves it, recorded graphs or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit
from dynajit.loopir import philox

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
dropout = torch.nn.functional.dropout
DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "rand_like": lambda x: x * 2 + torch.rand_like(x) * 3,
    "randn_like": lambda x: torch.relu(x + torch.randn_like(x)),
    "rand": lambda x: torch.rand(x.shape, device=x.device) + x,
    "randint": lambda x: x + torch.randint(0, 10, x.shape, device=x.device),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)) * x,
    "in place": lambda x: (x * 2).bernoulli_(0.3) + (x + 1).uniform_(-1, 1) + torch.empty_like(x).normal_(),
    "dropout": lambda x: dropout(x * 2, 0.3, True) + 1,
    "dropout in a row's kernel": lambda x: torch.softmax(dropout(x.exp(), 0.3, True) + x, 1),
    "dropout of two bytes": lambda x: torch.softmax(dropout(x.bfloat16().exp(), 0.1, True) + 1, 1),
    "dropout, then torch's own, then dropout": lambda x: dropout(torch.randn_like(x) + dropout(x.exp(), 0.5, True)),
    "two in order": lambda x: (dropout(x, 0.5, True) + torch.rand_like(x), torch.randn_like(x) * x),
    "nothing reads it": lambda x: (torch.rand(7, device=x.device), x + torch.rand_like(x))[1],
    "turned": lambda x: dropout(x.t(), 0.2, True) * 2 + torch.rand_like(x.t()),
    "half": lambda x: dropout(x.half() + 1, 0.1, True) + torch.randn_like(x.half()),
}


def outcomes(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> list[Any]:
    torch.cuda.manual_seed(5)
    return [(call(x), torch.cuda.get_rng_state().tolist()) for _ in range(4)]


# The largest are more than the GPU's threads take at once: they draw more than once each.
@pytest.mark.parametrize("shape", [(30, 7), (400, 500), (1000, 1004), (5000, 1004)])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", DRAWS)
def test_numbers_and_generator_are_eagers(name: str, mode: str | None, shape: tuple[int, int]) -> None:
    x = torch.linspace(-1, 1, shape[0] * shape[1], device="cuda").reshape(shape)
    expected = outcomes(DRAWS[name], x)
    actual = outcomes(dynajit.compile(DRAWS[name], mode=mode, fullgraph=True), x)
    for (ours, our_state), (theirs, their_state) in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert our_state == their_state


def test_kernels_draw() -> None:
    """What is known of torch's dropout holds for this torch, so that it is part of the kernel around it."""
    assert philox.dropout_vector(torch.device("cuda", 0), 4) == 4 and philox.dropout_vector(torch.device("cuda", 0), 2)
    explanation = dynajit.explain(lambda x: dropout(x.exp(), 0.5, True) + x)(torch.ones(64, 64, device="cuda"))
    (code,) = explanation.graph_records[0].code
    assert not code.extern and len(code.kernels) == 1


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_dropout_in_training(mode: str | None) -> None:
    weight = torch.linspace(-1, 1, 64 * 64, device="cuda").reshape(64, 64).requires_grad_()

    def step(x: torch.Tensor) -> torch.Tensor:
        return dropout(torch.nn.functional.layer_norm(x @ weight, (64,)), 0.4, True).square().sum()

    def trained(call: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
        def once(x: torch.Tensor) -> Any:
            weight.grad = None
            call(x).backward()
            return weight.grad

        return outcomes(once, torch.linspace(-2, 3, 32 * 64, device="cuda").reshape(32, 64))

    expected, actual = trained(step), trained(dynajit.compile(step, mode=mode, fullgraph=True))
    for (ours, our_state), (theirs, their_state) in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        assert our_state == their_state
