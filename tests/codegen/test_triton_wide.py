"""Tensors of more than 2^31 elements: kernels for GPUs count in 64 bits, and compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import GPU, compile_all, moved

from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep, Plan

MANY = 1 << 31
F16, F32, I8, I64 = torch.float16, torch.float32, torch.int8, torch.int64
ROWS = ((70_000, 40_000), F16)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], torch.dtype]]]] = {
    "pointwise": (lambda x: torch.relu(x) + 1, [((MANY + 4096,), F16)]),
    "transposed": (lambda x: x.t().contiguous() + 1, [((70_000, 40_000), I8)]),
    "broadcast": (lambda x, y: x[:, None] + y, [((70_000,), F16), ((40_000,), F16)]),
    "steps": (lambda x: x[:, ::7] + 1, [ROWS]),
    "concatenation": (lambda x, y: torch.cat([x, y]) + 1, [((MANY - 500,), I8), ((1000,), I8)]),
    "rows": (lambda x: torch.softmax(x, -1), [ROWS]),
    "columns": (lambda x: x.sum(0), [ROWS]),
    "total": (lambda x: x.sum(), [((MANY + 4096,), F16)]),
    "gather": (lambda x, i: x[i] * 2, [ROWS, ((5000,), I64)]),
    "scatter": (lambda x, i, s: x.index_add(0, i, s) * 2, [((70_000, 40_000), F32), ((50,), I64), ((50, 40_000), F32)]),
}


def plan_of_sizes(function: Callable[..., Any], sizes: list[tuple[tuple[int, ...], torch.dtype]]) -> Plan:
    """The plan for inputs of these shapes and dtypes; no tensor is made."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=dtype) for shape, dtype in sizes]
        gm = make_fx(lambda *args: (torch.func.functionalize(function)(*args),))(*inputs)
    gm, fakes = moved(gm, inputs)
    return generate(gm, fakes, "test", GPU)


@pytest.mark.parametrize("name", CASES)
def test_kernels_count_in_64_bits(name: str) -> None:
    plan = plan_of_sizes(*CASES[name])
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    # places that values give are of 64 bits by themselves
    wide = "tl.int64" if name == "gather" else "tl.program_id(0).to(tl.int64)"
    assert wide in plan.kernels[0].text  # type: ignore[union-attr]
    compile_all(plan)


def test_smaller_ones_count_in_32_bits() -> None:
    function, ((shape, dtype),) = CASES["rows"]
    plan = plan_of_sizes(function, [((shape[0] // 4, shape[1]), dtype)])
    assert "int64" not in plan.source
