"""The functions of kernels for GPUs that are not CUDA's, under Triton's interpreter, against float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import compile_all, plan_of, run

F = torch.nn.functional
FUNCTIONS = {
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "gelu": F.gelu,
    "nested": lambda x: torch.exp(torch.cos(torch.sin(x))) + torch.sin(torch.cos(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.cat([torch.randn(512) * scale for scale in (1e-6, 1e-2, 1, 30, 3e3)])
    plan = plan_of(function, x)
    assert "dj_" in plan.source
    torch.testing.assert_close(run(plan, x)[0].double(), function(x.double()), rtol=5e-7, atol=3e-7)
    compile_all(plan)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_far_out(name: str) -> None:
    """Arguments beyond the range of the reduction, zeros, infinities, not a number."""
    function = FUNCTIONS[name]
    x = torch.tensor([0.0, -0.0, 1e9, -3e5, 5.0, -5.0, float("inf"), -float("inf"), float("nan")])
    plan = plan_of(function, x)
    torch.testing.assert_close(run(plan, x)[0].double(), function(x.double()), rtol=1e-6, atol=3e-7, equal_nan=True)


def test_float64_is_left_to_the_library() -> None:
    assert "dj_" not in plan_of(torch.sin, torch.randn(8, dtype=torch.float64)).source
