"""Sums and extremes are kept in several lanes, and what is left over is not lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import check

REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(-1),
    "prod": lambda x: (1 + x / 1000).prod(-1) if x.is_floating_point() else x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "squares": lambda x: (x * x).sum(-1),
    "two": lambda x: torch.stack([x.sum(-1), x.amax(-1)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(3, 512), (3, 1087), (2, 9001), (40_001,), (2, 3, 530)])
def test_sums_in_lanes(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    reduce = REDUCTIONS[name]
    x = torch.randint(-8, 9, shape).to(dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if name == "prod" and x.is_floating_point() else {}
    plan = check(reduce, x, **tolerance)
    if name == "sum" and dtype is torch.float32:
        assert "[k] = (s" in plan.source, plan.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("length", [24, 31, 33, 49, 100, 257])
def test_short_rows(name: str, length: int, dtype: torch.dtype) -> None:
    x = torch.randint(0, 4, (300, length)).to(dtype)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if name == "prod" and x.is_floating_point() else {}
    plan = check(REDUCTIONS[name], x, **tolerance)
    if name == "sum" and dtype in (torch.float32, torch.bfloat16) and length > 31:
        assert "[k + h]" in plan.source, plan.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [2, 5, 8, 9, 12, 16, 17, 23, 31])
@pytest.mark.parametrize("rows", [3, 7, 8, 300])
def test_rows_that_are_turned(rows: int, length: int, dtype: torch.dtype) -> None:
    x = torch.randint(-8, 9, (rows, length)).to(dtype)
    check(lambda x: (x.sum(1), x.amax(1), x - x.amax(1, keepdim=True)), x)
    check(lambda x: x[:, 1:].softmax(1), x, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("place", [0, 63, 64, 700, 1023, 1024, 1030])
def test_nan_is_seen_in_every_lane_and_after_them(place: int) -> None:
    x = torch.randn(2, 1031)
    x[1, place] = float("nan")
    check(lambda x: (x.amax(1), x.amin(1)), x)


def test_rows_of_a_view_and_a_broadcast() -> None:
    x = torch.randint(-8, 9, (1030, 6)).float()
    check(lambda x: (x.t().sum(1), (x.t().contiguous() * x[:, :1].t()).sum(1), x[:1].expand(1030, 6).sum()), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256, 70), (257, 70), (1000, 1100), (600, 3, 70), (3, 700, 20)])
def test_columns_of_many_rows(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randint(-8, 9, shape).to(dtype)
    check(lambda x: (x.sum(0), x.amax(0), (x.float() * x).mean(-2), x.cumsum(0)), x)


def test_columns_are_summed_as_exactly_as_in_double() -> None:
    x = torch.rand(40_000, 64)
    check(lambda x: x.sum(0), x, rtol=2e-6, atol=0)
