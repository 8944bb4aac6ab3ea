"""The math functions of the C library part against float64, over all of float32's exponents and special values."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from helpers import plan_of

from dynajit.runtime import cpu

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
    "sigmoid": 4,
    "rsqrt": 4,
    "sqrt": 1,
}

# What is called where the argument is known to be small: name -> expression, greatest error
VARIANTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "exp_down": (lambda x: torch.exp(torch.clamp_max(x, 0.0)), 2),
    "exp_mid": (lambda x: torch.exp(torch.clamp(x, -80.0, 80.0)), 2),
    "cos_small": (lambda x: torch.cos(torch.clamp(x, -1.0, 1.0)), 2),
    "sin_small": (lambda x: torch.sin(torch.clamp(x, -1.0, 1.0)), 2),
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
    (actual,) = cpu.build(plan_of(function, x))(x)
    exact = function(x.double())
    if name == "sigmoid":  # as in eager, where exp(-x) is infinite
        exact = exact.where((-x).exp() < float("inf"), 0.0 * exact)
    error = _ulps(actual, exact)
    worst = int(error.nan_to_num(float("inf")).argmax())
    assert error[worst] <= LIMITS[name], (
        f"{name}({x[worst].item()!r}) = {actual[worst].item()!r}, {exact[worst].item()!r}"
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str) -> None:
    """Functions for arguments within bounds, which are called where these are known."""
    function, limit = VARIANTS[name]
    x = _samples()
    plan = plan_of(function, x)
    assert f"= {name}_f32(" in plan.source
    (actual,) = cpu.build(plan)(x)
    error = _ulps(actual, function(x.double())).nan_to_num(math.inf)
    assert error.max() <= limit, f"{name}({x[error.argmax()].item()!r}): {error.max().item()} ulp"


def test_pow() -> None:
    """x^y over the exponents of both, where the result is a number."""
    magnitude = torch.exp2(torch.linspace(-126, 127, 401))
    x = torch.cat([magnitude, torch.tensor([0.0, 1.0, math.inf, math.nan, 1e-45])]).repeat_interleave(401)
    y = torch.cat([torch.linspace(-40, 40, 397), torch.tensor([0.5, 2.0, math.inf, math.nan])]).repeat(406)
    (actual,) = cpu.build(plan_of(torch.pow, x, y))(x, y)
    error = _ulps(actual, torch.pow(x.double(), y.double())).nan_to_num(math.inf)
    assert error.max() <= 4, (x[error.argmax()], y[error.argmax()], actual[error.argmax()])


def test_softmax_knows_its_arguments() -> None:
    """What is subtracted is the greatest of the row: the exponential needs no test for large arguments."""
    plan = plan_of(lambda x: torch.exp(x - x.amax(-1, keepdim=True)).sum(-1), torch.randn(8, 64))
    assert "= exp_down_f32(" in plan.source


@pytest.mark.parametrize("row", [[math.nan, 1.0, 2.0], [math.inf, 1.0, 2.0], [-math.inf] * 3, [-math.inf, 0.0, 1e38]])
def test_softmax_of_special_rows(row: list[float]) -> None:
    x = torch.tensor(row).repeat(4, 9)
    (actual,) = cpu.build(plan_of(lambda x: x.softmax(-1), x))(x)
    torch.testing.assert_close(actual, x.softmax(-1), equal_nan=True)


@pytest.mark.parametrize("name", ["exp", "tanh", "sin", "erf", "log", "sigmoid"])
def test_short_tensors(name: str) -> None:
    """What is left over by the vectors gives the same as what is not."""
    function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
    x = torch.randn(35)
    (whole,) = cpu.build(plan_of(function, x))(x)
    (part,) = cpu.build(plan_of(function, x[:5]))(x[:5])
    torch.testing.assert_close(whole[:5], part, rtol=1e-6, atol=0, equal_nan=True)


def test_sine_and_cosine_of_the_same() -> None:
    """Compilers make one call of the two, for which there are no vectors: they are told not to."""
    x = torch.linspace(-50, 50, 777)
    plan = plan_of(lambda x: torch.sin(x) + torch.cos(x) * torch.exp(-x * x), x)
    (actual,) = cpu.build(plan)(x)
    torch.testing.assert_close(actual, torch.sin(x) + torch.cos(x) * torch.exp(-x * x))
    assert "#define sin_f32 sinf" not in plan.source.partition("#ifdef NAMED")[0]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_signs_of_zeros(name: str, dtype: torch.dtype) -> None:
    """A zero has the sign that eager gives it: what is divided by it is an infinity of that sign."""
    function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
    x = torch.tensor([0.0, -0.0], dtype=dtype).repeat(20)
    (actual,) = cpu.build(plan_of(function, x))(x)
    torch.testing.assert_close(actual.signbit(), function(x).signbit())


@pytest.mark.parametrize("exponent", [2.7, -3.0, 2.0, 0.0, 0.5, math.inf, -math.inf, math.nan])
def test_pow_with_one_exponent_for_all(exponent: float) -> None:
    x = torch.tensor([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, math.inf, -math.inf, math.nan]).repeat(40)
    y = torch.tensor([exponent])
    (actual,) = cpu.build(plan_of(torch.pow, x, y))(x, y)
    torch.testing.assert_close(actual, torch.pow(x, y), equal_nan=True, rtol=1e-6, atol=0)
    assert torch.equal(actual.signbit() & ~actual.isnan(), torch.pow(x, y).signbit() & ~actual.isnan())
