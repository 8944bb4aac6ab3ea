"""Which tensors share a kernel, what is stored, and in which order kernels and calls run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.loopir.lower_graph import lower
from dynajit.schedule.fuse import Call, Group, Schedule, fuse
from dynajit.schedule.kernel import Kernel
from dynajit.schedule.loops import build_kernel


def schedule(function: Callable[..., Any], *args: torch.Tensor) -> Schedule:
    def flat(*inputs: torch.Tensor) -> tuple[Any, ...]:
        result = function(*inputs)
        return result if isinstance(result, tuple) else (result,)

    return fuse(lower(make_fx(flat, tracing_mode="fake")(*args), "test"))


def kernels(function: Callable[..., Any], *args: torch.Tensor) -> list[Kernel]:
    plan = schedule(function, *args)
    return [build_kernel(unit, plan.inlined) for unit in plan.units if isinstance(unit, Group)]


x = torch.randn(8, 32)


def test_contiguous_pointwise_is_one_axis() -> None:
    (kernel,) = kernels(lambda x: torch.relu(x * 2 + 1) * x, x)
    assert kernel.outer == () and [axis.size for axis in kernel.inner] == [256]


def test_broadcast_keeps_two_axes() -> None:
    (kernel,) = kernels(lambda x: x * x[0] + 1, x)
    assert [axis.size for axis in (*kernel.outer, *kernel.inner)] == [8, 32]


def test_softmax_stores_only_its_result() -> None:
    (kernel,) = kernels(lambda x: x.softmax(1), x)
    assert len(kernel.writes) == 1 and len(kernel.sections) == 3 and kernel.mode == "row"
    assert [tensor.origin.op for tensor in kernel.scratch] == ["aten._softmax.default"]


def test_reduction_over_the_first_dimension_is_in_column_mode() -> None:
    (kernel,) = kernels(lambda x: x.sum(0), x)
    assert kernel.mode == "column"


def test_views_between_do_not_part_a_group() -> None:
    assert len(kernels(lambda x: F.gelu(F.layer_norm(x.view(2, 4, 32), (32,))).view(8, 32) + x, x)) == 1


def test_a_loop_through_an_extern_call_is_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a = (x + 1).exp()
        return a * (a @ a.t()).sum()

    plan = schedule(function, x)
    assert [type(unit) for unit in plan.units] == [Group, Call, Group, Group]


def test_dead_code_is_dropped() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        (x @ x.t()).exp()
        return x + 1

    assert [type(unit) for unit in schedule(function, x).units] == [Group]


def test_transposed_consumer_of_a_stored_tensor_has_its_own_kernel() -> None:
    y = torch.randn(8, 8)

    def function(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = y.exp()
        return a, a.t() + a

    assert len(kernels(function, y)) == 2


def test_sums_of_calls_are_made_a_few_at_a_time() -> None:
    """All but the last, which what follows joins."""
    steps, w = torch.randn(12, 64, 64), torch.randn(64, 64)

    def normed(steps: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = sum(step @ w for step in steps)
        return total / total.square().mean(1, keepdim=True).sqrt()

    assert [len(kernels(normed, steps[:count], w)) for count in (3, 4, 12)] == [1, 1, 3]
