"""Equal operations of a joint graph are computed once; what only looks equal is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.aot.passes.equal_nodes import merge_equal

aten = torch.ops.aten


def _left(fn: Callable[..., object], target: object, *given: Tensor) -> int:
    joint = merge_equal(make_fx(fn, tracing_mode="fake")(*given))
    joint.graph.lint()
    for got, wanted in zip(joint(*(each.clone() for each in given)), fn(*given), strict=True):
        torch.testing.assert_close(got, wanted)
    return len(joint.graph.find_nodes(op="call_function", target=target))


def test_equal_operations_are_one() -> None:
    def chains(x: Tensor) -> tuple[Tensor, ...]:
        return (x.sin().cos().sum([0]) + x.sin().cos().sum([0]), x.max(0)[0] * x.max(0)[0])

    x = torch.randn(4, 3)
    assert [_left(chains, target, x) for target in (aten.sin.default, aten.sum.dim_IntList, aten.max.dim)] == [1, 1, 1]


def test_what_differs_in_a_sign_a_type_or_a_generator_is_two() -> None:
    def signs(x: Tensor) -> tuple[Tensor, ...]:
        return ((x.abs() * 0.0).reciprocal() + 1, (x.abs() * -0.0).reciprocal() + 1)

    def types(x: Tensor) -> tuple[Tensor, ...]:
        return ((x.long() + 1).sin() + 1, (x.long() + 1.0).sin() + 1)

    def random(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.rand_like(x) * 0 + torch.rand_like(x) * 0,)

    x = torch.randn(4, 3)
    assert _left(signs, aten.mul.Tensor, x) == 2
    assert _left(types, aten.add.Tensor, x) == 4
    assert _left(random, aten.rand_like.default, x) == 2


def test_results_are_two_tensors() -> None:
    assert _left(lambda x: (x.sin(), x.sin()), aten.sin.default, torch.randn(3)) == 2


def test_what_is_read_before_and_after_a_write_is_two() -> None:
    def written(x: Tensor) -> tuple[Tensor, ...]:
        before = x.sin() + 1
        x.copy_(x * 2)
        return (before, x.sin() + 1)

    given = torch.randn(3)
    joint = merge_equal(make_fx(written)(given.clone()))
    assert len(joint.graph.find_nodes(op="call_function", target=aten.sin.default)) == 2
    for got, wanted in zip(joint(given.clone()), written(given.clone()), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_training_keeps_the_signs_of_zeros(zero: float) -> None:
    def f(x: Tensor) -> Tensor:
        return (1 / (x.abs() * 0.0)).clamp(-2, 2) + 3 * (1 / (x.abs() * zero)).clamp(-2, 2) + x

    x = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(dynajit.compile(f)(x), f(x))


def test_training_imports_no_lowerings_of_inductor() -> None:
    program = (
        "import sys, torch, dynajit\n"
        "f = dynajit.compile(lambda x: (x.sin() * x.sin()).sum())\n"
        "f(torch.randn(3, requires_grad=True)).backward()\n"
        "assert 'torch._functorch.partitioners' in sys.modules\n"
        "sys.exit('torch._inductor.lowering' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
