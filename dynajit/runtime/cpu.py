"""A plan whose kernels run on CPUs, made callable.

In:  a `codegen.plan.Plan` for CPUs.
Out: `build(plan)`: a function from the graph's inputs to the tuple of its outputs. It runs natively; a plan with sizes
     or floats that only values tell, or with kernels of very many arguments, runs as a Python function (`executor.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dynajit.codegen.plan import KernelInfo, KernelStep, Plan
from dynajit.runtime import executor, load, memory, native, plan_sizes

# As many arguments as csrc/plan/plan_executor.cpp can call a function with.
MOST_ARGUMENTS = 96


def build(plan: Plan) -> Callable[..., tuple[Any, ...]]:
    """Compile and load the plan's kernels and make its executor. Raises ToolchainError.

    The executor has attributes `source` and `plan`.
    """
    memory.configure()
    if not _has_short_calls(plan):
        return executor.build(plan)
    try:
        call: Any = native.build(plan, _load_kernels(plan))
    except plan_sizes.NotNative:
        return executor.build(plan)
    call.source, call.plan = plan.source, plan
    return call


def _has_short_calls(plan: Plan) -> bool:
    sizes = {kernel.name: len(kernel.sizes) for kernel in plan.kernels if isinstance(kernel, KernelInfo)}
    calls = (step for step in plan.steps if isinstance(step, KernelStep))
    return all(len(step.args) + sizes.get(step.kernel, 0) <= MOST_ARGUMENTS for step in calls)


def _load_kernels(plan: Plan) -> dict[str, native.CpuKernel]:
    if not plan.kernels:
        return {}
    library = load.load_source(plan.source, len(plan.kernels))
    refused = functools.partial(executor.refused, plan.eager)
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel, KernelInfo)]
    return {
        kernel.name: native.CpuKernel(
            library.address(kernel.name), library, refused if kernel.checked else None, kernel.sizes
        )
        for kernel in kernels
    }
