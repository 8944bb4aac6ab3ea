"""What is generated around a GPU's library calls so that they get layouts for which they have fast kernels: under
Triton's interpreter and through its compiler for sm_90. The calls themselves are the CPU's here."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all, plan_of, trace

from dynajit.aot.passes.layouts import with_layouts
from dynajit.codegen.plan import BufferRef, ExternStep, Plan
from dynajit.loopir import gpu_calls, lower_matmul

F = torch.nn.functional


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pays only for large tensors is done to small ones."""
    for name in ("SHORT", "FEW", "MANY_ROWS"):
        monkeypatch.setattr(gpu_calls, name, 8)
    monkeypatch.setattr(lower_matmul, "SMALL", 0)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def strides(plan: Plan) -> list[list[tuple[int, ...]]]:
    """Of the tensors that each call gets."""
    calls = [step for step in plan.steps if isinstance(step, ExternStep)]
    return [[plan.buffers[arg.name].stride for arg in step.args if isinstance(arg, BufferRef)] for step in calls]


@pytest.mark.parametrize("bias", [False, True])
def test_products_with_odd_columns(bias: bool) -> None:
    x, w, b = randn(24, 16), randn(18, 16), randn(18)
    args = (x, w, b) if bias else (x, w)
    plan = check(lambda x, w, *b: F.linear(x, w, *b), *args, externs=1, rtol=2e-2, atol=1e-1)
    assert strides(plan)[0][-2:] == [(16, 1), (1, 16)]
    compile_all(plan)


def test_one_padded_copy_serves_both_products_of_a_gradient() -> None:
    """What stands in three dimensions and is seen in two as well."""

    def gradients(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = dy.reshape(-1, 18)
        return rows @ w, rows.t() @ x

    plan = plan_of(gradients, randn(2, 16, 18), randn(32, 24), randn(18, 24))
    assert strides(plan) == [[(24, 1), (24, 1)], [(1, 24), (24, 1)]]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_images_cut_in_patches(bias: bool, layout: torch.memory_format) -> None:
    # what is left over of the last row is not read
    x, w, b = randn(2, 3, 13, 12).to(memory_format=layout), randn(16, 3, 4, 4), randn(16)
    args = (x, w, b if bias else None)

    def embed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return F.conv2d(x, w, b, stride=4).flatten(2).transpose(1, 2) * 2

    plan = check(embed, *(arg for arg in args if arg is not None), externs=1, rtol=2e-2, atol=1e-1)
    assert "mm" in str(next(step.target for step in plan.steps if isinstance(step, ExternStep)))
    compile_all(plan)


@pytest.mark.parametrize(("dtype", "channels", "turned"), [("float32", 3, 0), ("float32", 4, 2), ("bfloat16", 3, 2)])
def test_images_of_few_channels(dtype: str, channels: int, turned: int) -> None:
    """They are left as they come where all of a graph's convolutions are of such ones: cuDNN would use TF32."""

    def two(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.conv2d(x, w, stride=4) * F.conv2d(y, w, stride=4)).sum((2, 3))

    inputs = (torch.randn(2, channels, 16, 16), torch.randn(2, channels, 16, 16), torch.randn(16, channels, 4, 4))
    gm, _ = trace(two, *(x.to(getattr(torch, dtype)) for x in inputs))
    found = with_layouts(gm).graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    assert sum(node.args[0].meta["val"].stride(1) == 1 for node in found) == turned


def channels_last(size: int, kernel: int, groups: int, training: bool) -> list[bool]:
    """Of each of three convolutions, the second with groups: whether its images come with their channels last."""
    w1, w2, w3 = randn(16, 3, 1, 1), randn(16, 16 // groups, kernel, kernel), randn(16, 16, 1, 1)

    def three(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
        x = F.conv2d(F.conv2d(x, w1).relu(), w2, padding=kernel // 2, groups=groups)
        return F.conv2d(x.relu(), w3).sum((2, 3))

    gm, _ = trace(three, randn(2, 3, size, size), w1, w2, w3)
    found = with_layouts(gm, training).graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    return [node.args[0].meta["val"].stride(1) == 1 for node in found]


@pytest.mark.parametrize("training", [False, True])
def test_convolutions_that_have_their_channels_last(training: bool) -> None:
    """Those with groups have no fast kernel for it, but depthwise ones of images not smaller than their kernel have."""
    assert channels_last(8, 3, 1, training) == [True] * 3
    assert channels_last(8, 5, 16, training) == [True] * 3
    others = not training  # gradients would be turned round, too
    assert channels_last(4, 5, 16, training) == [others, False, others]
    assert channels_last(8, 3, 4, training) == [others, False, others]
