"""Parts of inputs that kernels write where indices say: under Triton's interpreter and through its compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import compile_all, plan_of, run

from dynajit.codegen.plan import ExternStep, KernelStep, Plan, TouchStep

randn = torch.randn


def grown(dim: int) -> Any:
    def function(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(dim, at, x * 2)
        return cache.sum(0)

    return function


def two(one: torch.Tensor, other: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    one.index_copy_(0, at, x)
    other.index_copy_(0, at, x.flip(0))
    return one + other


def assigned(cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    cache[:, at] = x.sigmoid()
    return cache * 2


def added(total: torch.Tensor, at: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.index_add_(0, at, x.exp())
    return total * 2


AT = torch.tensor([5, 0, 3])
CASES: dict[str, Any] = {
    # function, arguments, kernels (at most), written tensors
    "rows": (grown(0), (randn(7, 4), AT, randn(3, 4)), 2, 1),
    "in the middle": (grown(1), (randn(2, 7, 5), AT, randn(2, 3, 5)), 2, 1),
    "last": (grown(-1), (randn(6, 7), AT, randn(6, 3)), 2, 1),
    "another layout": (grown(0), (randn(4, 7).t(), AT, randn(4, 3).t()), 2, 1),
    "half": (grown(0), (randn(700, 4).half(), AT * 100, randn(3, 4).half()), 2, 1),
    "two in one launch": (two, (randn(7, 4), randn(7, 4), AT, randn(3, 4)), 2, 2),
    "by an assignment": (assigned, (randn(2, 7, 5), AT, randn(2, 3, 5)), 2, 1),
    "added": (added, (randn(7, 4), torch.tensor([5, 0, 5]), randn(3, 4)), 2, 1),
}


def kinds(plan: Plan, kind: type) -> int:
    return sum(isinstance(step, kind) for step in plan.steps)


@pytest.mark.parametrize("name", CASES)
def test_written(name: str) -> None:
    function, args, kernels, written = CASES[name]
    ours, theirs = ([arg.clone() for arg in args] for _ in range(2))
    plan = plan_of(function, *args)
    assert kinds(plan, ExternStep) == 0 and kinds(plan, KernelStep) <= kernels and kinds(plan, TouchStep) == written
    tolerance = 1e-2 if args[0].dtype is torch.float16 else 1e-5
    torch.testing.assert_close(run(plan, *ours)[0], function(*theirs), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours, theirs)
    compile_all(plan)


@pytest.mark.parametrize("place", (-1, 7))
def test_places_outside_are_refused(place: int) -> None:
    plan = plan_of(grown(0), *CASES["rows"][1])
    with pytest.raises(Exception, match="refused"):
        run(plan, randn(7, 4), torch.tensor([5, place, 3]), randn(3, 4))


def test_left_to_torch() -> None:
    args = CASES["rows"][1]
    torch.use_deterministic_algorithms(True)
    try:
        assert kinds(plan_of(grown(0), *args), ExternStep) == 1
    finally:
        torch.use_deterministic_algorithms(False)
