"""A plan whose kernels run on CPUs, made callable.

In:  a `codegen.plan.Plan` for CPUs.
Out: `build(plan)`: a function from the graph's inputs to the tuple of its outputs. It runs natively; a plan of symbolic
     sizes, or with kernels of very many arguments, runs as a Python function (`executor.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dynajit.codegen.plan import KernelInfo, KernelStep, Plan, SizeStep
from dynajit.loopir.size import is_symbolic
from dynajit.runtime import executor, load, memory, native

# As many arguments as csrc/plan_executor.cpp can call a function with.
MOST_ARGUMENTS = 96


def build(plan: Plan) -> Callable[..., tuple[Any, ...]]:
    """Compile and load the plan's kernels and make its executor. Raises ToolchainError.

    The executor has attributes `source` and `plan`.
    """
    memory.configure()
    if not _runs_natively(plan):
        return executor.build(plan)
    call: Any = native.build(plan, _load_kernels(plan))
    call.source, call.plan = plan.source, plan
    return call


def _runs_natively(plan: Plan) -> bool:
    if any(isinstance(step, SizeStep) for step in plan.steps):
        return False
    if any(is_symbolic((*buffer.shape, *buffer.stride)) for buffer in plan.buffers.values()):
        return False
    return all(len(step.args) <= MOST_ARGUMENTS for step in plan.steps if isinstance(step, KernelStep))


def _load_kernels(plan: Plan) -> dict[str, native.CpuKernel]:
    if not plan.kernels:
        return {}
    library = load.load_source(plan.source, len(plan.kernels))
    refused = functools.partial(executor.refused, plan.eager)
    return {
        kernel.name: native.CpuKernel(library.address(kernel.name), library, refused if kernel.checked else None)
        for kernel in plan.kernels
        if isinstance(kernel, KernelInfo)
    }
