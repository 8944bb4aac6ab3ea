"""Dual tensors of forward-mode differentiation as arguments: tangents as eager's, and variants of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import dynajit


def product(x: Tensor, w: Tensor) -> Tensor:
    return (x * w).sin()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("grad", [False, True])
def test_tangents(backend: str, grad: bool) -> None:
    compiled = dynajit.compile(product, backend=backend)
    x, w = torch.rand(3), torch.rand(3, requires_grad=grad)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w), product(x, w))
        seen: list[Any] = []
        for run in (product, compiled):
            with forward_ad.dual_level():
                result = run(forward_ad.make_dual(x, torch.ones(3)), w)
                seen.append(forward_ad.unpack_dual(result))
        torch.testing.assert_close(seen[0].primal, seen[1].primal)
        torch.testing.assert_close(seen[0].tangent, seen[1].tangent)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("grad", [False, True])
def test_a_level_inside(backend: str, grad: bool) -> None:
    def tangents(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            result = forward_ad.unpack_dual(dual.sin() * dual)
        return result.primal * 2, result.tangent + x

    compiled = dynajit.compile(tangents, backend=backend, fullgraph=True)
    for _ in range(2):
        seen = []
        for run in (tangents, compiled):
            x = torch.linspace(-1, 1, 3).requires_grad_(grad)
            results = run(x)
            if grad:
                sum(results).sum().backward()  # type: ignore[union-attr]
            seen.append([*results, x.grad])
        torch.testing.assert_close(*seen)


def test_a_parameter_that_is_dual() -> None:
    net = torch.nn.Linear(3, 3)
    compiled, x = dynajit.compile(net), torch.rand(2, 3)
    weight = net.weight
    torch.testing.assert_close(compiled(x), net(x))
    with forward_ad.dual_level():
        del net.weight
        net.weight = forward_ad.make_dual(weight.detach(), torch.ones(3, 3))
        tangents = [forward_ad.unpack_dual(run(x)).tangent for run in (net, compiled)]
    assert tangents[0] is not None
    torch.testing.assert_close(*tangents)
