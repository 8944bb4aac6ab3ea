"""Classes derived from `autograd.Function` that a function defines for itself, as `torch.masked` does."""

# mypy: disable-error-code="no-untyped-call"

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynajit.testing import assert_same

Program = Callable[[torch.Tensor], Any]


def exponential(x: torch.Tensor) -> Any:
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * ctx.saved_tensors[0] * 2

    return Exponential.apply(x) * 3


def reads_variables(x: torch.Tensor) -> Any:
    scale, seen = x.detach().abs(), []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, power: int) -> torch.Tensor:
            seen.append(power)
            ctx.power = power
            return x * scale**power

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            return gradient * scale**ctx.power, None

    first = Scaled.apply(x, 2)
    scale = scale + 1
    return first, Scaled.apply(x, 3), seen


def derived(x: torch.Tensor) -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.factor = 5

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * ctx.factor

    class Tripled(Doubled):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 3

    return Doubled.apply(x), Tripled.apply(x), issubclass(Tripled, Doubled), Tripled.__name__


def gradient_inside(x: torch.Tensor) -> Any:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * 2 * ctx.saved_tensors[0]

    total = Square.apply(x).sum()
    return torch.autograd.grad(total, x)[0] if x.requires_grad else total


def over_a_break(x: torch.Tensor) -> Any:
    class Negated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return -x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * 7

    first = Negated.apply(x)
    print("half way")
    return first + Negated.apply(x)


def masked(x: torch.Tensor) -> Any:
    mask = x > 0
    return (
        torch.masked.sum(x, 1, mask=mask),
        torch.masked.softmax(x, 1, mask=mask),
        torch.masked.mean(x, mask=mask),
        torch.masked.amax(x, 1, mask=mask),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [exponential, derived, gradient_inside, masked])
def test_in_one_graph(program: Program, trains: bool, backend: str) -> None:
    x = torch.arange(24.0).reshape(4, 6).sub_(9).div_(8).requires_grad_(trains)
    assert_same(program, x, graphs=1, breaks=0, backend=backend)


def test_variables_of_the_function_around() -> None:
    x = torch.arange(24.0).reshape(4, 6).sub_(9).div_(8).requires_grad_()
    assert_same(reads_variables, x, never_repeats="the class is made anew at each call")


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_gradients(backend: str) -> None:
    for program in (exponential, derived, masked, over_a_break):

        def trained(x: torch.Tensor, program: Program = program) -> Any:
            results = program(x)
            parts = results if isinstance(results, tuple) else (results,)
            total = sum(part.sum() for part in parts if isinstance(part, torch.Tensor))
            total.backward()  # type: ignore[union-attr]
            return x.grad

        x = torch.arange(24.0).reshape(4, 6).sub_(9).div_(8).requires_grad_()
        assert_same(trained, x, backend=backend, never_repeats="classes that live over a break are made anew")


def test_leaves_the_function() -> None:
    def program(x: torch.Tensor) -> Any:
        class Plus(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x + 1

        found.append(Plus)
        return Plus.apply(x)

    found: list[Any] = []
    x = torch.ones(3)
    assert_same(program, x, never_repeats="the class is made anew at each call")
    assert len({id(kind) for kind in found}) == len(found)
