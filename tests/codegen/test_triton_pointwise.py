"""Pointwise kernels for GPUs, under Triton's interpreter and through its compiler for sm_90."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

import helpers
from triton_harness import check, compile_all, plan_of, trace

from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep, KernelStep
from dynajit.loopir.build import apply
from dynajit.loopir.ops import FLOATS, OPS, ScalarOp
from dynajit.loopir.registry import LOWERINGS

F = torch.nn.functional


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


CHAINS: dict[str, Any] = {
    "chain": (lambda x, b, s: torch.relu(x * 2 + b) * s, (randn(37, 24), randn(24), randn(24))),
    "broadcast both ways": (lambda a, b: a + b, (randn(37, 1), randn(1, 24))),
    "transposed": (lambda x: x.t() + x, (randn(70, 70),)),
    "transposed and written across": (lambda x: (x.t() * 2).contiguous(), (randn(33, 65),)),
    "permuted batch": (lambda x: x.permute(0, 2, 1).contiguous() + 1, (randn(3, 33, 40),)),
    "permuted input": (lambda x: x + 1, (randn(8, 3, 5, 6).permute(0, 2, 3, 1),)),
    "strided": (lambda x: x[:, ::3] - 1, (randn(16, 100),)),
    "flipped": (lambda x: x.flip(1) * 2, (randn(16, 33),)),
    "concatenated views": (lambda x: x[:, 5:] + x[:, :-5], (randn(16, 33),)),
    "concatenated rows by index": (
        lambda x, i, j: torch.cat([x[i], x[j]], 1),
        (randn(9, 5), torch.tensor([3, -1, 0, 3]), torch.tensor([8, 2, 2, -9])),
    ),
    "concatenation": (lambda x, y: torch.cat([-x[:, 3:], x[:, :3], y * 2], 1), (randn(5, 8), randn(5, 9))),
    "padding": (lambda x: F.pad(x, (2, 3, 1, 0)) + 1, (randn(5, 8),)),
    "roll": (lambda x: torch.roll(x, 3, 1) * x, (randn(5, 8),)),
    "triangle": (lambda x: torch.tril(x) + torch.triu(x, 1), (randn(9, 9),)),
    "one element": (lambda x: x * 2, (randn(1),)),
    "no dimensions": (lambda x, y: x * y, (torch.tensor(2.0), torch.tensor(3.0))),
    "constants": (lambda x: x + torch.full((4, 5), 2.5, device=x.device), (randn(4, 5),)),
    "arange": (lambda x: x + torch.arange(40, device=x.device), (randn(3, 40),)),
    "two results": (lambda x: (x + 1, x.t() * 2), (randn(40, 40),)),
    "bfloat16": (lambda x, y: x * y + x, (randn(33, 40, dtype=torch.bfloat16), randn(40, dtype=torch.bfloat16))),
    "float16": (lambda x, y: F.silu(x) * y, (randn(33, 40, dtype=torch.float16), randn(40, dtype=torch.float16))),
    "float64": (lambda x: torch.tanh(x) / 3.7 + 0.1, (randn(33, dtype=torch.float64),)),
    "integers": (lambda x: (x * 3 - 7) // 4 % 5, (torch.arange(-50, 50),)),
    "small integers": (lambda x: -x + 100, (torch.arange(-100, 100, dtype=torch.int8),)),
    "bytes": (lambda x: x + 250, (torch.arange(0, 200, dtype=torch.uint8),)),
    "bits": (lambda x: (x & 12) | (~x ^ 3), (torch.arange(-50, 50, dtype=torch.int32),)),
    "truth": (lambda x, y: (x > y) & ~(y > 0) | (x == 0), (randn(100), randn(100))),
    "truth in and out": (lambda m: m.logical_not() | m, (randn(100) > 0,)),
    "order of truth": (lambda m, n: ((m < n) | (m >= n.logical_not()), m <= n), (randn(50) > 0, randn(50) > 0)),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x).clamp(-1, 1), (randn(100),)),
    "to integers": (lambda x: (x * 10).to(torch.int32) + (x * 5).to(torch.int8), (randn(100),)),
    "to half and back": (lambda x: x.to(torch.bfloat16).to(torch.float32) + x.to(torch.float16), (randn(100),)),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), (randn(200),)),
    "power": (lambda x: x.abs() ** 1.7 + x**3, (randn(100),)),
    "rounding": (lambda x: torch.round(x * 3) + x.floor() + x.ceil() + x.trunc(), (randn(100),)),
    "signs of zero": (lambda x: 1 / -x, (torch.zeros(4),)),
    "not a number": (
        lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x.clamp(min=0), torch.relu(x)),
        (torch.tensor([float("nan"), 1.0, -1.0, float("inf")]), torch.tensor([1.0, float("nan"), 2.0, -1.0])),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_interpreted(name: str) -> None:
    function, args = CHAINS[name]
    tolerances = {"rtol": 1e-5, "atol": 1e-6} if args[0].dtype is torch.float32 else {}
    check(function, *args, **tolerances)


@pytest.mark.parametrize("name", CHAINS)
def test_compiled(name: str) -> None:
    function, args = CHAINS[name]
    compile_all(plan_of(function, *args))


@pytest.mark.parametrize(("dear", "kernels"), ((False, 1), (True, 2)))
def test_what_lies_in_one_piece_is_computed_there(dear: bool, kernels: int) -> None:
    """Unless each point would compute too much for pieces that it is not in."""

    def both(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        rows = (x[i], x[j])
        return torch.cat([torch.erf(torch.erf(torch.erf(row))) for row in rows] if dear else rows, 1)

    plan = plan_of(both, randn(9, 5), torch.tensor([3, 1, 0, 3]), torch.tensor([8, 2, 2, 7]))
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == kernels


UNARY = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sqrt", "rsqrt", "reciprocal", "sigmoid"),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(dtype: torch.dtype) -> None:
    x = torch.rand(64, dtype=dtype) * 0.9 + 0.05

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(getattr(torch, name)(x + 1 if name == "acosh" else x) for name in UNARY)

    plan = check(function, x, rtol=1e-5, atol=1e-6)
    compile_all(plan)


def test_sizes_are_exact_where_they_can_be() -> None:
    """Masks stand only where a block can reach over the end."""
    assert "m =" not in plan_of(lambda x: x + 1, torch.empty(1 << 20)).source
    assert "xm =" in plan_of(lambda x: x + 1, torch.empty((1 << 20) - 1)).source


def test_equal_kernels_are_one() -> None:
    x, y, w = randn(300, 300), randn(300, 300), randn(300, 300)
    plan = plan_of(lambda x, y, w: ((x.exp() + 1) @ w, (y.exp() + 1) @ w), x, y, w)
    assert len(plan.kernels) == 1 and sum(isinstance(step, KernelStep) for step in plan.steps) == 2


def test_long_addresses() -> None:
    """Indices that don't fit 32 bits are computed in 64."""
    huge = torch.empty(1, dtype=torch.int8).expand(1 << 16, 1 << 16)
    plan = plan_of(lambda x: x + 1, huge)
    assert "to(tl.int64)" in plan.source
    compile_all(plan)
    assert "to(tl.int64)" not in plan_of(lambda x: x + 1, torch.empty(1000, 1000)).source


def test_other_devices_are_left_to_torch() -> None:
    gm, fakes = trace(lambda x: x + 1, randn(4))
    plan = generate(gm, fakes, "test", torch.device("cuda", 1))
    assert any(isinstance(step, ExternStep) for step in plan.steps)


def test_an_operation_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier, the reference interpreter and both printers find all they need in it."""
    squares = "({0} * {0} + {1} * {1})"
    row = ScalarOp(2, FLOATS, "same", 4, torch.hypot, f"__builtin_sqrt{{t}}{squares}", f"tl.sqrt{squares}")

    def lowered(build: Any, *given: Any) -> Any:
        return build.elementwise(lambda *parts: apply("hypot", *parts), *given)

    monkeypatch.setitem(OPS, "hypot", row)
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.hypot.default, lowered)
    for dtype in (torch.float32, torch.float64):
        inputs = randn(3, 40, dtype=dtype), randn(40, dtype=dtype)
        check(lambda x, y: torch.hypot(x, y) + 1, *inputs, kernels=1)
        helpers.check(lambda x, y: torch.hypot(x, y) + 1, *inputs, kernels=1, externs=0)
