"""Group norm of large groups in terms of sums over channels: the same values in either layout, and for far means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.aot.passes import group_norm

RULE = group_norm.RULES[torch.ops.aten.native_group_norm.default]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [10, 1 << 20])
def test_as_torch(layout: torch.memory_format, dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_norm, "ONE_PROGRAM", most)
    check(RULE, layout, dtype)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vector", [2, 8, 1 << 20])
def test_as_torch_on_cpus(
    layout: torch.memory_format, dtype: torch.dtype, vector: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_norm, "VECTOR", vector)
    check(group_norm.group_norm_of_channels, layout, dtype)


@pytest.mark.parametrize("shape", [(2, 32, 5, 7), (1, 16, 3, 4, 5), (2, 32, 1, 1), (3, 16, 6, 1)])
@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_compiled_with_channels_last(shape: tuple[int, ...], mean: float) -> None:
    """Forward and backward as close to float64 as eager mode, whatever the mean is; what is no number stays in its
    group."""
    torch.manual_seed(0)
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    norm = torch.nn.GroupNorm(4, shape[1])
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    x = (torch.randn(shape) + mean).contiguous(memory_format=last)
    along = torch.randn(shape).contiguous(memory_format=last)

    def run(norm: Any, x: torch.Tensor, along: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = x.detach().requires_grad_()
        found = norm(x)
        return found.detach(), *torch.autograd.grad(found, (x, norm.weight, norm.bias), along)

    wide = run(copy.deepcopy(norm).double(), x.double(), along.double())
    compiled = dynajit.compile(norm)
    for mine, eager, exact in zip(run(compiled, x, along), run(norm, x, along), wide, strict=True):
        worst = (eager.double() - exact).abs().max().item() + 1e-6 * (1 + exact.abs().max().item())
        assert (mine.double() - exact).abs().max().item() <= 3 * worst
        strides = [
            [step for step, size in zip(one.stride(), one.shape, strict=True) if size > 1] for one in (mine, eager)
        ]
        assert strides[0] == strides[1]
    with torch.no_grad():
        assert (compiled(x) - wide[0]).abs().max().item() <= 3 * ((norm(x) - wide[0]).abs().max().item() + 1e-6)
        x[0, 1].view(-1)[0] = float("nan")
        assert torch.equal(compiled(x).isnan(), norm(x).isnan())


def check(rule: Callable[..., Any], layout: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, 12, 5, 7) + 30).to(dtype).to(memory_format=layout)
    weight, bias = torch.randn(12, dtype=dtype), torch.randn(12, dtype=dtype)
    for given in ((weight, bias), (None, None)):
        found = rule(x, *given, 2, 12, 35, 3, 1e-5)
        wide = [None if part is None else part.double() for part in given]
        expected = F.group_norm(x.double(), 3, *wide)
        tolerance = 2e-5 if dtype is torch.float32 else 3e-2
        torch.testing.assert_close(found[0].double(), expected, rtol=tolerance, atol=tolerance)
        assert [part.shape for part in found[1:]] == [(2, 3), (2, 3)]
        assert {part.dtype for part in found} == {dtype}


def test_not_a_number_stays_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_norm, "ONE_PROGRAM", 10)
    x = torch.randn(1, 4, 3, 3)
    x[0, 1, 1, 1], x[0, 2, 0, 0] = float("nan"), float("inf")
    found = RULE(torch.cat([x, torch.randn(1, 4, 3, 3)]), None, None, 2, 4, 9, 2, 1e-5)[0]
    assert found[0].isnan().all()
    assert not found[1].isnan().any()
