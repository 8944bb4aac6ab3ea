"""A training step of convolution, batch norm, ReLU and pooling by the kernels for GPUs, under Triton's interpreter."""

from __future__ import annotations

import copy
import types
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

import triton_harness

import dynajit
from dynajit.aot import decompositions
from dynajit.backends import codegen
from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep, Plan


def compiler(plans: list[Plan]) -> Any:
    """Compiles graphs as if they were a GPU's; their plans run interpreted."""

    def compile_fn(settings: Any, gm: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Any:
        plan = generate(*triton_harness.moved(gm, inputs), phase, triton_harness.GPU)
        plans.append(plan)
        return lambda *args: triton_harness.run(plan, *args)

    return compile_fn


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Those made as for a GPU from now on."""
    dynajit.reset()
    made: list[Plan] = []
    table = types.SimpleNamespace(for_codegen=lambda device, eager_rounding: decompositions.for_codegen("cuda"))
    monkeypatch.setattr(codegen, "_generate", compiler(made))
    monkeypatch.setattr(codegen, "decompositions", table)
    return made


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_an_element_far_from_all_others(layout: torch.memory_format, plans: list[Plan]) -> None:
    """The first, of which a sum of distances would lose the digits of all others."""
    model = nn.BatchNorm2d(3).to(memory_format=layout)  # type: ignore[call-overload]
    exact = copy.deepcopy(model).double()
    x = (torch.randn(4, 3, 40, 40) + 1000).to(memory_format=layout)
    x[0, :, 0, 0] = 0
    actual, expected = dynajit.compile(model, dynamic=False)(x), exact(x.double())
    torch.testing.assert_close(actual.double(), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.running_var.double(), exact.running_var, atol=0, rtol=1e-4)
    assert plans


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_step(layout: torch.memory_format, momentum: float | None, plans: list[Plan]) -> None:
    model: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=momentum), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    ).to(memory_format=layout)  # type: ignore[call-overload]
    eager = copy.deepcopy(model)
    compiled = dynajit.compile(model, dynamic=False)
    for _ in range(2):
        x = (torch.randn(2, 3, 24, 24) + 5).to(memory_format=layout)
        actual, expected = compiled(x), eager(x)
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        grad = torch.randn_like(expected)
        actual.backward(grad)
        expected.backward(grad)
    for (name, actual), expected in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(
            actual, expected, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )
    for actual, expected in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, expected.grad, atol=2e-3, rtol=1e-3)
    called = {str(step.target) for plan in plans for step in plan.steps if isinstance(step, ExternStep)}
    assert called == {"aten.convolution.default", "aten.convolution_backward.default"}
    for plan in plans[:2]:
        triton_harness.compile_all(plan)
