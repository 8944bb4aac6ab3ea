"""What programs say to torch.compile means the same to dynajit: marks of functions, tensors, regions and steps."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint as checkpointing
from cases import BACKENDS, Cases, leaf, rand

import dynajit
from dynajit import _C
from dynajit.testing import CompileCounter, compare

cases = Cases(backward=True)
Tensor = torch.Tensor


@torch.compiler.nested_compile_region
def region(x: Tensor) -> Tensor:
    return x.sin() + 1


@cases(leaf(3))
def a_region_compiled_once(x: Tensor) -> Tensor:
    return region(region(x))


@torch._dynamo.nonstrict_trace
def loosely(x: Tensor) -> Tensor:
    return x.cos() + 1


@cases(leaf(3))
def traced_loosely(x: Tensor) -> Tensor:
    return loosely(x.sin()) + 1


@dynajit.nonstrict_trace
def one_operation(x: Tensor, scale: float) -> Tensor:
    return x.cos() * scale


@cases(leaf(3))
def one_operation_of_the_graph(x: Tensor) -> Tensor:
    return one_operation(x.sin(), 2.0) + 1


@cases(rand(3))
def a_step_begins(x: Tensor) -> Tensor:
    torch.compiler.cudagraph_mark_step_begin()
    dynajit.cudagraph_mark_step_begin()
    return x + 1


@cases(rand(3))
def a_fixed_address(x: Tensor) -> Tensor:
    torch._dynamo.mark_static_address(x)
    dynajit.mark_static_address(x)
    return x + 1


def keep_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    policy = checkpointing.CheckpointPolicy
    return policy.MUST_SAVE if op is torch.ops.aten.mm.default else policy.PREFER_RECOMPUTE


contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, keep_products)


@cases(leaf(3, 3))
def selective_checkpoint(x: Tensor) -> Any:
    def inner(t: Tensor) -> Tensor:
        return (t @ t).sin() @ t

    return checkpointing.checkpoint(inner, x, use_reentrant=False, context_fn=contexts)


@cases(leaf(3, 3))
def selective_checkpoint_by_a_list(x: Tensor) -> Any:
    def chosen() -> Any:
        return checkpointing.create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    return checkpointing.checkpoint(lambda t: (t @ t).sin(), x, use_reentrant=False, context_fn=chosen)


@cases(leaf(3, 3), graphs=None, breaks=1)
def selective_contexts_elsewhere(x: Tensor) -> Any:
    made = contexts()
    return x + len(made)


class WithFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, x: Tensor, other: Any) -> Any:
        ctx.save_for_backward(x)
        ctx.other = other
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, ctx.other(gradient) * x.cos(), None


def doubled(x: Tensor) -> Tensor:
    return x * 2


@cases(leaf(3))
def functions_as_arguments_of_apply(x: Tensor) -> Any:
    return WithFunction.apply(torch.sin, x, doubled)


@cases(leaf(3))
def derivatives_of_functions(x: Tensor) -> Any:
    functional = torch.autograd.functional
    return functional.vjp(lambda t: t.sin().sum(), x.detach()), functional.jvp(torch.sin, x.detach(), x.detach())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", cases, ids=cases.names)
def test_same_as_eager(case: Any, backend: str) -> None:
    case.check(backend)


@torch.compiler.disable
def eager_all_through(x: Tensor) -> Tensor:
    return _inside(x) * 2


@torch.compiler.disable(recursive=False)
def eager_by_itself(x: Tensor) -> Tensor:
    return _inside(x) * 2


def _inside(x: Tensor) -> Tensor:
    return x.cos()


@pytest.mark.parametrize(("function", "graphs"), [(eager_all_through, 2), (eager_by_itself, 3)])
def test_disabled_for_torch(function: Any, graphs: int) -> None:
    counter = CompileCounter()
    x = torch.ones(3)
    compiled = dynajit.compile(lambda x: function(x.sin()) + 1, backend=counter)
    compare(compiled(x), function(x.sin()) + 1)
    assert counter.frame_count == graphs


def test_a_mark_on_the_code_that_disabled_functions_share() -> None:
    _C.mark_skip(eager_all_through.__code__)
    test_disabled_for_torch(eager_all_through, 2)


def test_bounds_of_torchs_marks() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(lambda x: x.sum() * x.shape[0], backend=counter)
    x = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=10)
    for size in (4, 7, 9):
        compiled(x if size == 4 else torch.randn(size, 3))
    assert counter.frame_count == 1
    compiled(torch.randn(11, 3))
    assert counter.frame_count == 2


def test_marks_for_what_only_data_tell() -> None:
    counter = CompileCounter()
    compiled = dynajit.compile(lambda x: x.sum() * x.shape[0], backend=counter)
    x = torch.randn(4, 3)
    dynajit.mark_unbacked(x, 0)
    for each in (x, torch.randn(7, 3), torch.randn(9, 3)):
        compare(compiled(each), each.sum() * each.shape[0])
    assert counter.frame_count == 1


def test_hints_refuse_what_is_no_tensor() -> None:
    with pytest.raises(TypeError):
        dynajit.mark_static_address(3)  # type: ignore[arg-type]


def test_disabled_class_stays_a_class() -> None:
    @dynajit.disable
    class Scale:
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def __call__(self, x: Tensor) -> Tensor:
            return _inside(x) * self.factor

    assert isinstance(Scale, type)
    counter = CompileCounter()
    compare(
        dynajit.compile(lambda x: Scale(3)(x + 1) + 1, backend=counter)(torch.ones(3)),
        _inside(torch.ones(3) + 1) * 3 + 1,
    )
    assert counter.frame_count == 2
