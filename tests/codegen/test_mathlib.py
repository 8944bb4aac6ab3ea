"""The math functions of the C library part against float64, over all of float32's exponents and special values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers import plan_of

from dynajit.runtime import executor

# name -> greatest error in units in the last place
LIMITS = {
    "exp": 2,
    "log": 2,
    "tanh": 4,
    "erf": 2,
    "sin": 4,
    "cos": 4,
    "expm1": 4,
    "log1p": 4,
    "log2": 4,
    "log10": 4,
    "exp2": 4,
    "erfc": 4,
    "tan": 4,
    "asin": 4,
    "acos": 4,
    "atan": 4,
    "sinh": 4,
    "cosh": 4,
    "asinh": 4,
    "acosh": 4,
    "atanh": 4,
}


def _samples() -> torch.Tensor:
    """Floats evenly over the bit patterns of both signs: every exponent, denormals, infinities and NaN among them."""
    bits = torch.arange(0, 0x7F800001, 0x7F800000 // 100_000, dtype=torch.int64)
    bits = torch.cat([bits, torch.tensor([0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000])])
    positive = bits.to(torch.int32).view(torch.float32)
    near = torch.linspace(-110, 110, 40_001)
    return torch.cat([positive, -positive, near])


def _ulps(actual: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance in units in the last place of the exact result; denormals count in units of the smallest one."""
    rounded = exact.float()
    _, exponent = torch.frexp(rounded)
    unit = torch.exp2((exponent.double() - 24).clamp_min(-149))
    error = (actual.double() - exact).abs() / unit
    same = (actual == rounded) | (actual.isnan() & rounded.isnan())
    return torch.where(same, 0.0, torch.where(rounded.isinf() & (actual.abs() > 3.4e38), 0.0, error))


@pytest.mark.parametrize("name", LIMITS)
def test_error(name: str) -> None:
    function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
    x = _samples()
    (actual,) = executor.build(plan_of(function, x))(x)
    exact = function(x.double())
    error = _ulps(actual, exact)
    worst = int(error.nan_to_num(float("inf")).argmax())
    assert error[worst] <= LIMITS[name], (
        f"{name}({x[worst].item()!r}) = {actual[worst].item()!r}, {exact[worst].item()!r}"
    )


@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "erf", "log", "sigmoid"])
def test_short_tensors(name: str) -> None:
    """What is left over by the vectors gives the same as what is not."""
    function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
    x = torch.randn(35)
    (whole,) = executor.build(plan_of(function, x))(x)
    (part,) = executor.build(plan_of(function, x[:5]))(x[:5])
    torch.testing.assert_close(whole[:5], part, rtol=1e-6, atol=0, equal_nan=True)
