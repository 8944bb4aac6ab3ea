"""Functions and hooks that give gradients of nothing: they count where a gradient gets to them, as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.report.counters import counters


class Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.ones(grad.shape)


class OfWhatItKept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return ctx.saved_tensors[0].sign(), grad


class PlusOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return one + 1, other.cos() * one


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        made = torch.zeros(grad.shape)
        made.add_(grad, alpha=2)
        return made


@torch.library.custom_op("test_constant_gradients::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


twice.register_fake(lambda x: torch.empty_like(x))
twice.register_autograd(lambda ctx, grad: torch.ones(grad.shape))


def _ones(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 3, Ones.apply(x.cos() * y).sin()


def _leads(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    t = x * 3
    return t, Ones.apply(t).sin()


def _leads_as_a_view(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    t = x * 3
    return t[0], Ones.apply(t).sin()


def _parts(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a, b, _ = (x * 1).unbind(0)
    return b * a, Ones.apply(b).sin(), a * 1


def _for_several(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    t = Ones.apply(x)
    return t.sin(), t.cos(), x * 2


def _of_what_it_kept(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 3 * y, OfWhatItKept.apply(x, y).sin()


def _unused_result(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    _, z = PlusOne.apply(x, y)
    return x * y, z


def _overwritten_result(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    t, z = PlusOne.apply(x * 1, y)
    t.copy_(y)
    return x * y, z, t


def _hook(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    t = x * y
    t.register_hook(lambda grad: torch.ones(3, 3))
    return x * 3, t.sin()


def _operator(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 3, twice(x).sin()


def _layers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    first = x * 3
    for _ in range(6):
        x = Ones.apply((x @ y).relu()) + x
    return first, x


def _linear(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 3, Linear.apply(x).sin()


def _for_all(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    _, z = PlusOne.apply(x, y)
    return z.cumsum(0), x + z


def _of_one_result(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (Ones.apply(x * y).sin(),)


PROGRAMS = [_ones, _leads, _leads_as_a_view, _parts, _for_several, _of_what_it_kept, _unused_result, _hook]
PROGRAMS += [_overwritten_result, _operator, _layers, _linear, _for_all, _of_one_result]


def _gradients(f: Callable[..., tuple[Tensor, ...]], starts: tuple[int, ...]) -> list[Tensor | None]:
    torch.manual_seed(0)
    x, y = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    results = f(x, y)
    found = torch.autograd.grad([results[at].sum() for at in starts], [x, y], allow_unused=True)
    return list(found)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_each_choice_of_results(program: Callable[..., tuple[Tensor, ...]], backend: str) -> None:
    compiled = dynajit.compile(program, backend=backend)
    places = range(len(program(torch.ones(3, 3, requires_grad=True), torch.ones(3, 3))))
    for count in range(1, len(places) + 1):
        for starts in itertools.combinations(places, count):
            found, wanted = _gradients(compiled, starts), _gradients(program, starts)
            assert [each is None for each in found] == [each is None for each in wanted]
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("program", [_linear, _of_one_result])
def test_one_that_is_made_of_gradients_or_of_the_only_result_is_compiled(
    program: Callable[..., tuple[Tensor, ...]],
) -> None:
    before = counters["as_captured"].copy()
    _gradients(dynajit.compile(program, backend="aot_eager"), (0,))
    assert counters["as_captured"] == before
