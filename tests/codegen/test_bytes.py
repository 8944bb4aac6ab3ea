"""Negative numbers where the tensor holds bytes: torch wraps them around, whatever the operation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import check

CASES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.clamp(-2, 3),
    lambda x: x.clamp(-2),
    lambda x: x.clamp(max=-1),
    lambda x: x > -1,
    lambda x: x == -1,
    lambda x: x * -1 + -3,
    lambda x: torch.where(x > 5, x, -1),
    lambda x: x.masked_fill(x > 3, -1) // 2,
    lambda x: x & -2,
]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_negative_numbers_and_bytes(number: int) -> None:
    check(CASES[number], torch.tensor([0, 1, 2, 3, 100, 200, 254, 255], dtype=torch.uint8))


TRUTHS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x * 3,
    lambda x: x & x.flip(0),
    lambda x: x == x.flip(0),
    lambda x: x.sum(),
    lambda x: x.max(0).indices,
    lambda x: torch.where(x, 1.0, 2.0),
    lambda x: x.index_select(0, torch.tensor([3, 2])).float(),
    lambda x: (x + x).view(torch.uint8),
    lambda x: (x.view(torch.uint8) * 2).view(torch.bool).int(),
]


@pytest.mark.parametrize("number", range(len(TRUTHS)))
def test_bools_of_any_byte(number: int) -> None:
    """Memory that `view` calls bool holds any bytes: torch takes all but 0 for true."""
    check(TRUTHS[number], torch.tensor([0, 1, 2, 3, 100, 128, 254, 255], dtype=torch.uint8).view(torch.bool))
