"""Sums by a sorted index, as gradients of `x[index]` are: under Triton's interpreter and through its compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import check, compile_all, plan_of, run

from dynajit.codegen.plan import ExternStep

put = torch.ops.aten.index_put
randn = torch.randn


def rows(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return put(x, [index], values, True)


def columns(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return put(x, [None, index], values, True)


def pairs(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return put(x, [None, i, j], values, True)


def apart(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return put(x, [i, None, j], values, True)


def shared(index: torch.Tensor, one: torch.Tensor, two: torch.Tensor, gate: torch.Tensor) -> Any:
    zeros = torch.zeros(9, one.shape[1])
    first = put(zeros, [index], one.relu() * gate, True)
    return first, put(first.exp(), [index], two, True)


def added(dim: int) -> Any:
    return lambda x, index, values: x.index_add(dim, index, values.relu()) * 2


AT = torch.tensor([3, -1, 3, 0, 2, 2, 2, -7, 3, 3])
CASES: dict[str, Any] = {
    # function, arguments, calls of the library: two for each index
    "rows": (rows, (randn(7, 5), AT, randn(10, 5)), 2),
    "half": (rows, (randn(7, 64).half(), AT, randn(10, 64).half()), 2),
    "double": (rows, (randn(7, 5).double(), AT.int(), randn(10, 5).double()), 2),
    "numbers": (rows, (randn(7), AT, randn(10)), 2),
    "one value for all": (rows, (randn(7, 5), AT, randn(5)), 2),
    "many columns": (rows, (randn(7, 3, 67), AT, randn(10, 3, 67)), 2),
    "a transposed base": (rows, (randn(5, 7).t(), AT, randn(10, 5)), 2),
    "an index of two dimensions": (rows, (randn(7, 5), AT.view(2, 5), randn(2, 5, 5)), 2),
    "more than a step": (rows, (randn(3, 4), torch.randint(-3, 3, (200,)), randn(200, 4)), 2),
    "wide keys": (rows, (randn(40_000), torch.randint(0, 40_000, (12_000,)), randn(12_000)), 2),
    "columns": (columns, (randn(4, 7), AT, randn(4, 10)), 2),
    "pairs": (pairs, (randn(4, 3, 3), AT % 3, AT.flip(0) % 3, randn(4, 10)), 2),
    "indices apart": (apart, (randn(3, 4, 3), AT % 3, AT.flip(0) % 3, randn(10, 4)), 2),
    "an index used twice": (shared, (AT, randn(10, 6), randn(10, 6), randn(10, 1)), 2),
    "slices of float16": (added(0), (randn(7, 64).half(), AT.abs() % 7, randn(10, 64).half()), 2),
    "slices of bfloat16": (added(-1), (randn(5, 7).bfloat16(), AT.abs() % 7, randn(5, 10).bfloat16()), 2),
    "slices of float32": (added(0), (randn(7, 5), AT.abs() % 7, randn(10, 5)), 0),
    "mostly empty": (rows, (randn(700, 5), AT, randn(10, 5)), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_sums(name: str) -> None:
    function, args, calls = CASES[name]
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 5e-2}.get(args[0].dtype, 1e-5)
    compile_all(check(function, *args, externs=calls, rtol=tolerance, atol=tolerance))


def test_the_order_of_sums_is_that_of_the_index() -> None:
    """Large numbers that cancel: the same bits at every call."""
    x, values = torch.zeros(2, 3), randn(500, 3) * 10.0 ** torch.randint(0, 8, (500, 1))
    plan = plan_of(rows, x, AT.abs().repeat(50) % 2, values)
    found = [run(plan, x, AT.abs().repeat(50) % 2, values)[0] for _ in range(2)]
    assert torch.equal(*found)


def test_what_is_not_added_to_keeps_its_bits() -> None:
    x = torch.full((7, 5), -0.0)
    args = x, torch.tensor([1, 1, 2]), torch.zeros(3, 5)
    assert torch.equal(run(plan_of(rows, *args), *args)[0].signbit(), rows(*args).signbit())


@pytest.mark.parametrize(
    ("function", "dtype", "at"),
    ((rows, torch.float32, -8), (rows, torch.float32, 7), (added(0), torch.half, -1), (added(0), torch.half, 7)),
)
def test_places_outside_are_refused(function: Any, dtype: torch.dtype, at: int) -> None:
    args = randn(7, 5).to(dtype), torch.tensor([3, at, 3]), randn(3, 5).to(dtype)
    fine = args[0], torch.tensor([3, 1, 3]), args[2]
    with pytest.raises(Exception, match="refused"):
        run(plan_of(function, *fine), *args)


def test_operator_by_operator_with_eager_rounding() -> None:
    from triton_harness import GPU, trace

    from dynajit.codegen.generate import generate

    args = randn(7, 5).half(), AT, randn(10, 5).half()
    plan = generate(*trace(rows, *args), "test", GPU, eager_rounding=True)
    assert [str(step.target) for step in plan.steps if isinstance(step, ExternStep)] == ["aten.index_put.default"]
