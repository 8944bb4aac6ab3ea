"""What methods of an `autograd.Function` are handed, and what they read of what the function around writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit


class Calls(torch.autograd.Function):
    """`fn(x)`, and its gradient by `fn` again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fn: Callable[..., Tensor]) -> Tensor:
        ctx.fn = fn
        ctx.save_for_backward(x)
        return fn(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * ctx.fn(x), None


class Again(torch.autograd.Function):
    """As reentrant checkpointing: forward again in backward."""

    @staticmethod
    def forward(ctx: Any, fn: Callable[..., Tensor], x: Tensor) -> Tensor:
        ctx.fn = fn
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            ctx.result = fn(inner)
        ctx.save_for_backward(inner)
        return ctx.result.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return None, torch.autograd.grad(ctx.result, ctx.saved_tensors, gradient)[0]


def apply(x: Tensor, fn: Any) -> Tensor:
    return Calls.apply(x.sin(), fn)  # type: ignore[no-any-return, no-untyped-call]


def a_constant(x: Tensor) -> Tensor:
    k = 3.0
    return apply(x, lambda t: t * k)


def a_tensor(x: Tensor) -> Tensor:
    w = x.detach() * 2
    return apply(x, lambda t: t * w) * w


def a_tensor_written_later(x: Tensor) -> Tensor:
    w = torch.full((3,), 2.0)
    y = apply(x, lambda t: t * w)
    w.mul_(10)
    return y + w


def a_size(x: Tensor) -> Tensor:
    n = x.shape[0]
    return apply(x, lambda t: t * n)


def a_function_in_it(x: Tensor) -> Tensor:
    w = x.detach() + 1
    return apply(x, lambda t: (lambda u: u * w)(t) + w)


def defaults(x: Tensor) -> Tensor:
    return sum(apply(x, lambda t, k=k: t * k) for k in (1.0, 2.0, 3.0))  # type: ignore[return-value]


def a_partial(x: Tensor) -> Tensor:
    def scaled(t: Tensor, *, by: float = 2.5, other: Any = None) -> Tensor:
        return t * by + other

    return apply(x, functools.partial(scaled, other=x.detach()))


def forward_again(x: Tensor) -> Tensor:
    def body(t: Tensor) -> Tensor:
        return (t * 2).sin()

    return Again.apply(body, x) * x  # type: ignore[no-any-return, no-untyped-call]


def bound_later(x: Tensor) -> Tensor:
    k = 3.0
    y = apply(x, lambda t: t * k)
    k = 5.0
    return y * k


def bound_by_a_loop(x: Tensor) -> Tensor:
    found = []
    for k in (1.0, 2.0, 3.0):
        found.append(apply(x, lambda t: t * k))  # noqa: B023 - that is what is tried
    return sum(found)  # type: ignore[return-value]


def a_list_written_later(x: Tensor) -> Tensor:
    found = [2.0]
    y = apply(x, lambda t: t * found[0])
    found[0] = 7.0
    return y


def itself(x: Tensor) -> Tensor:
    def first(t: Tensor) -> Tensor:
        return t if t.dim() == 1 else first(t[0])

    return apply(x, first)


def counts(x: Tensor) -> Tensor:
    count = 0

    def counted(t: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return t * 2

    return apply(x, counted) * count


WHOLE = [a_constant, a_tensor, a_tensor_written_later, a_size, a_function_in_it, defaults, a_partial, forward_again]
BROKEN = [bound_later, bound_by_a_loop, a_list_written_later, itself, counts]


class Settings:
    factor = 3.0


SETTINGS, LISTED, NAMED, SCALE = Settings(), [3.0], {"factor": 3.0}, 3.0


def factor() -> float:
    return SETTINGS.factor


class Reads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * factor() * LISTED[0] * NAMED["factor"] * SCALE

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return gradient * factor() * LISTED[0] * NAMED["factor"] * SCALE


def read(x: Tensor) -> Tensor:
    return Reads.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def attribute_before(x: Tensor) -> Tensor:
    SETTINGS.factor = 5.0
    return read(x)


def attribute_before_and_back(x: Tensor) -> Tensor:
    SETTINGS.factor = 5.0
    y = read(x)
    SETTINGS.factor = 3.0
    return y


def attribute_after(x: Tensor) -> Tensor:
    y = read(x)
    SETTINGS.factor = 9.0
    return y


def class_attribute(x: Tensor) -> Tensor:
    Settings.factor = 8.0
    return read(x)


def item_of_a_list(x: Tensor) -> Tensor:
    LISTED[0] = 5.0
    return read(x)


def item_of_a_dict(x: Tensor) -> Tensor:
    NAMED["factor"] = 5.0
    return read(x)


def a_global(x: Tensor) -> Tensor:
    global SCALE
    SCALE = 5.0
    return read(x)


def a_global_and_a_lambda(x: Tensor) -> Tensor:
    global SCALE
    SCALE = 4.0
    y = apply(x, lambda t: t * SCALE)
    SCALE = 3.0
    return y


WRITING = [attribute_before, attribute_before_and_back, attribute_after, class_attribute, item_of_a_list]
WRITING += [item_of_a_dict, a_global, a_global_and_a_lambda]


def trained(fn: Callable[[Tensor], Tensor], size: int) -> list[Any]:
    global SCALE
    vars(SETTINGS).clear()
    Settings.factor, LISTED[0], NAMED["factor"], SCALE = 3.0, 3.0, 3.0, 3.0
    x = torch.linspace(0.1, 1.0, size).requires_grad_()
    y = fn(x)
    y.sum().backward()
    return [y.detach(), x.grad, SETTINGS.factor, [*LISTED], {**NAMED}, SCALE]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("program", [*WHOLE, *BROKEN, *WRITING], ids=lambda program: program.__name__)
def test_results_gradients_and_what_is_left_are_eagers(program: Callable[[Tensor], Tensor], backend: str) -> None:
    compiled = dynajit.compile(program, backend=backend, fullgraph=program in WHOLE)
    for size in (3, 3) if program is a_tensor_written_later else (3, 3, 4, 5, 3):
        torch.testing.assert_close(trained(compiled, size), trained(program, size))


def test_what_others_write_does_not_matter() -> None:
    """Only what the methods name ends the graph."""

    class Counter:
        calls = 0

    counter = Counter()

    def count(x: Tensor) -> Tensor:
        counter.calls += 1
        return read(x)

    compiled = dynajit.compile(count, fullgraph=True)
    torch.testing.assert_close(trained(compiled, 3)[:2], trained(count, 3)[:2])
    assert counter.calls == 2
