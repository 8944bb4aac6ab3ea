"""Attention of a few queries as a kernel of our own: under Triton's interpreter and through its compiler."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from torch._subclasses.fake_tensor import FakeTensorMode
from triton_harness import GPU, compile_all, run

from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep, KernelStep, Plan

aten = torch.ops.aten


def plan_of(op: Any, given: tuple[Any, ...], results: tuple[Any, ...], kept: int = 1, **named: Any) -> Plan:
    """The plan of a graph that calls the operator on tensors like these of a GPU and returns its first results."""
    graph = torch.fx.Graph()
    mode = FakeTensorMode()

    def fake(x: torch.Tensor) -> torch.Tensor:
        with mode:
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=GPU)

    nodes = []
    for at, x in enumerate(given):
        if isinstance(x, torch.Tensor):
            node = graph.placeholder(f"x{at}")
            node.meta["val"] = fake(x)
            nodes.append(node)
        else:
            nodes.append(x)
    call = graph.call_function(op, tuple(nodes), named)
    call.meta["val"] = tuple(fake(x) if isinstance(x, torch.Tensor) else x for x in results)
    taken = []
    for at in range(kept):
        item = graph.call_function(operator.getitem, (call, at))
        item.meta["val"] = call.meta["val"][at]
        taken.append(item)
    graph.output(tuple(taken))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    return generate(gm, [n.meta["val"] for n in graph.nodes if n.op == "placeholder"], "test", GPU)


def kinds(plan: Plan, kind: type) -> int:
    return sum(isinstance(step, kind) for step in plan.steps)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float16)  # Triton's interpreter has no products of bfloat16


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, scale: float
) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = q.double() @ k.transpose(-2, -1) * scale
    return (scores if bias is None else scores + bias.double()).softmax(-1) @ v


CASES = {
    # batch, heads, heads of keys, queries, keys, width, width of values, kernels
    "one word": (1, 8, 2, 1, 1024, 64, 64, 2),
    "several": (2, 4, 4, 3, 200, 32, 32, 2),
    "odd widths": (1, 3, 1, 2, 130, 40, 24, 2),
    "narrow": (1, 2, 2, 1, 256, 8, 4, 2),
    "many heads, one part": (25, 16, 8, 1, 128, 16, 16, 1),
}


@pytest.mark.parametrize("masked", (False, True))
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, masked: bool) -> None:
    batch, heads, shared, rows, keys, width, wide, kernels = CASES[name]
    # the heads of a token lie one after the other
    q = half(batch, rows, heads, width).transpose(1, 2)
    k, v = half(batch, shared, keys, width), half(batch, shared, keys, wide)
    bias = torch.where(torch.rand(batch, 1, rows, keys) < 0.7, 0.0, -torch.inf).half() if masked else None
    if bias is not None:
        bias[..., 5] = 0.5
        bias = bias[0, 0] if batch == 1 else bias  # broadcast
    out = torch.empty(batch, rows, heads, wide, dtype=torch.float16).transpose(1, 2)
    results = (out, torch.empty(batch, heads, rows), None, None, rows, keys, *(torch.empty((), dtype=torch.int64),) * 2)
    given = (q, k, v, bias, False, 0.0, False)
    plan = plan_of(aten._scaled_dot_product_cudnn_attention.default, given, results, scale=0.2)
    assert (kinds(plan, ExternStep), kinds(plan, KernelStep)) == (0, kernels)
    (found,) = run(plan, *(x for x in given if isinstance(x, torch.Tensor)))
    assert found.stride() == out.stride()
    torch.testing.assert_close(found.double(), expected(q, k, v, bias, 0.2), rtol=2e-2, atol=2e-2)
    compile_all(plan)


@pytest.mark.parametrize("keys", (128, 1024))
@pytest.mark.parametrize("averages", (False, True))
def test_all_keys_masked(averages: bool, keys: int) -> None:
    q, k = half(1, 2, 2, 16), half(1, 2, keys, 16)
    bias = torch.zeros(1, 1, 2, keys, dtype=torch.float16)
    bias[:, :, 1] = -torch.inf
    bias[:, :, 0, : keys // 2] = -torch.inf  # whole parts of one row
    results = (torch.empty_like(q), torch.empty(1, 2, 2), *(torch.empty((), dtype=torch.int64),) * 2)
    op = aten._scaled_dot_product_cudnn_attention if averages else aten._scaled_dot_product_efficient_attention
    (found,) = run(plan_of(op.default, (q, k, k, bias, False, 0.0, False), results), q, k, k, bias)
    first = expected(q[:, :, :1], k, k, bias[:, :, :1], 0.25)
    second = k.double().mean(-2, keepdim=True) if averages else torch.zeros_like(first)
    torch.testing.assert_close(found.double(), torch.cat([first, second], -2), rtol=2e-2, atol=2e-2)


def test_bfloat16_compiles() -> None:
    q, k = half(1, 4, 1, 64).bfloat16(), half(1, 2, 300, 64).bfloat16()
    results = (torch.empty_like(q), None, None, None, 1, 300, *(torch.empty(2, dtype=torch.int64),) * 2)
    plan = plan_of(aten._scaled_dot_product_cudnn_attention.default, (q, k, k, None, False, 0.0, False), results)
    assert (kinds(plan, ExternStep), kinds(plan, KernelStep)) == (0, 2)
    compile_all(plan)


def test_flash_has_no_mask() -> None:
    q, k = half(1, 4, 1, 64), half(1, 2, 300, 64)
    results = (torch.empty_like(q), torch.empty(1, 4, 1), None, None, 1, 300, *(torch.empty(2, dtype=torch.int64),) * 3)
    plan = plan_of(aten._scaled_dot_product_flash_attention.default, (q, k, k), results)
    assert kinds(plan, ExternStep) == 0
    (found,) = run(plan, q, k, k)
    torch.testing.assert_close(found.double(), expected(q, k, k, None, 0.125), rtol=2e-2, atol=2e-2)


LEFT = {
    "many queries": ((half(1, 4, 64, 64), half(1, 4, 256, 64), half(1, 4, 256, 64), None, False, 0.0, False), 1),
    "few keys": ((half(1, 4, 1, 64), half(1, 4, 64, 64), half(1, 4, 64, 64), None, False, 0.0, False), 1),
    "many heads": ((half(40, 8, 1, 16), half(40, 8, 128, 16), half(40, 8, 128, 16), None, False, 0.0, False), 1),
    "causal": ((half(1, 4, 2, 64), half(1, 4, 256, 64), half(1, 4, 256, 64), None, False, 0.0, True), 1),
    "dropout": ((half(1, 4, 1, 64), half(1, 4, 256, 64), half(1, 4, 256, 64), None, False, 0.1, False), 1),
    "logarithms are kept": (
        (half(1, 4, 1, 64), half(1, 4, 256, 64), half(1, 4, 256, 64), None, True, 0.0, False),
        2,
    ),
    "float32": ((*(torch.randn(1, 4, rows, 64) for rows in (1, 256, 256)), None, False, 0.0, False), 1),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_the_library(name: str) -> None:
    given, kept = LEFT[name]
    q = given[0]
    results = (torch.empty_like(q), torch.empty(q.shape[:3]), *(torch.empty((), dtype=torch.int64),) * 2)
    plan = plan_of(aten._scaled_dot_product_efficient_attention.default, given, results, kept)
    assert (kinds(plan, ExternStep), kinds(plan, KernelStep)) == (1, 0)


def test_as_torch_has_it() -> None:
    """What the references above are, is torch's attention."""
    q, k, v = half(1, 4, 2, 16).float(), half(1, 2, 9, 16).float(), half(1, 2, 9, 16).float()
    mask = torch.randn(1, 4, 2, 9)
    theirs = F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(expected(q, k, v, mask, 0.3).float(), theirs)
