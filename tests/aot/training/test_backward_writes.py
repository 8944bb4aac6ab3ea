"""A backward that writes what it did not make: arguments and results of forward, and the gradient it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynajit

Keep = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# what backward writes, of forward's arguments and result; None: the gradient that it is given
WRITTEN: dict[str, Keep | None] = {
    "the argument": lambda x, buffer, result: x,
    "a buffer": lambda x, buffer, result: buffer,
    "a view of a buffer": lambda x, buffer, result: buffer[1:],
    "a detached argument": lambda x, buffer, result: x.detach(),
    "the result": lambda x, buffer, result: result,
    "what forward made for it": lambda x, buffer, result: result + 1,
    "the gradient": None,
}


def function_that_writes(keep: Keep | None) -> Any:
    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
            result = x * 2
            ctx.kept = None if keep is None else keep(x, buffer, result)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            with torch.no_grad():
                (gradient if ctx.kept is None else ctx.kept).mul_(3)
            return gradient * 2, None

    return Writes


@torch.library.custom_op("backward_writes::double", mutates_args=())
def double(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    return x * 2


def _keep_buffer(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.buffer = inputs[1]


def _write_buffer(ctx: Any, gradient: torch.Tensor) -> Any:
    ctx.buffer.add_(1)
    return gradient * 2, None


double.register_fake(lambda x, buffer: torch.empty_like(x))
double.register_autograd(_write_buffer, setup_context=_keep_buffer)

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "alone": lambda call: lambda x, buffer, w: (call(x, buffer),),
    "its result read twice": lambda call: lambda x, buffer, w: (call(x, buffer) * w, buffer * 1),
    "its gradient a product's": lambda call: lambda x, buffer, w: ((call(x, buffer) * w).cumsum(0), buffer),
    "its gradient shared": lambda call: lambda x, buffer, w: ((call(x, buffer) + w) * 2, buffer),
}


def seen(program: Callable[..., Any]) -> list[torch.Tensor | int]:
    """All that two steps of training change."""
    torch.manual_seed(0)
    x, buffer, w = torch.randn(3, requires_grad=True), torch.randn(3), torch.randn(3, requires_grad=True)
    found: list[torch.Tensor | int] = []
    for _ in range(2):
        gradient = torch.full((3,), 1.5)
        results = program(x, buffer, w)
        found += [each.detach().clone() for each in results]
        results[0].backward(gradient)
        tensors = [*results, x, buffer, gradient, *(each.grad for each in (x, w) if each.grad is not None)]
        found += [each.detach().clone() for each in tensors]
        found += [x._version, buffer._version, gradient._version]
    return found


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("written", [*WRITTEN, "the buffer of an operator"])
def test_backward_writes_what_it_did_not_make(written: str, program: str) -> None:
    call = function_that_writes(WRITTEN[written]).apply if written in WRITTEN else double
    expected, actual = seen(PROGRAMS[program](call)), seen(dynajit.compile(PROGRAMS[program](call)))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=0)
