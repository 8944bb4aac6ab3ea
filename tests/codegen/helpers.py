"""Running a function of tensors through code generation, and comparing with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dynajit.codegen.generate import generate
from dynajit.codegen.plan import KernelStep, Plan
from dynajit.runtime import cpu


def trace(function: Callable[..., Any], *args: Any, sizes: str = "fake") -> torch.fx.GraphModule:
    """The function's functional ATen graph; its output is a tuple. `sizes`: "symbolic" if they vary."""

    def flat(*inputs: Any) -> tuple[Any, ...]:
        result = torch.func.functionalize(function)(*inputs)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    with torch.no_grad():
        return make_fx(flat, tracing_mode=sizes)(*args)


def plan_of(function: Callable[..., Any], *args: Any) -> Plan:
    """The plan of the function for these inputs."""
    return generate(trace(function, *args), args, "test")


def kernel_calls(plan: Plan) -> int:
    """How many kernels one call runs."""
    return sum(isinstance(step, KernelStep) for step in plan.steps)


def check(
    function: Callable[..., Any], *args: Any, kernels: int | None = None, externs: int | None = None, **tolerances: Any
) -> Plan:
    """Compare with eager: values, dtypes, strides; optionally the number of kernel and extern calls."""
    expected = function(*args)
    expected = tuple(expected) if isinstance(expected, (tuple, list)) else (expected,)
    plan = plan_of(function, *args)
    actual = cpu.build(plan)(*args)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, **tolerances)
        assert a.stride() == e.stride() or 0 in e.shape or 1 in e.shape, (a.stride(), e.stride())
    if kernels is not None:
        assert kernel_calls(plan) == kernels, f"{plan}\n{plan.source}"
    if externs is not None:
        found = [step for step in plan.steps if type(step).__name__ == "ExternStep"]
        assert len(found) == externs, str(plan)
    return plan
