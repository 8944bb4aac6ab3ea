"""Every lowering against eager: dtypes, special values, shapes, layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check, kernel_calls, plan_of

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
nan, inf = float("nan"), float("inf")


def sample(dtype: torch.dtype, *shape: int, special: bool = True) -> torch.Tensor:
    """Numbers of both signs and many sizes; for floats also infinities, NaN, zeros of both signs and what is near the
    ends of the dtype, for integers its ends."""
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        low, ends = 0 if dtype is torch.uint8 else -100, torch.iinfo(dtype)
        x = torch.randint(low, 100, shape, dtype=dtype)
        if special and x.numel() > 8:
            x.view(-1)[:6] = torch.tensor([ends.min, ends.max, ends.min + 1, ends.max - 1, 0, 1], dtype=dtype)
        return x
    x = (torch.randn(shape) * torch.exp2(torch.randint(-3, 4, shape).float())).to(dtype)
    if special and x.numel() > 20:
        largest, least = torch.finfo(dtype).max, torch.finfo(dtype).tiny / 4
        few = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 0.5, largest, -largest, largest / 2, least, -least, largest**0.51]
        x.view(-1)[: len(few)] = torch.tensor(few, dtype=torch.float64).to(dtype)
    return x


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {
        torch.float32: {"rtol": 2e-6, "atol": 1e-6},
        torch.float64: {"rtol": 1e-14, "atol": 1e-14},
        torch.bfloat16: {"rtol": 8e-3, "atol": 1e-6},
        torch.float16: {"rtol": 1e-3, "atol": 1e-6},
    }.get(dtype, {})


UNARY: dict[str, Callable[..., Any]] = {
    name: getattr(torch, name)
    for name in [
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "sigmoid",
        "neg",
        "abs",
        "floor",
        "ceil",
        "trunc",
        "round",
        "relu",
        "isnan",
        "isinf",
        "logical_not",
    ]
} | {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": F.leaky_relu,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "clamp_min": lambda x: x.clamp_min(0.25),
    "clamp_max": lambda x: x.clamp_max(0.25),
    "hardtanh": F.hardtanh,
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "pow05": lambda x: x**0.5,
    "pow_05": lambda x: x**-0.5,
    "pow_1": lambda x: x**-1,
    "pow_2": lambda x: x**-2,
    "pow25": lambda x: x**2.5,
    "pow_inf": lambda x: x ** float("inf"),
    "pow_nan": lambda x: x ** float("nan"),
    "masked_fill": lambda x: x.masked_fill(x > 0, -7.0),
    "masked_fill_tensor": lambda x: x.masked_fill(x > 0, torch.tensor(-7.0)),
    "to_int": lambda x: x.nan_to_num(0, 9, -9).to(torch.int32) + 1,
    "to_bool": lambda x: x.to(torch.bool),
    "to_double": lambda x: x.to(torch.float64) * 2,
    "to_bf16_and_back": lambda x: x.to(torch.bfloat16).to(torch.float32) + 1,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_float(name: str, dtype: torch.dtype) -> None:
    # Eager's own gelu(inf) is inf or NaN, as the length of the tensor has it.
    x = sample(dtype, 3, 57, special=not name.startswith("gelu"))
    check(UNARY[name], x, **tolerance(dtype) if name != "tan" else {"rtol": 1e-2, "atol": 1e-2})


BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "add_alpha": lambda x, y: torch.add(x, y, alpha=3),
    "sub": torch.sub,
    "rsub": lambda x, y: 2 - x + y,
    "mul": torch.mul,
    "div": torch.div,
    "div_trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "div_floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": lambda x, y: torch.pow(x.abs(), y),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "atan2": torch.atan2,
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "where": lambda x, y: torch.where(x > y, x, y),
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "clamp_tensors": lambda x, y: x.clamp(y, y + 1),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.5),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.5),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.0),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_float(name: str, dtype: torch.dtype) -> None:
    x, y = sample(dtype, 4, 50), sample(dtype, 4, 50).flip(1)
    check(BINARY[name], x, y, **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(185,), (7,), (5, 37), (), (0, 3)], ids=str)
def test_what_is_scaled_and_added_is_rounded_once(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    largest = torch.finfo(dtype).max
    for name in ("add", "sub", "rsub"):
        for a, b in ((x, y), (torch.full_like(x, largest), torch.full_like(x, -largest))):
            check(lambda a, b, name=name: getattr(torch, name)(a, b, alpha=1.3), a, b, rtol=0, atol=0)
        check(lambda a, b, name=name: getattr(torch, name)(a * 2, b[..., :1] if b.dim() else b, alpha=-7), x, y)


INTEGER: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "overflow": lambda x, y: x * x * x * x * y * y,
    "sub": torch.sub,
    "neg": lambda x, y: -x + y,
    "div": torch.div,
    "floor_divide_number": lambda x, y: x // 7 + y,
    "trunc_divide_number": lambda x, y: torch.div(x, 7, rounding_mode="trunc") + y,
    "remainder_number": lambda x, y: x % 7 + y,
    "floor_divide": lambda x, y: x // y.clamp_min(1),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "bitwise_and": torch.bitwise_and,
    "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor,
    "bitwise_not": lambda x, y: ~x + y,
    "shift": lambda x, y: (x << 2) + (y >> 1),
    "eq": torch.eq,
    "compare_float": lambda x, y: (x > 0.5) & (y < 50.5),
    "where": lambda x, y: torch.where(x > y, x, 3),
    "exp": lambda x, y: torch.exp(-x.abs() * 0.01),
    "mul_float": lambda x, y: x * 1.5 + y,
    "to_float": lambda x, y: x.float() / 3,
    "abs": lambda x, y: x.abs() + y,
    "square": lambda x, y: x**2 + y,
    "clamp": lambda x, y: x.clamp(2, 50),
    "sum": lambda x, y: (x * y).sum(1),
    "prod": lambda x, y: x.clamp(1, 2).prod(1),
    "amax": lambda x, y: x.amax(0),
    "amin": lambda x, y: (x - y).amin(1),
    "any": lambda x, y: (x > 90).any(1),
    "all": lambda x, y: (x > 0).all(1),
}


@pytest.mark.parametrize("dtype", INTS, ids=str)
@pytest.mark.parametrize("name", INTEGER)
def test_integer(name: str, dtype: torch.dtype) -> None:
    check(INTEGER[name], sample(dtype, 5, 40), sample(dtype, 5, 40))


def test_bool() -> None:
    x, y = sample(torch.bool, 5, 40), sample(torch.bool, 5, 40)
    for function in (
        torch.logical_and,
        torch.bitwise_or,
        torch.bitwise_xor,
        lambda x, y: ~x | y,
        lambda x, y: x * y,
        lambda x, y: x + y,
        lambda x, y: x.sum(1) + y.sum(),
        lambda x, y: x.float() - y.float(),
        lambda x, y: x == y,
        lambda x, y: torch.where(x, y, True),
        lambda x, y: x.any(0) & y.all(1)[:1],
    ):
        check(function, x, y)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.float32, torch.float64),
        (torch.int64, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.bool, torch.int8),
        (torch.uint8, torch.int8),
        (torch.float16, torch.bfloat16),
    ],
    ids=str,
)
def test_promotion(first: torch.dtype, second: torch.dtype) -> None:
    x, y = sample(first, 6, 30, special=False), sample(second, 6, 30, special=False)
    for a, b in ((x, y), (x, y[0, 0]), (x[0, 0], y), (x[0], y), (x, 2), (x, 2.5)):
        check(lambda a, b: a * b + a, a, b) if isinstance(b, torch.Tensor) else check(lambda a, b=b: a * b, a)
        if isinstance(b, torch.Tensor):
            check(lambda a, b: (a > b, a == b), a, b)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum1": lambda x: x.sum(1),
    "sum0": lambda x: x.sum(0),
    "sum_all": lambda x: x.sum(),
    "sum_02": lambda x: x.view(4, -1, 5).sum((0, 2)),
    "sum_keep": lambda x: x.sum(1, keepdim=True) + x,
    "mean": lambda x: x.mean(1),
    "mean0": lambda x: x.mean(0, keepdim=True) * x,
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0),
    "max_all": lambda x: x.max(),
    "min_all": lambda x: x.min(),
    "prod": lambda x: x.prod(1),
    "var": lambda x: x.var(1),
    "var_mean": lambda x: torch.var_mean(x, 1, correction=0),
    "std_all": lambda x: x.std(),
    "softmax1": lambda x: x.softmax(1),
    "softmax0": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[1],)),
    "rms_norm": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    "norm": lambda x: x.norm(dim=1),
    "transposed": lambda x: x.t().sum(1) + x.t().contiguous().sum(1),
    "argmax": lambda x: x.argmax(1),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduction(name: str, dtype: torch.dtype) -> None:
    x = sample(dtype, 12, 65, special=False)
    wide = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4, torch.float64: 1e-12}[dtype]
    check(REDUCTIONS[name], x, rtol=wide, atol=wide if dtype in (torch.bfloat16, torch.float16) else wide * 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["sum", "prod", "cumsum"])
@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16], ids=str)
def test_what_is_added_up_as_16_bits_is_rounded_first(kind: str, to: torch.dtype, dtype: torch.dtype) -> None:
    x = torch.tensor([[300000, -300000], [2049, 1], [513, 1]]).to(dtype)
    check(lambda x: (getattr(x, kind)(1, dtype=to), getattr(x, kind)(0, dtype=to)), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_one_negative_zero(dtype: torch.dtype) -> None:
    for x in (torch.full((1, 5), -0.0, dtype=dtype), torch.full((5, 1), -0.0, dtype=dtype), torch.tensor(-0.0)):
        check(lambda x: (1 / x.cumsum(0), 1 / x.cumsum(-1), 1 / x.cumprod(0), 1 / x.sum(0)), x)


@pytest.mark.parametrize("name", ["amax", "amin", "sum1", "softmax1", "max_all", "sum0", "softmax0"])
def test_reduction_of_special_values(name: str) -> None:
    check(REDUCTIONS[name], sample(torch.float32, 12, 65))


def test_masked_softmax_rows() -> None:
    x = torch.randn(7, 33)
    x[:, 20:] = -inf
    x[3] = -inf
    check(lambda x: x.softmax(1), x, kernels=1)


@pytest.mark.parametrize("n", [1, 2, 7, 8, 15, 16, 17, 31, 63, 64, 65, 100, 1000, 4095, 4097, 20000])
def test_sizes(n: int) -> None:
    x = torch.randn(3, n)
    check(lambda x: (x.sum(1), x.amax(1), x.softmax(1), x * 2 + 1), x, rtol=1e-4, atol=1e-5)
    check(lambda x: (x.sum(0), x.softmax(0)), x.t().contiguous(), rtol=1e-4, atol=1e-5)


def test_large_with_threads() -> None:
    x = torch.randn(700, 1100)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check(lambda x: (x.sum(), x.mean(), x.amax(), (x - x.mean()).pow(2).mean()), x, rtol=1e-5, atol=1e-5)
        check(lambda x: (x.sin() + 1, x.sum(0), x.softmax(-1), x.softmax(0)), x, rtol=1e-5, atol=1e-4)
    finally:
        torch.set_num_threads(threads)


def test_zero_dimensional_and_empty() -> None:
    check(lambda x: x * 2 + 1, torch.tensor(3.0))
    check(lambda x: (x.sum(), x.softmax(0), x.amax()), torch.tensor(3.0))
    check(lambda x: (x * 2, x.sum(), x.sum(0), x.view(-1) + 1), torch.randn(0, 3))
    check(lambda x: (x * 2, x.sum(1), x.mean(1)), torch.randn(3, 0))


def test_layouts() -> None:
    x, y = torch.randn(6, 40), torch.randn(40, 6)
    check(lambda x, y: x + y.t(), x, y, kernels=1, externs=0)
    check(lambda x, y: (x.t() + 1) * y, x, y)
    check(lambda x: x[:, ::2] + x[:, 1::2], x, kernels=1)
    check(lambda x: x[1] * x[2, :1], x, kernels=1)
    check(lambda x: x + 1, torch.randn(2, 5, 4, 3).to(memory_format=torch.channels_last))
    check(lambda x: x.mean((2, 3), keepdim=True) + x, torch.randn(2, 8, 4, 3).to(memory_format=torch.channels_last))
    check(lambda x: x.flip(1) + x, x)
    check(lambda x: x.view(6, 5, 8).permute(2, 0, 1).reshape(8, 30) * 2, x)
    check(lambda x: torch.cat([x, x + 1], 1) * 2, x)
    check(lambda x: (x.expand(3, 6, 40) + 1, x.unsqueeze(1).expand(6, 4, 40).sum(1)), x)
    check(lambda x: x.as_strided((3, 3), (1, 2)) + 1, x)
    check(lambda x: x.unbind(0)[2] + x.split(10, 1)[1][3, 0], x)


def test_outputs() -> None:
    x = torch.randn(4, 6)
    check(lambda x: (x + 1, x, x.t(), (x + 1).t(), 3 * x), x)
    check(lambda x: (x.clone(), x.detach(), torch.zeros(3), torch.arange(5), torch.full((2, 2), 1.5)), x)


def test_dependencies_across_extern_calls() -> None:
    x = torch.randn(20, 20)

    def function(x: torch.Tensor) -> Any:
        a = x + 1
        b = a @ a
        c = a * b  # must not go into a's kernel
        d = (c @ x).relu()
        return d + c, a.sum() + d.sum()

    check(function, x, rtol=1e-4, atol=1e-4)


def test_fusion_counts() -> None:
    x, w, b = torch.randn(32, 64), torch.randn(64), torch.randn(64)
    check(lambda x, w, b: torch.relu(x * w + b) * 0.5, x, w, b, kernels=1, externs=0)
    check(lambda x: x.softmax(1), x, kernels=1, externs=0)
    check(lambda x: x.view(4, 8, 64).softmax(-1).view(32, 64) * 2, x, kernels=1, externs=0)
    check(lambda x, w, b: F.gelu(F.layer_norm(x, (64,), w, b)) + x, x, w, b, kernels=1, externs=0, rtol=1e-4, atol=1e-5)
    plan = plan_of(lambda x, w: ((x @ x.t()).relu() + 1, (x @ x.t()).relu() + 2), x, w)
    assert kernel_calls(plan) == 2


def test_equal_kernels_are_printed_once() -> None:
    x = torch.randn(16, 16)
    plan = check(lambda x: ((x @ x).relu() @ x).relu() @ x, x, kernels=2)
    assert len(plan.kernels) == 1


def test_mutated_input() -> None:
    def function(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        p.add_(g, alpha=-0.5)
        return p * 2

    p, g = torch.randn(5, 5), torch.randn(5, 5)
    expected_p = p.clone()
    expected = function(expected_p, g)
    plan = plan_of(function, p.clone(), g)
    from dynajit.runtime import cpu

    (actual,) = cpu.build(plan)(p, g)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(p, expected_p)


def test_negative_bit_is_respected() -> None:
    z = torch.randn(4, 4, dtype=torch.complex64)
    check(lambda z: z.conj().imag + 1, z)
    y = z.conj().imag
    assert y.is_neg()
    check(lambda y: (y + 1, y.sum()), y)
