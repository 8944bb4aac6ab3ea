"""`options={"numerics": "eager"}`: eager's bits in bfloat16 and float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.exc import ConfigError

CHAINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "arithmetic": lambda x, y: (x * y + x) * 0.3 - y / (x.abs() + 1),
    "activations": lambda x, y: F.gelu(x) * F.silu(y) + F.hardswish(x) - F.mish(y) + F.softplus(x),
    "functions": lambda x, y: torch.exp(-x.abs()) * torch.tanh(y) + torch.rsqrt(x.square() + 1) * torch.sin(y),
    "losses": lambda x, y: F.mse_loss(x, y, reduction="none") + F.huber_loss(x, y, reduction="none"),
    "interpolation": lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=0.7),
    "powers": lambda x, y: x**3 + x.abs() ** 0.3 + torch.pow(x.abs(), y),
    "selections": lambda x, y: torch.where(x > y, x, y * 2).clamp(-1.5, 1.7).relu() + torch.maximum(x, y),
    "wider": lambda x, y: (x.float() * 1.1 + y).to(x.dtype) + F.glu(torch.cat([x, y], -1)),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CHAINS)
def test_bits(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    function: Any = CHAINS[name]
    ours = [torch.randn(64, 100).mul(2).to(dtype).requires_grad_() for _ in range(2)]
    theirs = [value.detach().clone().requires_grad_() for value in ours]
    compiled = dynajit.compile(function, options={"numerics": "eager"}, fullgraph=True)
    actual, expected = compiled(*ours), function(*theirs)
    assert torch.equal(actual.nan_to_num(), expected.nan_to_num())
    gradient = torch.randn_like(expected)
    actual.backward(gradient)
    expected.backward(gradient)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.grad.nan_to_num(), b.grad.nan_to_num())


def test_other_values() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    with pytest.raises(ConfigError, match="numerics is one of 'fused', 'eager'"):
        dynajit.lookup_backend("codegen")(graph, [torch.ones(2)], options={"numerics": "exact"})
