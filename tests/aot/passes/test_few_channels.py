"""Gradients of convolutions of few channels: the same numbers and strides, in less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from memory_in_use import most_in_use
from torch.nn import functional as F

import dynajit


@pytest.mark.parametrize("weight_trains", [True, False])
@pytest.mark.parametrize(("given", "made"), [(1, 1), (2, 1), (3, 3), (4, 4)])
def test_less_memory(given: int, made: int, weight_trains: bool) -> None:
    x = torch.randn(4, given, 96, 96, requires_grad=True)
    w, b = torch.randn(made, given, 3, 3, requires_grad=weight_trains), torch.randn(made, requires_grad=True)
    inputs = [each for each in (x, w, b) if each.requires_grad]

    def gradients(convolve: Any) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(convolve(x.view_as(x), w, b).square().sum(), inputs)

    def fn(x: Any, w: Any, b: Any) -> Any:
        return F.conv2d(x.sin(), w, b, padding=1).tanh()

    compiled = dynajit.compile(fn, fullgraph=True)
    found, expected = gradients(compiled), gradients(fn)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert [each.stride() for each in found] == [each.stride() for each in expected]
    assert 3 * most_in_use(lambda: gradients(compiled)) < 2 * most_in_use(lambda: gradients(fn))


@pytest.mark.parametrize("frozen", [True, False])
def test_one_channel_without_gradients(frozen: bool) -> None:
    x, convolution = torch.randn(4, 1, 96, 96), torch.nn.Conv2d(1, 1, 3).requires_grad_(False).eval()
    compiled = dynajit.compile(convolution, fullgraph=True, options={"freezing": frozen})
    expected, found = convolution(x), compiled(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.stride() == expected.stride()
    assert 4 * most_in_use(lambda: compiled(x)) < most_in_use(lambda: convolution(x))


@pytest.mark.parametrize(("given", "made", "groups"), [(1, 4, 1), (4, 8, 1), (4, 4, 4)])
def test_others_stay_as_they_are(given: int, made: int, groups: int) -> None:
    x = torch.randn(2, given, 9, 9, requires_grad=True)
    w = torch.randn(made, given // groups, 3, 3, requires_grad=True)

    def fn(x: Any, w: Any) -> Any:
        return F.conv2d(x, w, groups=groups)

    result = dynajit.compile(fn, fullgraph=True)(x, w)
    torch.testing.assert_close(result, fn(x, w))
    found = torch.autograd.grad(result.sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(fn(x, w).sum(), (x, w)), rtol=1e-5, atol=1e-5)
