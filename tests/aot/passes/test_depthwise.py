"""Gradients of depthwise weights: the same numbers from contiguous copies, and only where that is worth it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynajit


def gradients(fn, *args):
    inputs = [value.detach().clone().requires_grad_(value.requires_grad) for value in args]
    fn(*inputs).square().sum().backward()
    return [value.grad for value in inputs]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("input_trains", [True, False])
@pytest.mark.parametrize(("size", "split"), [(7, True), (15, False)])
def test_weights_of_large_kernels_on_small_planes(size, split, input_trains, bias):
    def fn(x, w, b):
        return F.conv2d(x, w, b if bias else None, padding=3, groups=20) * 2

    x = torch.randn(2, 20, size, size).contiguous(memory_format=torch.channels_last).requires_grad_(input_trains)
    args = x, torch.randn(20, 1, 7, 7, requires_grad=True), torch.randn(20, requires_grad=True)
    compiled = dynajit.compile(fn, fullgraph=True)
    torch.testing.assert_close(gradients(compiled, *args), gradients(fn, *args), rtol=1e-4, atol=1e-3)
    own = [value.detach().clone().requires_grad_(value.requires_grad) for value in args]
    result = compiled(*own).sum()
    with torch.profiler.profile() as profile:
        result.backward()
    calls = [event for event in profile.events() if event.name == "aten::convolution_backward"]
    assert len(calls) == 1 + (split and input_trains)
