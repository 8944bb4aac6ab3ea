"""A plan whose kernels run on an NVIDIA GPU, made callable.

In:  a `codegen.plan.Plan` for a GPU.
Out: `build(plan)`: a function from the graph's inputs to the tuple of its outputs. Kernels are compiled in parallel or
     found in the artifact store, and loaded through the driver. `TritonError` where one can't be compiled or loaded,
     `unsupported(device)` where the device can't run them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from dynajit import _C
from dynajit.codegen.plan import GpuKernel, Plan
from dynajit.runtime import native, triton_compiler
from dynajit.runtime.triton_compiler import TritonError

OLDEST_CAPABILITY = 75


@functools.cache
def capability(device: torch.device) -> int:
    """The device's compute capability: 90 for 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


def unsupported(device: torch.device) -> str:
    """Why no kernel can be generated for that device, "" if one can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"no code is generated for tensors on {device.type}"
    try:
        found = capability(device)
    except RuntimeError as error:  # there is none that this process sees
        return str(error)
    if found < OLDEST_CAPABILITY:
        oldest = f"{OLDEST_CAPABILITY // 10}.{OLDEST_CAPABILITY % 10}"
        return f"{torch.cuda.get_device_name(device)} has compute capability {found / 10}; kernels need {oldest}"
    try:
        triton_compiler.version()
    except TritonError as error:
        return str(error)
    return ""


def build(plan: Plan) -> Callable[..., tuple[Any, ...]]:
    """Compile and load the plan's kernels and make its executor. Raises TritonError.

    The executor has attributes `source` and `plan`.
    """
    call: Any = native.build(plan, load_kernels(plan))
    call.source, call.plan = plan.source, plan
    return call


def load_kernels(plan: Plan) -> dict[str, Any]:
    """The plan's kernels, loaded for its device, by name."""
    kernels = [kernel for kernel in plan.kernels if isinstance(kernel, GpuKernel)]
    level = capability(plan.device) if kernels else 0
    loaded = {}
    with torch.cuda.device(plan.device):
        torch.cuda.current_stream()  # there is a context from here on
        for kernel, binary in zip(kernels, triton_compiler.compile_kernels(kernels, level), strict=True):
            try:
                loaded[kernel.name] = _C.GpuKernel(
                    binary.cubin,
                    binary.symbol,
                    binary.shared,
                    binary.threads,
                    functools.partial(_unaligned, kernel, level),
                    binary.scratch,
                    triton_compiler.starts_early(kernel, level),
                )
            except RuntimeError as error:  # the driver's; what eager can't do either it will say itself
                raise TritonError(f"a kernel can't be loaded: {error}") from error
    return loaded


def _unaligned(kernel: GpuKernel, level: int) -> tuple[bytes, str, int, int]:
    """The kernel for addresses that are no multiples of 16."""
    every = frozenset(range(len(kernel.pointers)))
    (binary,) = triton_compiler.compile_kernels([kernel], level, [every])
    return binary.cubin, binary.symbol, binary.shared, binary.threads
