"""The reference interpreter gives eager's results, and the verifier finds broken programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference_interpreter import interpret
from torch.fx.experimental.proxy_tensor import make_fx
from well_formed import verify

from dynajit.exc import InternalError
from dynajit.loopir import nodes
from dynajit.loopir.lower_graph import lower
from dynajit.loopir.printer import program_text

CASES: list[Callable[[torch.Tensor], Any]] = [
    lambda x: torch.relu(x * 2 + x[0]) * 0.5,
    lambda x: x.softmax(1),
    lambda x: x.softmax(0).t().reshape(6, 4) + x.view(6, 4),
    lambda x: F.gelu(F.layer_norm(x, (6,))),
    lambda x: (x @ x.t()).relu().sum((0, 1)),
    lambda x: torch.where(x > 0, x, torch.arange(6)),
    lambda x: x.to(torch.bfloat16).mean(1).float(),
    lambda x: torch.cat([x, x.flip(1)], 1)[:, ::3],
    lambda x: x.expand(3, 4, 6).permute(2, 0, 1).amax(-1) + 1,
]


def _program(function: Callable[..., Any], x: torch.Tensor) -> nodes.Program:
    return lower(make_fx(lambda x: (function(x),), tracing_mode="fake")(x), "test")


@pytest.mark.parametrize("case", range(len(CASES)))
def test_interpreter_agrees_with_eager(case: int) -> None:
    x = torch.randn(4, 6)
    program = _program(CASES[case], x)
    verify(program)
    (actual,) = interpret(program, {program.inputs[0]: x})
    torch.testing.assert_close(actual, CASES[case](x))
    assert program_text(program).startswith("program test(")


def test_verifier_rejects() -> None:
    x = torch.randn(4, 6)
    program = _program(lambda x: x + 1, x)
    tensor = program.items[0]
    assert isinstance(tensor, nodes.Pointwise)
    body = tensor.body
    tensor.body = nodes.op("exp", (nodes.const(1, torch.int64),), torch.float32)
    with pytest.raises(InternalError, match="exp"):
        verify(program)
    tensor.body = nodes.op("add", (body,), torch.float32)
    with pytest.raises(InternalError, match="takes 2 arguments"):
        verify(program)
    tensor.body = nodes.read(tensor, tensor.axes)
    with pytest.raises(InternalError, match="comes later"):
        verify(program)
    tensor.body = nodes.const(1, torch.int64)
    with pytest.raises(InternalError, match="body is"):
        verify(program)
