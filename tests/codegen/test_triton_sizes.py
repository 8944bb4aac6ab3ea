"""Kernels for GPUs that take sizes as arguments: one plan for all sizes, under Triton's interpreter and through its
compiler for sm_90."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="kernels for GPUs are Triton's")

from triton_harness import GPU, compile_all, moved, plan_of, plan_of_any_size, run

import dynajit
from dynajit.aot import compile_joint, decompositions
from dynajit.codegen.generate import generate
from dynajit.codegen.plan import ExternStep, KernelStep, SizeStep
from dynajit.codegen.triton import sizes
from dynajit.loopir.size import Size, SizeSymbol
from dynajit.runtime.plan_sizes import TooLarge

F = torch.nn.functional
randn = torch.randn


def rows(n: int) -> tuple[Any, ...]:
    return (randn(n, 24),)


def square(n: int) -> tuple[Any, ...]:
    return (randn(n, n + 5),)


def two(n: int) -> tuple[Any, ...]:
    return randn(n, 2 * n + 1), randn(2 * n + 1)


def deep(n: int) -> tuple[Any, ...]:
    return (randn(3, n, 2, n + 2),)


def places(n: int) -> tuple[Any, ...]:
    return randn(n + 1, 24), torch.randint(0, n + 1, (2 * n,))


# function, arguments for a size
FUNCTIONS: dict[str, Any] = {
    "pointwise": (lambda x: torch.relu(x * 2 + 1) * x, square),
    "broadcast": (lambda x, y: x * y + y.exp(), two),
    "transposed": (lambda x: (x.t() * 2).contiguous() + 1, square),
    "in the middle": (lambda x: x.transpose(1, 3).contiguous() * 2, deep),
    "parts": (lambda x: x[1:, :-1] * 2 + x[:-1, 1:], square),
    "row sum": (lambda x: x.sum(1), square),
    "column sum": (lambda x: x.sum(0), square),
    "all": (lambda x: (x.exp().sum(), x.mean()), square),
    "greatest": (lambda x: (x.amax(1), x.amin(0)), square),
    "softmax": (lambda x: torch.softmax(x, -1), square),
    "softmax down": (lambda x: torch.softmax(x, 0), square),
    "log softmax": (lambda x: F.log_softmax(x * 2, -1), square),
    "layer norm of known rows": (lambda x: F.layer_norm(x, (24,)) * x, rows),
    "norm": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5), square),
    "variance": (lambda x: x.var(1), square),
    "running sum": (lambda x: x.cumsum(1), square),
    "size as a number": (lambda x: x * x.shape[0] + torch.arange(x.shape[1]), square),
    "gathered": (lambda x, i: x[i] * 2, places),
    "half": (lambda x: torch.softmax(x.bfloat16(), -1), square),
    "flat": (lambda x: x.reshape(-1) + 1, deep),
}
SIZES = (5, 2, 33)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_plan_for_all_sizes(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    plan = plan_of_any_size(function, *arguments(9))
    assert plan.kernels and not any(isinstance(step, ExternStep) for step in plan.steps), str(plan)
    steps = [step for step in plan.steps if isinstance(step, KernelStep)]
    assert any(kernel.sizes for kernel in plan.kernels) or any(isinstance(step.programs, str) for step in steps)
    for size in SIZES:
        inputs = arguments(size)
        expected = function(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for ours, theirs in zip(run(plan, *inputs), expected, strict=True):
            tolerance = 2e-2 if theirs.dtype is torch.bfloat16 else 1e-4
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
            assert ours.stride() == theirs.stride()
    compile_all(plan)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("end", [None, -100, -2, 4, 100])
@pytest.mark.parametrize("start", [None, -100, -3, 2, 100])
def test_slices_that_begin_or_end_outside(start: int | None, end: int | None, step: int) -> None:
    """As Python's: what is before the first element is the first, and what is behind the last is the end."""

    def function(x: torch.Tensor) -> Any:
        part = x[:, start:end:step]
        return part * 2, part.sum(1), part

    plan = plan_of_any_size(function, randn(3, 9))
    for size in (6, 9, 50):  # torch has guarded that slices end inside or outside
        x = randn(4, size)
        for ours, theirs in zip(run(plan, x), function(x), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_what_is_padded_to_a_multiple() -> None:
    """As masks are for kernels of attention: the strides are no polynomials of the sizes, and have bounds."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 16 - x.shape[1] % 16))[:, : x.shape[1]] * 2 + y

    plan = plan_of_any_size(function, randn(3, 9), randn(3, 9))
    for size in (5, 9, 33):
        x, y = randn(3, size), randn(3, size)
        torch.testing.assert_close(run(plan, x, y)[0], function(x, y))


def test_a_size_that_a_number_of_the_programs_is_too() -> None:
    """The symbol is made for the number, which may be negative; a size is not."""
    plans = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def collect(graph: torch.fx.GraphModule, given: list[Any], phase: str) -> Any:
            mode = next(x.fake_mode for x in given if isinstance(x, torch.Tensor))
            plans.append(generate(*moved(graph, given, mode), "test", GPU))
            return graph.forward

        return compile_joint(gm, inputs, collect, decompositions.for_codegen("cuda", False))

    def function(n: int, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache = torch.zeros(4, n, 8)
        cache.index_copy_(1, at, x)
        return cache.transpose(0, 1) * 2

    compiled = dynajit.compile(function, backend=backend, fullgraph=True)
    for n in (9, 11, 12):
        x, at = randn(4, 2, 8), torch.tensor([1, 3])
        torch.testing.assert_close(compiled(n, x, at), function(n, x, at))
    assert plans[-1].kernels and len(plans) == 2


def test_the_least_of_a_size() -> None:
    n, rest = Size({(SizeSymbol("s1", 2, 9),): 1}), Size({(SizeSymbol("z0", 0, 9, 15),): 1})
    assert (n + 16 - rest).least == 3 and n + 16 - rest > 0
    assert not n - rest > 0 and not n * rest > 0 and n * 15 - rest * 2 >= 0
    assert not 16 - n > 0


def test_numbers_among_the_results_of_an_operator() -> None:
    """Attention on GPUs gives its lengths back, which vary as its arguments' do."""
    with torch.library._scoped_library("dynajit_sizes", "DEF") as library:
        library.define("both(Tensor x) -> (Tensor, SymInt, SymInt)")
        library.impl("both", lambda x: (x + 1, x.shape[0], x.shape[1]), "CompositeExplicitAutograd")

        def function(x: torch.Tensor) -> Any:
            y, rows, _ = torch.ops.dynajit_sizes.both(x)
            return y * rows

        plan = plan_of_any_size(function, randn(9, 8))
        (call,) = [step for step in plan.steps if isinstance(step, ExternStep)]
        assert len(call.outputs) == 3
        x = randn(5, 3)
        torch.testing.assert_close(run(plan, x)[0], function(x))


def test_updates_of_inputs() -> None:
    def function(x: torch.Tensor, i: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.index_copy_(1, i, y)
        return x.sum(1)

    plan = plan_of_any_size(function, randn(3, 9), torch.tensor([1, 4]), randn(3, 2))
    for size in (5, 9, 40):
        x, i, y = randn(3, size), torch.tensor([3, 0]), randn(3, 2)
        theirs = x.clone()
        expected = function(theirs, i, y)
        torch.testing.assert_close(run(plan, x, i, y)[0], expected)
        torch.testing.assert_close(x, theirs)


def test_sizes_of_none_and_one() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x * 2 + y, torch.softmax(x, -1), x.sum(0)

    plan = plan_of_any_size(function, randn(9, 24), randn(24))
    for n in (0, 1, 3):
        x, y = randn(n, 24), randn(24)
        for ours, theirs in zip(run(plan, x, y), function(x, y), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_products_of_any_size_are_the_library_s() -> None:
    """What is small at hand may be large at another call; what is one row is not."""
    plan = plan_of_any_size(lambda a, b: F.relu(a @ b), randn(9, 24), randn(24, 7))
    (call,) = [step for step in plan.steps if isinstance(step, ExternStep)]
    assert call.target is torch.ops.aten.mm.default
    compile_all(plan)
    a, b = randn(50, 24), randn(24, 33)
    torch.testing.assert_close(run(plan, a, b)[0], F.relu(a @ b))
    plan = plan_of_any_size(lambda a, b: F.relu(a @ b), randn(1, 24), randn(24, 7))
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    a, b = randn(1, 24), randn(24, 33)
    torch.testing.assert_close(run(plan, a, b)[0], F.relu(a @ b))


def test_few_long_rows_are_shared() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sum(1) * 2

    def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.var_mean(x, 1)

    for fn in (function, moments):
        plan = plan_of_any_size(fn, torch.ones(3, 50_000))
        assert len(plan.kernels) == 2
        for shape in ((3, 50_000), (2, 70_001), (40, 11)):
            x = torch.randint(-9, 9, shape).float()
            actual, expected = run(plan, x), fn(x)
            torch.testing.assert_close(actual, expected if fn is moments else (expected,))
        compile_all(plan)


def test_more_than_32_bits_are_refused() -> None:
    plan = plan_of_any_size(lambda x, y: x + y, randn(9, 1), randn(1, 7))
    x, y = torch.zeros(1 << 20, 1), torch.zeros(1, 1 << 11)
    with pytest.raises(TooLarge):
        run(plan, x, y)
    plan = plan_of_any_size(lambda x: x * 2, randn(9))
    (limit,) = [step.source for step in plan.steps if isinstance(step, SizeStep) and step.symbol == "small0"]
    assert str(sizes.LIMIT) in limit


def test_what_is_divided_counts() -> None:
    """Every second element of a turned matrix: its number among all of them is divided by the length of a row."""
    function = lambda x: x.t().reshape(-1)[::2] + 1  # noqa: E731
    plan = plan_of_any_size(function, randn(9, 8))
    (limit,) = [step.source for step in plan.steps if isinstance(step, SizeStep) and step.symbol == "small0"]
    assert "(2*z0 + -2)" in limit
    x = randn(5, 3)
    torch.testing.assert_close(run(plan, x)[0], function(x))


def test_known_sizes_are_no_arguments() -> None:
    plan = plan_of(lambda x: x * 2, randn(9, 8))
    assert not any(kernel.sizes for kernel in plan.kernels)
    assert all(isinstance(step.programs, int) for step in plan.steps if isinstance(step, KernelStep))


def test_texts() -> None:
    symbol, other = (Size({(SizeSymbol(name, 2, 9),): 1}) for name in ("s1", "s10"))
    assert sizes.text(symbol * other + 3) == "(size_s1*size_s10 + 3)"
    assert sizes.plan_text(sizes.text(symbol * other + 3)) == "(s1*s10 + 3)"
    assert sizes.arguments("s1 + size_s10 * size_s1") == ("s1", "s10")
    assert sizes.blocks(symbol * 64, 32) == "(2*size_s1)"
    assert sizes.blocks(symbol, 32) == "((size_s1 + 31) // 32)"
    assert (sizes.product([2, 3]), sizes.product([1, "n"]), sizes.product([2, "n"])) == (6, "n", "n * 2")
