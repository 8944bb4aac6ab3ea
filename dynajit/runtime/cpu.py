"""A plan whose kernels run on CPUs, made callable.

In:  a `codegen.plan.Plan` for CPUs.
Out: `build(plan)`: a function from the graph's inputs to the tuple of its outputs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from dynajit.codegen.plan import KernelInfo, Plan
from dynajit.runtime import load, memory, native, toolchain
from dynajit.runtime.without_collectives import NotWritten, WithoutCollectives

# As many arguments as csrc/plan/plan_executor.cpp calls a function with; more are given in an array.
MAX_ARGUMENTS = 96


def build(plan: Plan, library: load.Library | None = None) -> Callable[..., tuple[Any, ...]]:
    """Compile and load the plan's kernels, unless they are in `library`, and make its executor. Raises ToolchainError.

    The executor has attributes `source` and `plan`.
    """
    memory.configure()
    call: Any = native.build(plan, _load_kernels(plan, library))
    call.source, call.plan = plan.source, plan
    return call


def compile_kernels(plan: Plan) -> load.Library:
    """The library of the plan's kernels, compiled now or before. Raises ToolchainError."""
    return load.load_source(_text(plan), len(plan.kernels))


def machine_code(plan: Plan, chain: toolchain.Toolchain) -> bytes:
    """The plan's kernels as a shared object of that compiler's. Raises ToolchainError, OSError."""
    return load.compiled(_text(plan), chain).read_bytes()


def _text(plan: Plan) -> str:
    return plan.source + "".join(_of_array(kernel) for kernel in plan.kernels if _takes_array(kernel))


def _load_kernels(plan: Plan, library: load.Library | None) -> dict[str, native.CpuKernel]:
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel, KernelInfo)]
    if not kernels:
        return {}
    library = library or compile_kernels(plan)
    refuse = functools.partial(refused, plan.eager)
    return {
        kernel.name: native.CpuKernel(
            library.address(f"{kernel.name}_of_array" if _takes_array(kernel) else kernel.name),
            library,
            refuse if kernel.checked else None,
            kernel.sizes,
        )
        for kernel in kernels
    }


def _takes_array(kernel: object) -> TypeGuard[KernelInfo]:
    return isinstance(kernel, KernelInfo) and kernel.arity + len(kernel.sizes) > MAX_ARGUMENTS


def _of_array(kernel: KernelInfo) -> str:
    """A function that calls the kernel with what is in an array."""
    arguments = [f"(void *)given[{at}]" for at in range(kernel.arity)]
    arguments += [f"(long long)given[{kernel.arity + at}]" for at in range(len(kernel.sizes))]
    call = f"{kernel.name}({', '.join(arguments)})"
    body = f"return {call};" if kernel.checked else f"{call}; return 0;"
    return f"\nint {kernel.name}_of_array(char *const *given) {{ {body} }}\n"


def refused(eager: Callable[..., Any] | None, *inputs: Any) -> None:
    """A kernel met a value that the operator refuses: run the graph operator by operator for the operator's error."""
    with torch.no_grad(), contextlib.suppress(NotWritten), WithoutCollectives():
        if eager is not None:
            eager(*inputs)
    raise IndexError("index out of range")
