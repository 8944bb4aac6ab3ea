"""Every scalar operation in every dtype is computed by vectors, and float16's vector forms give eager's bits."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import check, plan_of

import dynajit
from dynajit.codegen.plan import Plan
from dynajit.runtime import cpu, toolchain
from dynajit.testing import assert_same

nan, inf = math.nan, math.inf
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNARY = [
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "sqrt", "rsqrt", "reciprocal", "sigmoid", "neg", "abs"),
    *("floor", "ceil", "trunc", "round", "relu", "isnan", "isinf", "isposinf", "isneginf", "sign"),
]
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: lambda x, y, z, name=name: getattr(x, name)() for name in UNARY},  # type: ignore[dict-item, misc]
    "float": lambda x, y, z: x.float() * 2,
    "softplus": lambda x, y, z: F.softplus(x),
    "mish": lambda x, y, z: F.mish(x),
    "elu": lambda x, y, z: F.elu(x),
    "celu": lambda x, y, z: F.celu(x, 1.5),
    "selu": lambda x, y, z: F.selu(x),
    "gelu": lambda x, y, z: F.gelu(x),
    "softshrink": lambda x, y, z: F.softshrink(x),
    "hardswish": lambda x, y, z: F.hardswish(x),
    "nan_to_num": lambda x, y, z: x.nan_to_num(),
    "clamp": lambda x, y, z: torch.clamp(x, y, z),
    "maximum": lambda x, y, z: torch.maximum(x, y),
    "where": lambda x, y, z: torch.where(x > y, x.exp(), z),
    "pow": lambda x, y, z: torch.pow(x, y),
    "atan2": lambda x, y, z: torch.atan2(x, y),
    "chain": lambda x, y, z: (x * y + 1).clamp(-2, 2) * 0.5 - z,
    "sum": lambda x, y, z: (x * y).sum(1),
    "amax": lambda x, y, z: x.amax(1),
    "columns": lambda x, y, z: (x + y).sum(0) * 0.5,
}


def _source_of(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> str:
    """The C text of the compiled function, decompositions and all."""
    seen: list[str] = []
    build = cpu.build

    def note(plan: Plan) -> Callable[..., tuple[Any, ...]]:
        seen.append(plan.source)
        return build(plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "build", note)
        dynajit.compile(function, fullgraph=True)(*arguments)
    (source,) = seen
    return source


# AVX512-FP16 has float16 conversions of its own: gcc compiles for it on any machine
ARCHITECTURES = [(dtype, "native") for dtype in DTYPES] + [(torch.float16, "sapphirerapids")]


@pytest.mark.parametrize(("dtype", "machine"), ARCHITECTURES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_loops_become_vectors(name: str, dtype: torch.dtype, machine: str, tmp_path: Path) -> None:
    compiler = toolchain.find()
    if compiler.family != "gcc" or "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the reports are gcc's; library functions have vector forms for AVX2")
    tensors = [torch.rand(96, 512).to(dtype) for _ in range(3)]
    source = _source_of(FUNCTIONS[name], *tensors)
    file = tmp_path / "kernel.c"
    file.write_text(source)
    flags = [*compiler.flags, *([f"-march={machine}"] if machine != "native" else [])]
    if subprocess.run([*compiler.command, *flags, "-E", "-xc", "/dev/null"], capture_output=True).returncode:
        pytest.skip(f"this gcc does not know {machine}")
    command = [*compiler.command, *flags, "-fopt-info-vec", "-S", "-o", str(tmp_path / "kernel.s"), str(file)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    vectors = {int(line) for line in re.findall(r":(\d+):\d+: optimized: loop vectorized", report)}
    loops = _loops(source.splitlines())
    assert loops, source
    assert all(vectors.intersection(loop) for loop in loops), f"{report}\n{source}"


def _loops(lines: list[str]) -> list[range]:
    """The line numbers of each loop that is to become vectors."""
    found = []
    for number, line in enumerate(lines):
        if line.strip().startswith("#pragma omp simd"):
            end = lines.index(line.partition("#")[0] + "}", number)
            found.append(range(number + 1, end + 2))
    return found


# ---- float16


def _all_halves() -> torch.Tensor:
    return torch.arange(1 << 16).to(torch.int16).view(torch.float16)


def _floats() -> torch.Tensor:
    """Where rounding to float16 has its turning points, ties among them, and all over."""
    near = [torch.arange(start, start + 40_000) for start in (0x32FFF000, 0x387FB000, 0x477FB000, 0x7F7FB000)]
    ties = torch.arange(0x33000000, 0x47900000, 0x1000)
    bits = torch.cat([*near, ties, ties + 1, ties - 1, torch.arange(0, 0x7F800000, 99_991), torch.tensor([0x7FC00000])])
    return torch.cat([bits, bits - (1 << 31)]).to(torch.int32).view(torch.float32)


def _assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    kind = torch.int16 if expected.dtype is torch.float16 else torch.int32
    numbers = ~expected.isnan()
    assert actual.dtype is expected.dtype and torch.equal(actual.isnan(), ~numbers)
    assert torch.equal(actual[numbers].view(kind), expected[numbers].view(kind))


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.half(),
        lambda x: x.half().float(),
        lambda x: x.flip(0).half(),
        lambda x: (x.half() * 3, x),
        lambda x: x[:31].half(),
        lambda x: x.view(-1, 2).t().half(),
        lambda x: torch.cat([x, x]).half(),
    ],
    ids=["stored", "between", "backwards", "twice", "short", "turned", "pieces"],
)
def test_rounding_to_float16(function: Callable[..., torch.Tensor], simd: str) -> None:
    x = _floats()
    with dynajit.config.patch(simd=simd):
        actual = cpu.build(plan_of(function, x))(x)[0]
    expected = function(x)
    _assert_same_bits(actual, expected[0] if isinstance(expected, tuple) else expected)


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
@pytest.mark.parametrize(
    "function",
    [
        lambda h: h.float(),
        lambda h: h * 2,
        lambda h: h.flip(0) + 1,
        lambda h: h.view(256, 256).t() * 2,
        lambda h: h.view(256, 256).amax(1),
        lambda h: h.view(256, 256).amin(0),
        lambda h: F.pad(h, (3, 5)) + 1,
        lambda h: h[5:20] * h[9:24],
        lambda h: h[::3] * 0.5,
        lambda h: h.view(256, 256)[:, :1] * h[:256],
    ],
    ids=["widened", "product", "backwards", "turned", "rows", "columns", "padded", "short", "apart", "broadcast"],
)
def test_every_float16(function: Callable[..., torch.Tensor], simd: str) -> None:
    h = _all_halves()
    with dynajit.config.patch(simd=simd):
        (actual,) = cpu.build(plan_of(function, h))(h)
    _assert_same_bits(actual, function(h))


@pytest.mark.parametrize(
    "move",
    [lambda h: h.flip(0), lambda h: h.view(256, 256).t().contiguous(), lambda h: torch.cat([h, h[:7]]), torch.clone],
)
def test_moved_float16_keeps_its_bits(move: Callable[..., torch.Tensor]) -> None:
    h = _all_halves()
    (actual,) = cpu.build(plan_of(move, h))(h)
    numbers = ~move(h).isnan()
    assert torch.equal(actual.view(torch.int16)[numbers], move(h).view(torch.int16)[numbers])
    assert actual[~numbers].isnan().all()


def test_float16_written_in_place() -> None:
    def step(p: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        p.sub_(g * 0.5)
        return p * 2

    p, g = torch.randn(3000).half(), torch.randn(3000).half()
    expected_p = p.clone()
    expected = step(expected_p, g)
    actual = dynajit.compile(step)(p, g)
    assert torch.equal(actual, expected) and torch.equal(p, expected_p)


# ---- special values

SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, inf, -inf, nan, 1e-45, -1e-45, 3e38, -3e38, 2.5, -2.5]
SPECIAL += [16777216.0, -16777215.0, 1e10, 33554431.0, 1e-38]


def _pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)))
    return pairs[:, 0].contiguous().to(dtype), pairs[:, 1].contiguous().to(dtype)


def test_pow_of_special_values() -> None:
    """Signs, infinities and NaN as IEEE 754 has them; the numbers within a unit in the last place."""
    x, y = _pairs(torch.float32)
    (actual,) = cpu.build(plan_of(torch.pow, x, y))(x, y)
    exact = torch.pow(x.double(), y.double()).float()
    assert torch.equal(actual.isnan(), exact.isnan())
    assert torch.equal(actual.signbit()[~exact.isnan()], exact.signbit()[~exact.isnan()])
    torch.testing.assert_close(actual, exact, rtol=1.2e-7, atol=1e-45, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmod", "fmax", "fmin", "copysign"])
def test_pairs_of_special_values(name: str, dtype: torch.dtype) -> None:
    """Of two zeros eager's maximum is the first or the second, as the length of the tensor has it."""
    function, (x, y) = getattr(torch, name), _pairs(dtype)
    (actual,) = cpu.build(plan_of(function, x, y))(x, y)
    expected = function(x, y)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    numbers = ~expected.isnan() & ((x != 0) | (y != 0))
    assert torch.equal(actual.signbit()[numbers], expected.signbit()[numbers])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        torch.sign,
        torch.sgn,
        torch.frac,
        torch.isposinf,
        torch.isneginf,
        torch.relu,
        torch.nan_to_num,
        lambda x: x.clamp(0, 1),
        lambda x: x.clamp_max(-0.0),
        lambda x: x.clamp_min(nan),
    ],
)
def test_special_values(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL * 3).to(dtype)
    actual = dynajit.compile(function, fullgraph=True)(x)
    expected = function(x)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    if expected.dtype.is_floating_point:
        assert torch.equal(actual.signbit()[~expected.isnan()], expected.signbit()[~expected.isnan()])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_sign_of_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 127, 100, 3] * 9, dtype=dtype)
    x = x if dtype is torch.uint8 else torch.cat([x, -x, torch.tensor([torch.iinfo(dtype).min], dtype=dtype)])
    (actual,) = cpu.build(plan_of(torch.sign, x))(x)
    assert torch.equal(actual, x.sign()) and actual.dtype is dtype


def test_gradients_of_distances_fuse() -> None:
    """The sign that the gradient of an absolute value is multiplied with is part of the kernel."""
    x, y = torch.randn(50, 20, requires_grad=True), torch.randn(50, 20)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(((x * 2 - y).abs() * y.frac()).sum(), x)[0]

    assert_same(loss, x, backend="codegen", graphs=1)
    check(lambda x, y: (x * 2 - y).sgn() * torch.copysign(x, y) + torch.fmax(x, y).frac(), x.detach(), y, kernels=1)
    for dtype in (torch.bool, torch.complex64, torch.int32):
        assert_same(torch.sgn, torch.ones(3, dtype=dtype), backend="codegen")
    assert_same(torch.frac, torch.ones(3, dtype=torch.int32), backend="codegen")
