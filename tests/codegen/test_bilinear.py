"""Bilinear interpolation on CPUs: eager's bits, with what is computed before and after in one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check

nan, inf = float("nan"), float("inf")

# Eager's kernels for small results, large ones, a side that keeps its size, one of a single place, smaller results.
SIZES: list[tuple[tuple[int, int], dict[str, Any]]] = [
    ((16, 16), {"scale_factor": 2.0}),
    ((13, 17), {"size": (29, 50)}),
    ((13, 17), {"size": (13, 60)}),
    ((13, 17), {"size": (90, 17)}),
    ((64, 64), {"scale_factor": 2.0}),
    ((40, 50), {"scale_factor": (2.5, 1.5)}),
    ((100, 60), {"size": (30, 100)}),
    ((1, 7), {"size": (5, 300)}),
    ((7, 9), {"size": (1, 1)}),
    ((9, 9), {"size": (9, 9)}),
]


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("corners", [False, True], ids=["pixels", "corners"])
@pytest.mark.parametrize("size, how", SIZES, ids=str)
def test_eagers_bits(size: tuple[int, int], how: dict[str, Any], corners: bool, threads: int) -> None:
    for channels in (1, 2, 3, 8, 5):
        x = torch.randn(2, channels, *size)
        x.view(-1)[::37], x.view(-1)[5::41] = inf, nan

        def enlarged(x: torch.Tensor) -> torch.Tensor:
            return F.interpolate(x, mode="bilinear", align_corners=corners, **how)

        new = tuple(enlarged(x[:1, :1]).shape[2:])
        left = channels == 5 and sum(new) <= 128  # what its last channels are added up in is the processor's affair
        check(enlarged, x, kernels=1 - left, externs=int(left), rtol=0, atol=0)


def test_with_what_stands_around() -> None:
    """Flipped and scaled in place of a copy that is; what costs more is not computed four times."""
    x = torch.rand(2, 3, 40, 40)

    def augmented(x: torch.Tensor) -> torch.Tensor:
        return (F.interpolate(x.flip(-1), size=(72, 72), mode="bilinear") * 1.2).clamp(0, 1)[..., 4:68, 4:68] - 0.5

    def activated(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(torch.sigmoid(x), size=(72, 72), mode="bilinear")

    check(augmented, x, kernels=1, externs=0, rtol=0, atol=0)
    check(activated, x, kernels=2, externs=0, rtol=1e-6, atol=1e-6)


def test_other_layouts_and_dtypes_are_called() -> None:
    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.0, mode="bilinear")

    for x in (
        torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last),
        torch.randn(2, 8, 9, 9, dtype=torch.float64),
        torch.randn(2, 8, 9, 9).half(),
        torch.randn(2, 8, 1, 1),
    ):
        check(enlarged, x, kernels=0, externs=1, rtol=0, atol=0)
