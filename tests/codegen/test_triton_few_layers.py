"""Plans for GPUs of graphs with many equal layers, made of plans with a few."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from triton_harness import GPU, trace

from dynajit.aot.few_layers import KEPT, with_few_layers
from dynajit.codegen.generate import generate
from dynajit.codegen.plan import Plan

WIDTH = 16


def mixed(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Attention and a network, without a library's norm."""
    for up, down, bias in zip(weights[::3], weights[1::3], weights[2::3], strict=True):
        y = (x - x.mean(-1, True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5) * bias
        y = torch.softmax(y @ y.transpose(-1, -2), -1) @ y
        x = x + torch.tanh(y + bias)
        x = x + F.gelu(x @ up) @ down
    return x.sum(-1)


def scanned(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Products and scans, with gates."""
    for up, down, bias in zip(weights[::3], weights[1::3], weights[2::3], strict=True):
        x = torch.cumsum(torch.relu(x @ up) @ down, 1) * torch.sigmoid(x + bias)
    return x


def text(plan: Plan) -> str:
    numbers: dict[str, str] = {}
    known = {*plan.buffers, *plan.inputs}
    return re.sub(r"\w+", lambda m: numbers.setdefault(m[0], f"#{len(numbers)}") if m[0] in known else m[0], str(plan))


@pytest.mark.parametrize("function", [mixed, scanned])
def test_the_plan_is_that_of_the_whole_graph(function) -> None:  # type: ignore[no-untyped-def]
    layers = KEPT + 4
    shapes = [(WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH), (WIDTH,)] * layers
    gm, fakes = trace(function, torch.randn(2, 5, WIDTH), *map(torch.randn, shapes))
    few = with_few_layers(gm)
    assert few is not None
    short, repeated = few
    given = dict(zip(repeated.inputs, fakes, strict=True))
    inputs = [given[node.name] for node in short.graph.find_nodes(op="placeholder")]
    unrolled = generate(short, inputs, "test", GPU, repeated=repeated)
    whole = generate(gm, fakes, "test", GPU)
    assert repeated.layers >= layers - 1
    assert text(unrolled) == text(whole)
    assert unrolled.kernels == whole.kernels
    assert unrolled.source == whole.source
