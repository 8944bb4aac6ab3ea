"""Which memory is used again in plans for GPUs."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import plan_of

from dynajit.codegen.plan import AllocStep


def reused(plan: object) -> dict[str, str | None]:
    return {step.buffer: step.reuse for step in plan.steps if isinstance(step, AllocStep)}  # type: ignore[attr-defined]


def test_outputs_do_not_lie_where_calls_have_read() -> None:
    """A recorded graph would copy them: a call hides the addresses it was given."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x * 2) @ w
        return torch.softmax(torch.relu(y + 1) @ w, -1)

    plan = plan_of(function, torch.randn(512, 512), torch.randn(512, 512))
    (output,) = plan.outputs
    assert reused(plan)[output.name] is None
    assert any(reused(plan).values()) or len(reused(plan)) < 3


def test_others_do() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.relu(x * 2) @ w
        return x.sum()

    plan = plan_of(function, torch.randn(512, 512), torch.randn(512, 512))
    assert any(reused(plan).values())
