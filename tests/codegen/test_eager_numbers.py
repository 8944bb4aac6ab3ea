"""A net: pointwise operators and reductions beside eager, over the numbers at which kernels differ.

One more operator: a row of a table. Eager's vectors and its loop for what is left over differ in a few of them (`sinh`
of 89, `gelu` of infinity, `softshrink` of -0.0): those are not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
aten = torch.ops.aten


def special(dtype: torch.dtype) -> torch.Tensor:
    """Both signs of the ends of the dtype, denormals, what overflows when squared, infinity, and NaN."""
    facts = torch.finfo(dtype)
    least, most = facts.smallest_normal, facts.max
    sizes = [0.0, 1.0, 0.5, 2.5, 3.0, 6.0, 7.25, 20.0, 89.0, 104.0, 300.0, 0.1, 0.3, 0.99, 1.01, math.pi, 1e-3, 1e-7]
    sizes += [least, least / 2, least * facts.eps, least**0.51, facts.eps, most, most / 2, most**0.51, math.inf]
    sizes += [1e15, 1e19, 1e-19, 3e38, 1e-40]
    return torch.tensor([*sizes, *(-size for size in sizes), math.nan], dtype=torch.float64).to(dtype)


def named(*names: str) -> dict[str, Callable[..., Any]]:
    return {name: getattr(torch, name) for name in names}


# What is rounded where eager rounds, so that every bit is the same.
EXACT_UNARY: dict[str, Callable[..., Any]] = {
    **named("neg", "abs", "floor", "ceil", "trunc", "round", "frac", "sign", "relu", "square", "signbit"),
    **named("isnan", "isinf", "isfinite", "angle", "reciprocal", "nan_to_num", "deg2rad"),
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": F.leaky_relu,
    "hardshrink": F.hardshrink,
    "softsign": F.softsign,
    "decimals": lambda x: torch.round(x, decimals=2),
    "tens": lambda x: torch.round(x, decimals=-1),
    "cube": lambda x: x**3,
}
EXACT_BINARY: dict[str, Callable[..., Any]] = {
    **named("add", "sub", "mul", "div", "maximum", "minimum", "copysign", "eq", "lt"),
    "add alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub alpha": lambda x, y: torch.sub(x, y, alpha=3),
    "rsub alpha": lambda x, y: torch.rsub(x, y, alpha=0.3),
    "lerp small": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp large": lambda x, y: torch.lerp(x, y, 0.7),
    "lerp all": lambda x, y: torch.lerp(x, y, 1.0),
    "lerp tensor": lambda x, y: torch.lerp(x, y, x),
    "lerp one": lambda x, y: torch.lerp(x, y, y[0, 3]),
    "addcmul": lambda x, y: torch.addcmul(x, y, x),
    "addcmul value": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "addcmul minus": lambda x, y: torch.addcmul(y, x, x, value=-1),
    "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    "cross, down": lambda x, y: torch.linalg.cross(x[:3], y[-3:], dim=0),
    "cross, one with all": lambda x, y: torch.linalg.cross(x[:1, -3:], y[:, -3:]),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, x),
    "addcdiv value": lambda x, y: torch.addcdiv(x, x, y, value=-0.3),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "mse_loss_backward": lambda x, y: aten.mse_loss_backward(x, y, x, 0),
    "sigmoid_backward": aten.sigmoid_backward,
    "hardswish_backward": aten.hardswish_backward,
    "hardsigmoid_backward": aten.hardsigmoid_backward,
}
CLOSE_UNARY: dict[str, Callable[..., Any]] = {
    **named("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "sqrt", "rsqrt"),
    **named("sin", "cos", "asin", "acos"),
    **named("atan", "asinh", "acosh", "atanh"),
    "silu": F.silu,
    "elu": F.elu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
}
CLOSE_BINARY: dict[str, Callable[..., Any]] = {
    **named("hypot", "atan2", "xlogy"),
    "xlog1py": torch.special.xlog1py,
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, y, reduction="none"),
    "tanh_backward": aten.tanh_backward,
    "silu_backward": aten.silu_backward,
}
# Sums of two numbers that nearly cancel each other.
CANCELLING: dict[str, Callable[..., Any]] = {"logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2}


def differs(actual: torch.Tensor, expected: torch.Tensor, places: float) -> str:
    """What differs, if more than so many of the dtype's last places, or nothing."""
    assert actual.dtype is expected.dtype and actual.shape == expected.shape
    if not expected.is_floating_point():
        return "" if torch.equal(actual, expected) else "other truth values"
    a, e = actual.double(), expected.double()
    facts = torch.finfo(expected.dtype)
    unit = e.abs().clamp_min(facts.smallest_normal) * facts.eps
    finite = e.isfinite() & a.isfinite()
    bad = {
        "NaN": a.isnan() != e.isnan(),
        "infinity": ~finite & (a != e) & ~e.isnan() & ~a.isnan(),
        "the sign of zero": (a == 0) & (e == 0) & (actual.signbit() != expected.signbit()),
        "last places": finite & ((a - e).abs() > places * unit),
    }
    return "; ".join(f"{what}: {a[at][:3].tolist()} not {e[at][:3].tolist()}" for what, at in bad.items() if at.any())


def compared(table: dict[str, Callable[..., Any]], places: float, *args: torch.Tensor) -> dict[str, str]:
    """Of a table's functions, in one graph, those that differ from eager."""

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [function(*inputs) for function in table.values()]

    actual, expected = dynajit.compile(run, fullgraph=True)(*args), run(*args)
    found = {name: differs(a, e, places) for name, a, e in zip(table, actual, expected, strict=True)}
    return {name: what for name, what in found.items() if what}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_argument(dtype: torch.dtype) -> None:
    x = special(dtype).repeat(3)
    assert not compared(EXACT_UNARY, 0, x)
    assert not compared(CLOSE_UNARY, 4, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_two_arguments(dtype: torch.dtype) -> None:
    x = special(dtype)
    one, other = (each.contiguous() for each in torch.meshgrid(x, x, indexing="ij"))
    assert not compared(EXACT_BINARY, 0, one, other)
    assert not compared(CLOSE_BINARY, 4, one, other)
    assert not compared(CANCELLING, 256, one, other)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "var": lambda x: torch.stack([x.var(1), x.var(1, correction=0)]),
    "std": lambda x: torch.stack([x.std(1), x.std(1, correction=3)]),
    "std, down": lambda x: x.std(0),
    "var_mean": lambda x: torch.stack(torch.var_mean(x, 1)),
    "std_mean": lambda x: torch.stack(torch.std_mean(x, 1, keepdim=True)),
    "std_mean, down": lambda x: torch.stack(torch.std_mean(x, 0)),
    "aminmax": lambda x: torch.stack([*torch.aminmax(x, dim=1), *torch.aminmax(x, dim=1, keepdim=True)[0].t()]),
    "aminmax of all": lambda x: torch.stack(torch.aminmax(x)),
    "nansum": lambda x: x.nansum(1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows(dtype: torch.dtype) -> None:
    """Whole numbers, whose sums are the same in any order, and rows in which one or all are infinite or no number."""
    x = torch.arange(-20, 20).remainder(7).repeat(9, 1).to(dtype)
    x[1, 3], x[2, 39], x[3, 0], x[4, 5] = math.inf, math.inf, -math.inf, math.nan
    x[5] = math.inf
    x[6, 4], x[6, 39] = math.inf, -math.inf
    if dtype in (torch.float32, torch.bfloat16):
        x[7] *= 1e25
        x[8] *= 1e-40
    assert not compared(REDUCTIONS, 4, x)


def test_where_the_exponential_of_a_sigmoid_overflows() -> None:
    x = torch.linspace(-88.73, -88.71, 5001).repeat(2)
    assert torch.equal(dynajit.compile(torch.sigmoid)(x) == 0, torch.sigmoid(x) == 0)


def test_unlike_shapes_and_dtypes() -> None:
    x, y = torch.randn(3, 1), torch.randn(5, dtype=torch.float64)
    for name in ("hypot", "logaddexp", "logaddexp2"):
        table = {name: getattr(torch, name)}
        assert not compared(table, 4, x, y) and not compared(table, 4, x.bfloat16(), y.float())


@pytest.mark.parametrize("name", ["hypot", "logaddexp"])
def test_whole_numbers_are_as_in_eager(name: str) -> None:
    x = torch.arange(5)

    def outcome(function: Callable[..., Any]) -> Any:
        try:
            return function(x, x).tolist()
        except RuntimeError as error:
            return str(error)

    assert outcome(dynajit.compile(getattr(torch, name))) == outcome(getattr(torch, name))
