"""What is generated around a GPU's fused attention: masks and what puts NaN where eager has it, under Triton's
interpreter and through its compiler for sm_90. The fused call itself is the CPU's here."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from torch.fx.experimental.proxy_tensor import make_fx
from triton_harness import GPU, compile_all, moved, run

from dynajit.aot.inference import attention
from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor]:
    weights = torch.softmax((q @ k.transpose(-2, -1) * 0.5).masked_fill(~keep, -math.inf), -1)
    return ((weights @ v).transpose(1, 2).reshape(2, 6, 32),)


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    return (torch.softmax((q @ k.transpose(-2, -1)).masked_fill(hidden, -math.inf), -1) @ v,)


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor]:
    q, k, v = (x.reshape(2, 6, 4, 8).transpose(1, 2) for x in (q, k, v))
    return ((torch.softmax(q @ k.transpose(-2, -1) / 3, -1) @ v).transpose(1, 2).reshape(2, 6, 32),)


KEEP = torch.rand(6, 6) < 0.5
KEEP[2] = False
CASES: dict[str, Any] = {
    # function, arguments, kernels
    "masked": (masked, (*(torch.randn(2, 4, 6, 8) for _ in range(3)), KEEP), 3),
    "causal": (causal, tuple(torch.randn(2, 4, 6, 8) for _ in range(3)), 2),
    "plain": (plain, tuple(torch.randn(2, 6, 32) for _ in range(3)), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_around_the_fused_call(name: str) -> None:
    function, args, most = CASES[name]
    with torch.no_grad():
        traced = make_fx(torch.func.functionalize(function), tracing_mode="fake")(*args)
    gm, fakes = moved(attention.recognise(traced, lambda one: True), args)
    plan = generate(gm, fakes, "test", GPU)
    calls = [step.target.__name__ for step in plan.steps if isinstance(step, ExternStep)]
    assert len(calls) == 1
    assert "flash_attention" in calls[0]
    assert len(plan.kernels) <= most
    torch.testing.assert_close(run(plan, *args), function(*args), equal_nan=True)
    compile_all(plan)
