"""Reductions for GPUs, under Triton's interpreter and through its compiler for sm_90."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all, plan_of, run

from dynajit.codegen.plan import KernelStep
from dynajit.codegen.triton import tiling

F = torch.nn.functional


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


# function, arguments, number of kernels
CASES: dict[str, Any] = {
    "softmax": (lambda x: F.softmax(x, -1), (randn(10, 33),), 1),
    "softmax of many short rows": (lambda x: F.softmax(x, -1), (randn(700, 9),), 1),
    "softmax in half": (lambda x: F.softmax(x, -1), (randn(10, 64, dtype=torch.bfloat16),), 1),
    "softmax down": (lambda x: F.softmax(x, 0), (randn(33, 40),), 1),
    "softmax in the middle": (lambda x: F.softmax(x, 1), (randn(3, 20, 17),), 1),
    "softmax of rows without an element": (
        lambda x: torch.ops.aten._safe_softmax(torch.where(x > 1, x, -torch.inf), -1),
        (torch.tensor([[0.5, 2, 3], [0, 0, 0], [1, 1.5, torch.nan]]),),
        1,
    ),
    "log softmax": (lambda x: F.log_softmax(x, -1), (randn(10, 50),), 1),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (48,), w, b), (randn(12, 48), randn(48), randn(48)), 1),
    "layer norm, gelu": (
        lambda x, w, b: F.gelu(F.layer_norm(x, (48,), w, b)) * x + x,
        (randn(12, 48, dtype=torch.bfloat16), randn(48, dtype=torch.bfloat16), randn(48, dtype=torch.bfloat16)),
        1,
    ),
    "rms norm": (rms_norm, (randn(12, 48, dtype=torch.float16), randn(48, dtype=torch.float16)), 1),
    "norm of a concatenation": (
        lambda x, y: F.layer_norm(torch.cat([x, y], 1), (48,)),
        (randn(12, 20), randn(12, 28)),
        1,
    ),
    "sum of all": (lambda x: x.sum(), (randn(20, 30),), 1),
    "row sum": (lambda x: x.sum(1), (randn(20, 30),), 1),
    "column sum": (lambda x: x.sum(0), (randn(20, 30),), 1),
    "column sum, short": (lambda x: x.sum(0), (randn(300, 40),), 1),
    "column sum in pieces": (lambda x: x.sum(0), (randn(3000, 40),), 2),
    "variance of columns in pieces": (lambda x: x.var(0), (randn(3000, 40),), 2),
    "sum of all in pieces": (lambda x: (x * x).sum() + 1, (randn(100, 130),), 2),
    "read where a sum in pieces says": (lambda x, t: t[(x.sum(0) > 0).long()], (randn(3000, 40), randn(2)), 2),
    "mean over two": (lambda x: x.mean((0, 2)), (randn(6, 7, 8),), 1),
    "variance": (lambda x: x.var(1), (randn(9, 40),), 1),
    "variance of all": (lambda x: x.var(), (randn(60, 40),), None),
    "greatest": (lambda x: x.amax(1) - x.amin(0).sum(), (randn(9, 40),), None),
    "product": (lambda x: x.prod(1), (randn(9, 12),), 1),
    "any, all": (lambda x: ((x > 2).any(1), (x > -2).all(0)), (randn(9, 40),), 2),
    "integers": (lambda x: (x.sum(1), x.amax(1)), (torch.arange(90).view(9, 10),), 1),
    "truth counted": (lambda x: (x > 0).sum(0), (randn(9, 40),), 1),
    "not a number": (lambda x: (x.amax(1), x.sum(1)), (torch.tensor([[1.0, float("nan"), 2.0], [1.0, 2.0, 3.0]]),), 1),
    "float64": (lambda x: x.sum(1) / x.amax(), (randn(9, 40, dtype=torch.float64),), None),
    "constant rows": (lambda x, z: (x.sum(1, keepdim=True) + z).sum(1), (randn(4, 1), torch.zeros(4, 8)), None),
    "mean of a transposed": (lambda x: x.t().mean(1), (randn(24, 33),), 1),
    "prologue with broadcast": (lambda x, b: (x + b).sum(1), (randn(24, 33), randn(24, 1)), 1),
}


# Sums in another order, and then a rounding to few bits.
TOLERANCES = {
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.float16: {"rtol": 4e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2},
}


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    function, args, kernels = CASES[name]
    tolerances = TOLERANCES.get(args[0].dtype, {})
    check(function, *args, kernels=kernels, **tolerances)


@pytest.mark.parametrize("name", CASES)
def test_compiled(name: str) -> None:
    function, args, _ = CASES[name]
    compile_all(plan_of(function, *args))


@pytest.fixture
def short_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows longer than 8 are gone over in steps."""
    monkeypatch.setattr(tiling, "PERSISTENT", 8)
    monkeypatch.setattr(tiling, "STEP", 16)


LOOPED = (
    *("norm of a concatenation", "softmax", "layer norm", "layer norm, gelu", "rms norm", "variance"),
    *("greatest", "any, all", "product", "integers"),
)


@pytest.mark.usefixtures("short_registers")
@pytest.mark.parametrize("name", LOOPED)
def test_rows_in_steps(name: str) -> None:
    function, args, _ = CASES[name]
    tolerances = TOLERANCES.get(args[0].dtype, {})
    plan = check(function, *args, **tolerances)
    assert "for start in range" in plan.source
    compile_all(plan)


def test_long_rows_of_few() -> None:
    """Few rows that no program could hold: pieces, kernel after kernel."""
    x = randn(2, 20_000)
    plan = check(lambda x: F.softmax(x, -1), x, rtol=1e-4, atol=1e-6)
    assert "pieces" in str(plan) and len(plan.kernels) > 2
    compile_all(plan)


def test_every_candidate_is_right() -> None:
    """What max-autotune chooses among."""
    for name in ("softmax", "column sum in pieces", "row sum", "layer norm", "variance of columns in pieces"):
        function, args, _ = CASES[name]
        counts: list[int] = []

        def first(ways: Any, counts: list[int] = counts) -> int:
            counts.append(len(ways))
            return 0

        plan_of(function, *args, choose=first)
        assert min(counts) > 2
        for number in range(1, max(counts)):
            plan = plan_of(function, *args, choose=lambda ways, number=number: min(number, len(ways) - 1))
            torch.testing.assert_close(run(plan, *args)[0], function(*args), rtol=1e-4, atol=1e-5)


def test_a_padded_summand_behind_the_sums_of_short_rows():
    """What a condition of the rows masks has an element for each row."""

    def fn(x, y):
        return F.pad(x, (0, 1)) + (y * y).sum(-1)

    compile_all(check(fn, torch.randn(4, 5), torch.randn(4, 6, 2), kernels=1))
    compile_all(check(fn, torch.randn(400, 50), torch.randn(400, 51, 64), kernels=1))


# shape, reduced dimensions, kernels: a row at once, in steps, in pieces; along and across memory
MOMENTS = [
    ((3, 700), (1,), 1),
    ((20, 24), (0,), 1),
    ((700, 24), (0,), 1),
    ((5000, 24), (0,), 2),
    ((3, 40_000), (1,), 2),
    ((300, 5000), (1,), 1),
    ((100_003,), (0,), 2),
    ((2, 8, 40, 33), (0, 2, 3), 2),
]


@pytest.mark.parametrize(("shape", "dims", "kernels"), MOMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments_keep_their_digits(shape: Any, dims: Any, kernels: int, dtype: torch.dtype) -> None:
    """Far from zero, with a first element that is far from all others, and where one is infinite: as of float64, in one
    loop over the elements."""
    tolerance = 3e-4 if dtype is torch.float32 else 1e-9
    for case in ("near", "far", "first", "infinite"):
        x = torch.randn(shape, dtype=torch.float64)
        if case != "near":
            x += 1000
        if case == "first":
            x[tuple(0 if dim in dims else slice(None) for dim in range(x.dim()))] = 0
        if case == "infinite":
            x.view(-1)[-1] = torch.inf
        x = x.contiguous(memory_format=torch.channels_last).to(dtype) if x.dim() == 4 else x.to(dtype)
        plan = plan_of(lambda x: torch.var_mean(x, dims), x)
        assert sum(isinstance(step, KernelStep) for step in plan.steps) == kernels
        for actual, expected in zip(run(plan, x), torch.var_mean(x.double(), dims), strict=True):
            if case == "infinite":  # eager's mean is NaN or infinite, as they lie
                assert torch.equal(actual.isfinite(), expected.isfinite())
            else:
                torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=1e-12)
    compile_all(plan)


@pytest.mark.parametrize("length", [2, 3, 8, 20, 32])
def test_programs_of_short_columns_have_work_for_every_thread(length: int) -> None:
    """Of many columns as many elements as a pointwise kernel's programs have; of few, all programs there can be."""
    for columns, least in ((1 << 20, 1024), (256, 32)):
        plan = plan_of(lambda x: F.softmax(x, 0), randn(length, columns))
        (step,) = (step for step in plan.steps if isinstance(step, KernelStep))
        assert isinstance(step.programs, int)
        assert columns * length // step.programs >= least
        compile_all(plan)
