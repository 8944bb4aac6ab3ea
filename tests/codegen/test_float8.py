"""Floats of 8 bits: conversions to the bit as in eager, for every value, on CPUs and in kernels for GPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynajit

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import compile_all, plan_of, run

from dynajit.codegen.plan import ExternStep, Plan

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, at NaN
KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)
OTHERS = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool)


def fused(plan: Plan) -> bool:
    return not any(isinstance(step, ExternStep) for step in plan.steps)


def both(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    """On the CPU and by the kernels for a GPU; bits are compared, but those of NaN."""
    plan = plan_of(function, *args)
    assert fused(plan), str(plan)
    expected = function(*args)
    with torch.no_grad():
        results = [run(plan, *args)[0], dynajit.compile(function, fullgraph=True)(*args)]
    record = dynajit.explain(function)(*args)
    assert record.graph_count == 1
    for result in results:
        assert result.dtype is expected.dtype and result.stride() == expected.stride()
        if expected.dtype in KINDS:
            nan = expected.float().isnan()
            assert torch.equal(result.float().isnan(), nan)
            assert torch.equal(result.view(torch.uint8)[~nan], expected.view(torch.uint8)[~nan])
        else:
            torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def every_float16(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)


def near_ties(kind: torch.dtype) -> torch.Tensor:
    """All values of the kind, the middles between them, and their neighbours in float32."""
    finite = torch.arange(256, dtype=torch.uint8).view(kind).float()
    finite = finite[finite.isfinite()].unique()
    middles = (finite[1:].double() + finite[:-1].double()).div(2).float()
    far = torch.tensor([448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0, 65536.0, 1e30, float("inf"), 1e-30, 1e-45])
    values = torch.cat([finite, middles, far, -far, torch.tensor([float("nan"), -0.0])])
    up, down = torch.tensor(float("inf")), torch.tensor(float("-inf"))
    return torch.cat([values, values.nextafter(up), values.nextafter(down)])


@pytest.mark.parametrize("kind", KINDS)
def test_to_8_bits(kind: torch.dtype) -> None:
    for x in (near_ties(kind), near_ties(kind).double(), every_float16(torch.float16), every_float16(torch.bfloat16)):
        both(lambda x: x.to(kind), x)
    both(lambda x: x.to(kind), torch.arange(-700, 700))
    both(lambda x: (x > 3).to(kind), torch.arange(9.0))


@pytest.mark.parametrize("dtype", OTHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_from_8_bits(kind: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(kind)
    if not dtype.is_floating_point:
        x = x[x.float().isfinite() & (x.float().abs() < 100)]
    both(lambda x: x.to(dtype), x)


@pytest.mark.parametrize("kind", KINDS)
def test_between_arithmetic(kind: torch.dtype) -> None:
    x, scale = torch.randn(40, 64) * 300, torch.tensor(0.37)
    both(lambda x, s: (x * s).clamp(-400, 400).to(kind), x, scale)
    both(lambda x, s: (x.to(kind).float() * s).relu(), x, scale)
    both(lambda x: x.to(kind).t().contiguous(), x)
    both(lambda x: x.to(KINDS[0]).to(KINDS[1]), x)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_compile(kind: torch.dtype) -> None:
    compile_all(plan_of(lambda x: (x.to(kind), x.to(kind).float() + 1), torch.randn(64, 64)))
    compile_all(plan_of(lambda x: x.bfloat16() * 2, torch.randn(64, 64).to(kind)))


def test_quantising_rows_is_one_kernel() -> None:
    def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True).float() / 448
        return (x.float() / scale).to(KINDS[0]), scale

    x = torch.randn(64, 512).bfloat16()
    plan = plan_of(quantised, x)
    assert fused(plan) and len(plan.kernels) == 1
    for result, expected in zip(run(plan, x), quantised(x), strict=True):
        assert torch.equal(result.float(), expected.float())


def test_arithmetic_is_refused_as_in_eager() -> None:
    x = torch.randn(4).to(KINDS[0])
    with pytest.raises((RuntimeError, NotImplementedError)) as eager:
        x + x
    with pytest.raises((RuntimeError, NotImplementedError)) as ours:
        dynajit.compile(lambda x: x + x)(x)
    assert str(eager.value) == str(ours.value)


def test_other_operators_are_left_to_torch() -> None:
    x = torch.arange(256, dtype=torch.uint8).view(KINDS[0])
    plan = plan_of(lambda x: x.float().isnan().logical_not(), x)
    assert fused(plan)
    for function in (
        lambda x: torch.cat([x, x[::2]]),
        lambda x: torch.zeros_like(x),
        lambda x: (x.float() * 2).to(KINDS[1]).view(torch.uint8),
    ):
        expected = function(x)
        result = dynajit.compile(function, fullgraph=True)(x)
        assert result.dtype is expected.dtype
        assert torch.equal(result.view(torch.uint8), expected.view(torch.uint8))
