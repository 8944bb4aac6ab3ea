"""Assignments to `.grad` that torch refuses: they raise where they are, inside of the handlers around them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

import dynajit
from dynajit.testing import assert_same

_GIVEN: dict[str, Callable[[Tensor], Any]] = {
    "a number": lambda x: 0,
    "another shape": lambda x: torch.ones(3),
    "another dtype": lambda x: torch.ones(2, dtype=torch.int64),
    "itself": lambda x: x,
    "None": lambda x: None,
    "its like": lambda x: x * 2,
    "a view of another": lambda x: torch.ones(3)[1:],
}


class _Noting(contextlib.AbstractContextManager[None]):
    """Keeps what is raised, as a test's `assertRaises` does."""

    @dynajit.disable
    def __enter__(self) -> None:
        return None

    @dynajit.disable
    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        return error is not None


@pytest.mark.parametrize("name", _GIVEN)
def test_in_a_context_that_is_not_traced(name: str) -> None:
    def program(x: Tensor) -> Tensor | None:
        with _Noting():
            x.grad = _GIVEN[name](x)
            x.add_(1)
        return x.grad

    assert_same(program, torch.ones(2))


@pytest.mark.parametrize("name", _GIVEN)
def test_of_what_is_made_inside(name: str) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor | None]:
        y = x * 2
        try:
            y.grad = _GIVEN[name](y)
        except (TypeError, RuntimeError):
            y.add_(1)
        return y.clone(), y.grad

    assert_same(program, torch.ones(2))


class _Viewed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@pytest.mark.filterwarnings("error:dynajit failed")
@pytest.mark.parametrize("read", [lambda v: v.grad_fn, lambda v: v.is_leaf, lambda v: v.sum(), lambda v: v])
def test_a_history_that_a_write_has_made_ambiguous(read: Callable[[Tensor], Any]) -> None:
    def program(x: Tensor) -> str:
        y = x * 1
        view = _Viewed.apply(y)  # type: ignore[no-untyped-call]
        y.add_(1)
        try:
            read(view).detach()
        except RuntimeError as error:
            return str(error)
        return "nothing"

    x = torch.ones(2, requires_grad=True)
    assert dynajit.compile(program)(x) == program(x)


@pytest.mark.filterwarnings("error:dynajit failed")
def test_a_level_of_forward_mode_inside_of_another() -> None:
    def program(x: Tensor) -> tuple[str, Tensor]:
        with forward_ad.dual_level():  # type: ignore[no-untyped-call]
            try:
                with forward_ad.dual_level():  # type: ignore[no-untyped-call]
                    pass
            except RuntimeError as error:
                dual = forward_ad.make_dual(x, x)  # type: ignore[no-untyped-call]
                return str(error), forward_ad.unpack_dual(dual * 2).tangent  # type: ignore[no-untyped-call]
        return "nothing", x

    assert_same(program, torch.ones(2))
