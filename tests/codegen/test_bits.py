"""16-bit floats that are only moved, chosen between or given another sign are not converted, and keep their bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from helpers import check

MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": lambda x: x.abs(),
    "neg": lambda x: -x,
    "neg of abs": lambda x: -x.abs(),
    "pad": lambda x: F.pad(x, (1, 2, 3, 0), value=-0.5),
    "pad of short rows": lambda x: F.pad(x.view(-1, 4), (1, 1)),
    "flip": lambda x: x.flip(1),
    "where": lambda x: torch.where(torch.arange(64) % 3 == 0, x, x.flip(0)),
    "index_select": lambda x: x.index_select(1, torch.arange(63, -1, -1)),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([2, 0]), x[:2] + 0),
    "cat": lambda x: torch.cat([x, -x], 1),
    "full": lambda x: torch.full_like(x, 1e-7),
    "transposed": lambda x: x.t().contiguous().view(-1, 8).flip(0),
    "expanded": lambda x: x[:, :1].expand(-1, 64).abs(),
}


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    """Every kind of number, both zeros and numbers below the normal range among them."""
    bits = torch.arange(-(1 << 15), 1 << 15, 1 << 4, dtype=torch.int32).to(torch.int16).view(dtype)
    return torch.where(bits.isnan(), 1.5, bits).view(-1, 64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", MOVES)
def test_what_is_only_moved_is_not_converted(name: str, dtype: torch.dtype) -> None:
    move, x = MOVES[name], _numbers(dtype)
    plan = check(lambda x: move(x).view(torch.int16), x)
    if name != "index_copy":  # what is copied there is computed
        assert "load_" not in plan.source and "store_" not in plan.source and "f16_to" not in plan.source, plan.source


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_nan_stays_nan_with_another_sign(dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), -float("inf"), 1.0], dtype=dtype)
    check(lambda x: (-x, x.abs(), F.pad(x, (1, 1), value=float("nan"))), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_computed_beside_what_is_moved(dtype: torch.dtype) -> None:
    x = _numbers(dtype)
    check(lambda x: (x.flip(1), x * 2, torch.where(x > 0, x, -x), torch.where(x > 0, x * 2, x)), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_running_sums_are_of_numbers(dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (5, 70)).to(dtype)
    check(lambda x: (x.cumsum(0), x.cumsum(1), x.abs().cumsum(1)), x)


def test_bits_of_another_dtype_are_numbers() -> None:
    x = torch.arange(-8, 8, dtype=torch.int16)
    check(lambda x: (x.half(), x.bfloat16(), x.half().view(torch.int16) + x), x)


@pytest.mark.parametrize("columns", [4, 40])
def test_rows_short_and_long_are_rounded_alike(columns: int) -> None:
    x = torch.cat([_numbers(torch.float16).flatten(), torch.tensor([65504, 65519, 6e-8, 3e-8])]).half()
    x = x[: x.numel() // columns * columns].view(-1, columns)
    check(lambda x: (x * 1.5 + x.flip(1), x.sum(1), x[:, 1:] / 3, x.float().half()), x, rtol=0, atol=0)


def test_what_a_16_bit_float_can_hold_is_not_rounded() -> None:
    x = _numbers(torch.float16)
    plan = check(lambda x: torch.maximum(x.abs(), x.flip(1)).sign() * 2, x)
    assert plan.source.count("= round_f16") == 0, plan.source
    check(lambda x: F.softshrink(x), x)
