"""Products of matrices as kernels, with what is done to their results: under Triton's interpreter and through its
compiler for sm_90. Which way is the fastest is a GPU's to say: here each of them is chosen once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import compile_all, plan_of, run

from dynajit.codegen.plan import AllocStep, ExternStep, GpuKernel, KernelStep, Plan
from dynajit.codegen.triton import products
from dynajit.loopir import gpu_calls, lower_matmul
from dynajit.loopir.philox import Draw
from dynajit.runtime import autotune, triton_compiler

F = torch.nn.functional


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def pixels(*shape: int) -> torch.Tensor:
    return randn(*shape).to(memory_format=torch.channels_last)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are not sums, but worth timing; tiles are small, so that there are several."""
    monkeypatch.setattr(lower_matmul, "SMALL", 0)
    monkeypatch.setattr(gpu_calls, "MANY_ROWS", 0)
    monkeypatch.setattr(gpu_calls, "NARROW", 0)
    monkeypatch.setattr(products, "LARGE", 0)
    monkeypatch.setattr(products, "MULTIPROCESSORS", 3)
    monkeypatch.setattr(products, "TOGETHER", 2)
    monkeypatch.setattr(products, "CUTS", (products.Cut(32, 32, 16, 4, 3), products.Cut(64, 16, 32, 4, 2)))


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "activation": (lambda a, b: F.gelu(a @ b), (randn(100, 48), randn(48, 72))),
    "bias": (lambda a, b, c: F.gelu(a @ b + c), (randn(64, 40), randn(40, 64), randn(64))),
    "linear, residual": (
        lambda x, w, c, y: F.relu(F.linear(x, w, c)) + y,
        (randn(70, 48), randn(56, 48), randn(56), randn(70, 56)),
    ),
    "three dimensions": (
        lambda x, w, c, y: y + F.linear(x, w, c) * 2,
        (randn(2, 35, 48), randn(56, 48), randn(56), randn(2, 35, 56)),
    ),
    "columns of the first": (lambda a, b: (a.t() @ b).sigmoid(), (randn(48, 72), randn(48, 40))),
    "another dtype": (lambda a, b: (a @ b).float() * 3, (randn(33, 16), randn(16, 24))),
    "two results": (lambda a, b: ((c := a @ b) + 1, c.abs()), (randn(33, 16), randn(16, 24))),
    "two products": (lambda a, b, c: torch.relu(a @ b) * (a @ c), (randn(33, 16), randn(16, 24), randn(16, 24))),
    "batch": (lambda a, b: torch.bmm(a, b).relu() * 2, (randn(3, 33, 48), randn(3, 48, 40))),
    "batch, columns of the second": (lambda a, b: (a @ b.mT).float().exp(), (randn(2, 40, 16), randn(2, 24, 16))),
    "batch, columns of the first": (lambda a, b: (a.mT @ b).sigmoid(), (randn(5, 48, 40), randn(5, 48, 16))),
    "batch, biases": (
        lambda c, a, b, y: F.gelu(torch.baddbmm(c, a, b)) + y,
        (randn(3, 33, 40), randn(3, 33, 48), randn(3, 48, 40), randn(3, 33, 40)),
    ),
    "batch, bias of columns": (
        lambda c, a, b: F.gelu(torch.baddbmm(c, a, b)),
        (randn(3, 1, 40), randn(3, 32, 48), randn(3, 48, 40)),
    ),
    "batch, one bias": (lambda c, a, b: torch.baddbmm(c, a, b).abs(), (randn(40), randn(3, 32, 48), randn(3, 48, 40))),
    "heads": (
        lambda q, k: (q.transpose(1, 2) @ k.permute(0, 2, 3, 1) * 0.1).tanh(),
        (randn(2, 33, 3, 16), randn(2, 40, 3, 16)),
    ),
    "groups": (
        lambda a, b, ends: F.gelu(torch._grouped_mm(a, b, offs=ends)),
        (randn(100, 48).bfloat16(), randn(4, 48, 40).bfloat16(), torch.tensor([37, 37, 96, 100], dtype=torch.int32)),
    ),
    "groups, columns of the second": (
        lambda a, b, ends, y: torch._grouped_mm(a, b.mT, offs=ends).relu() + y,
        (
            *(randn(70, 48).bfloat16(), randn(3, 56, 48).bfloat16()),
            *(torch.tensor([1, 40, 70], dtype=torch.int32), randn(70, 56).bfloat16()),
        ),
    ),
    "convolution of single pixels": (
        lambda x, w, y: F.relu(F.conv2d(x, w) * 2 + y),
        (pixels(2, 16, 7, 6), randn(24, 16, 1, 1), pixels(2, 24, 7, 6)),
    ),
    "convolution of single pixels, bias": (
        lambda x, w, c: F.relu(F.conv2d(x, w, c)),
        (pixels(2, 16, 7, 6), pixels(24, 16, 1, 1), randn(24)),
    ),
    "a part": (lambda a, b: (a[8:, 16:] @ b).relu(), (randn(40, 48), randn(32, 40))),
}


def chosen(way: int, seen: list[int] | None = None) -> Callable[[Any], int]:
    def choose(ways: Any) -> int:
        if ways[0].call is None:
            return 0
        if seen is not None:
            seen.append(len(ways))
        return way

    return choose


def calls(plan: Plan) -> tuple[int, int]:
    kernels = sum(isinstance(step, KernelStep) for step in plan.steps)
    return kernels, sum(isinstance(step, ExternStep) for step in plan.steps)


@pytest.mark.parametrize("name", CASES)
def test_in_one_kernel(name: str) -> None:
    function, args = CASES[name]
    expected = function(*args)
    seen: list[int] = []
    for way in (1, 2):
        plan = plan_of(function, *args, choose=chosen(way, seen))
        fused = [kernel for kernel in plan.kernels if "ALIGNED" in kernel.text]  # type: ignore[union-attr]
        assert seen.pop() == 3 and len(fused) == 1
        results = run(plan, *args)
        for ours, theirs in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=2e-2)
            assert ours.stride() == theirs.stride()
    # heads are gathered first, as in eager
    assert calls(plan) == (1 + (name == "heads"), int(name == "two products"))
    compile_all(plan)


@pytest.mark.parametrize("name", ["bias", "linear, residual", "convolution of single pixels"])
def test_without_timing_where_memory_binds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args = CASES[name]
    assert calls(plan_of(function, *args)) == (1, 1)  # a result of few bytes
    monkeypatch.setattr(products, "MANY_BYTES", 0)
    monkeypatch.setattr(products, "_STEPS", products.Cut(32, 16, 16, 4, 2, 2))
    monkeypatch.setattr(products, "_ONE_STEP", products.Cut(32, 16, 16, 4, 2, 2))
    plan = plan_of(function, *args)
    assert calls(plan) == (1, 0)
    torch.testing.assert_close(run(plan, *args)[0], function(*args), rtol=1e-2, atol=2e-2)
    compile_all(plan)
    monkeypatch.setattr(products, "SHORT_SUM", 8)
    assert calls(plan_of(function, *args)) == (1, 1)


def test_what_is_multiplied_is_not_stored_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs may not have read it yet."""
    monkeypatch.setattr(products, "MANY_BYTES", 0)

    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return b.add_(torch.relu(b @ a)) * 1

    def beside(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return c.add_(torch.relu(b @ a)) * 1

    a, b, c = randn(64, 64), randn(96, 64), randn(96, 64)
    for choose in (None, chosen(1)):
        assert calls(plan_of(step, a, b, choose=choose)) == (1, 1)
        assert calls(plan_of(beside, a, b, c, choose=choose)) == (1, 0)


def test_many_tensors_beside_the_result_are_read_by_a_kernel_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MANY_BYTES", 0)
    beside = [randn(70, 64) for _ in range(3)]
    for count, externs in ((2, 0), (3, 1)):
        plan = plan_of(lambda a, b, *c: sum(c, a @ b), randn(70, 48), randn(48, 64), *beside[:count])
        assert calls(plan) == (1, externs)


def test_every_way_compiles_to_be_timed() -> None:
    function, args = CASES["bias"]
    texts: list[GpuKernel] = []

    def choose(ways: Any) -> int:
        texts.extend(kernel for way in ways for kernel in autotune.kernels_of(way))
        return 0

    plan_of(function, *args, choose=choose)
    assert len(triton_compiler.compile_kernels(texts, 90)) >= 3


BEFORE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "activation": (lambda x, w: F.gelu(x) @ w, (randn(100, 48), randn(48, 72))),
    "activation, bias, activation": (
        lambda x, w, c: F.relu(F.linear(F.silu(x), w, c)),
        (randn(70, 48), randn(56, 48), randn(56)),
    ),
    "bytes": (
        lambda x, w, s: F.linear(x, w.half() * s[:, None]) + 1,
        (randn(70, 48), torch.randint(-9, 9, (56, 48), dtype=torch.int8), randn(56)),
    ),
    "gate": (lambda x, y, w: torch.tanh(x) * y @ w, (randn(40, 40), randn(40, 40), randn(40, 24))),
    "of zero one": (lambda x, w: torch.exp(x) @ w, (randn(70, 40), randn(40, 56))),  # where a tile ends
    "columns of the first": (lambda x, w: torch.exp(x).t() @ w, (randn(40, 72), randn(40, 56))),
    "dropped": (lambda x, w: F.relu(torch.native_dropout(x.exp(), 0.5, True)[0] @ w), (randn(64, 48), randn(48, 64))),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_is_multiplied_is_computed_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, args = BEFORE[name]
    monkeypatch.setattr(Draw, "__call__", lambda self: tuple(map(torch.tensor, (7, 40, 0, 0))))
    apart = plan_of(function, *args, choose=chosen(0))
    assert calls(apart)[1] == 1 and calls(apart)[0] == sum(isinstance(step, AllocStep) for step in apart.steps)
    (expected,) = run(apart, *args)
    seen: list[int] = []
    for way in (-1, -2):
        plan = plan_of(function, *args, choose=chosen(way, seen))
        assert calls(plan) == (1, 0) and seen.pop() == (5 if calls(apart)[0] == 2 else 3) and not seen
        torch.testing.assert_close(run(plan, *args)[0], expected, rtol=1e-2, atol=2e-2)
        compile_all(plan)
    if calls(apart)[0] == 2:  # what is done to the result alone
        plan = plan_of(function, *args, choose=chosen(1))
        assert calls(plan) == (2, 0)
        torch.testing.assert_close(run(plan, *args)[0], expected, rtol=1e-2, atol=2e-2)


def test_what_others_read_too_is_computed_before() -> None:
    def returned(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.gelu(x)
        return y @ w, y

    def written(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.gelu(x)
        w.mul_(2)
        x.copy_(w)
        return y @ w

    args = (randn(64, 64), randn(64, 64))
    for function in (returned, written):
        plan = plan_of(function, *args, choose=chosen(-1))
        assert any(isinstance(step, ExternStep) and "mm" in str(step.target) for step in plan.steps)
        ours = run(plan, *(arg.clone() for arg in args))
        theirs = function(*(arg.clone() for arg in args))
        torch.testing.assert_close(ours[-1], theirs[1] if function is returned else theirs, rtol=1e-2, atol=5e-2)


def test_the_library_s_way() -> None:
    function, args = CASES["bias"]
    assert calls(plan_of(function, *args, choose=chosen(0))) == (1, 1)


def test_bfloat16_compiles() -> None:
    function, args = CASES["linear, residual"]
    compile_all(plan_of(function, *(arg.bfloat16() for arg in args), choose=chosen(1)))


def test_addresses_that_tiles_are_not_copied_from() -> None:
    """Such a kernel is compiled once more, with ordinary loads; as for older GPUs."""
    function, args = CASES["bias"]
    plan = plan_of(function, *args, choose=chosen(1))
    (kernel,) = plan.kernels
    assert isinstance(kernel, GpuKernel)
    aligned, plain = (
        triton_compiler.compile_kernels([kernel], 90, [odd])[0] for odd in (frozenset[int](), frozenset({0, 1}))
    )
    assert aligned.scratch > 0 and plain.scratch == 0
    assert triton_compiler.compile_kernels([kernel], 80)[0].scratch == 0
    text = kernel.text.replace("tl.constexpr(True)", "tl.constexpr(False)")
    torch.testing.assert_close(run_text(plan, text, *args), function(*args), rtol=1e-2, atol=2e-2)


def run_text(plan: Plan, text: str, *args: torch.Tensor) -> torch.Tensor:
    """The plan, whose only kernel has another text."""
    (kernel,) = plan.kernels
    plan.kernels = (replace(kernel, text=text),)  # type: ignore[type-var]
    return run(plan, *args)[0]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda a, b: a @ b, (randn(40, 48), randn(48, 40))),  # nothing is done to the result
        (lambda a, b: (a @ b).sum(0), (randn(40, 48), randn(48, 40))),
        (lambda a, b: (a @ b).t().contiguous() + 1, (randn(40, 48), randn(48, 56))),
        (lambda a, b: (a @ b).relu(), (randn(40, 45), randn(45, 40))),  # rows do not start at multiples of 16 bytes
        (lambda a, b: (a @ b).relu(), (randn(40, 48).float(), randn(48, 40).float())),
        (lambda a, b: F.relu(c := a @ b) + c.t(), (randn(40, 48), randn(48, 40))),
        (lambda a, b: torch.bmm(a, b).transpose(0, 1).contiguous() + 1, (randn(3, 40, 48), randn(3, 48, 40))),
        (lambda a, b: torch.bmm(a, b.expand(3, 48, 40)).relu(), (randn(3, 40, 48), randn(1, 48, 40))),  # no steps of 16
        (lambda a, b: torch._grouped_mm(a, b).relu(), (randn(3, 40, 48).bfloat16(), randn(3, 48, 40).bfloat16())),
        (lambda c, a, b: torch.baddbmm(c, a, b, beta=2).relu(), (randn(3, 40, 40), randn(3, 40, 48), randn(3, 48, 40))),
    ],
)
def test_left_to_the_library(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    plan = plan_of(function, *args, choose=chosen(1))
    assert calls(plan)[1] == 1
    assert not any("ALIGNED" in kernel.text for kernel in plan.kernels)  # type: ignore[union-attr]
