"""Kernels that share a launch: under Triton's interpreter and through its compiler for sm_90."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all

from dynajit.codegen.plan import AllocStep, Buffer, ExternStep, GpuKernel, KernelStep
from dynajit.codegen.triton.horizontal_fusion import LARGE, merged

F = torch.nn.functional
randn = torch.randn
CASES: dict[str, Any] = {
    # function, arguments, launches
    "other sizes": (lambda x, y: (x * 2, torch.relu(y) + 1), (randn(8000), randn(70, 80)), 1),
    "the same kernel twice": (lambda x, y: (torch.exp(x), torch.exp(y)), (randn(5000), randn(5000)), 1),
    "three": (
        lambda x, y, z: (x.sin(), y.double() * 2, z.sum(-1)),
        (randn(5000), randn(6000), randn(1200, 16)),
        1,
    ),
    "one needs the other": (lambda x: (x.t() * 2, torch.softmax(x, -1).sum(0)), (randn(60, 90),), 2),
    "products of one vector": (
        lambda x, a, b: (F.linear(x, a), F.linear(x, b)),
        (randn(1, 64), randn(30, 64), randn(50, 64)),
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_launches(name: str) -> None:
    function, args, launches = CASES[name]
    compile_all(check(function, *args, kernels=launches, externs=None, rtol=1e-4, atol=1e-4))


TEXT = "@triton.jit\ndef {0}(a0, a1):\n    pid = tl.program_id(0)\n    tl.store(a1 + pid, tl.load(a0 + pid))\n"


def launches(*arguments: tuple[str, str], between: Any = None, size: int = 8, inputs: str = "x") -> int:
    """How many launches kernels with these tensors, read and written, become."""
    names = {name for pair in arguments for name in pair}
    buffers = {name: Buffer(name, (size,), (1,), torch.float32, torch.device("cuda")) for name in names}
    kernels = {f"k{n}": GpuKernel(f"k{n}", TEXT.format(f"k{n}"), ("*fp32",) * 2, 4) for n in range(len(arguments))}
    steps: list[Any] = []
    for number, (read, written) in enumerate(arguments):
        if written not in inputs:
            steps.append(AllocStep(written))
        steps.append(KernelStep(f"k{number}", (read, written), (written,), size))
        if between is not None:
            steps.append(between)
    made, used = merged(steps, kernels, buffers)
    calls = [step for step in made if isinstance(step, KernelStep)]
    assert {call.kernel for call in calls} == {kernel.name for kernel in used}
    return len(calls)


def test_what_shares_a_launch() -> None:
    assert launches(("x", "a"), ("x", "b")) == 1
    assert launches(("x", "a"), ("a", "b")) == 2
    assert launches(("x", "a"), ("y", "x"), inputs="xy") == 2, "written after it was read"
    assert launches(("x", "a"), ("y", "a"), inputs="xy") == 2
    assert launches(("x", "a"), ("x", "b"), size=LARGE) == 2
    assert launches(*[("x", name) for name in "abcdefg"]) == 2, "at most six"
    call = ExternStep(torch.ops.aten.relu.default, (), {}, ())
    assert launches(("x", "a"), ("x", "b"), between=call) == 2


def test_results_that_may_share_memory_stay_in_order() -> None:
    call = ExternStep(torch.ops.aten.relu.default, (), {}, (), aliases=True)
    assert launches(("x", "a"), ("x", "b"), ("x", "c")) == 1
    steps = [call, KernelStep("k0", ("x", "y"), ("y",), 8), KernelStep("k0", ("v", "a"), ("a",), 8)]
    buffers = {name: Buffer(name, (8,), (1,), torch.float32, torch.device("cuda")) for name in "xyva"}
    kernel = GpuKernel("k0", TEXT.format("k0"), ("*fp32",) * 2, 4)
    made, _ = merged(steps, {"k0": kernel}, buffers)
    assert made == steps
