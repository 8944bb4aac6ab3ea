"""Operators that give nothing, as the error checks of torch.linalg: they run once, in the half of a training graph in
which eager runs them, and the error is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import dynajit

Program = Callable[[torch.Tensor, torch.Tensor], Any]


class _SavesAnInverse(torch.autograd.Function):
    """Only the backward pass reads what forward checks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(torch.linalg.inv(a))
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient @ ctx.saved_tensors[0], None


class _InvertsInBackward(torch.autograd.Function):
    """The check depends on no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient @ torch.linalg.inv(ctx.saved_tensors[0]), None


def _steps(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.linalg.solve(x @ x.T + a, x) * 0.5 + x.sin()
        x = x - x.mean() * 0.1
    return x


def _singular_in_a_late_step(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = torch.linalg.solve(a, x) + x.sin() * 0.1 + x.mean()
        a = (a - 1).relu()  # 3, 2, 1, 0
    return x


def _unused(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    torch.linalg.inv(a)
    return x * 2


def _caught(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.linalg.inv(a) @ x
    except torch.linalg.LinAlgError:
        return x * 3


def _factored(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    factors, pivots = torch.linalg.lu_factor(a)
    return torch.linalg.lu_solve(factors, pivots, x)


def _asserts(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    torch._assert_async(a.sum() > 0.5)  # type: ignore[no-untyped-call]
    return x * a


def _checkpointed(a: torch.Tensor, x: torch.Tensor) -> Any:
    return checkpoint(lambda a, x: torch.linalg.solve(a, x).sin(), a, x, use_reentrant=False)


PROGRAMS: dict[str, Program] = {
    "steps": _steps,
    "late": _singular_in_a_late_step,
    "unused": _unused,
    "caught": _caught,
    "factored": _factored,
    "asserts": _asserts,
    "checkpointed": _checkpointed,
    "the first of two errors": lambda a, x: torch.linalg.solve(a, x) + torch.linalg.cholesky(a),
    "the other of two errors": lambda a, x: torch.linalg.cholesky(a) + torch.linalg.solve(a, x),
    "in one of two results": lambda a, x: (torch.linalg.solve(a, x), x.sin()),
    "for backward": lambda a, x: _SavesAnInverse.apply(x, a),  # type: ignore[no-untyped-call]
    "in backward": lambda a, x: _InvertsInBackward.apply(x, a),  # type: ignore[no-untyped-call]
    "in backward of one result": lambda a, x: (
        _InvertsInBackward.apply(x, a),  # type: ignore[no-untyped-call]
        x.cos(),
    ),
    "eigenvectors": lambda a, x: torch.linalg.eig(a + x)[1].abs(),
    "a power": lambda a, x: torch.linalg.matrix_power(a, -2) @ x,
}
MATRICES = torch.eye(3) * 3, torch.zeros(3, 3), torch.eye(3) * 2 + 0.1, -torch.eye(3)
#: Which of the results backward starts from, and whether it is differentiated again; None: no gradients.
BACKWARDS: dict[str, tuple[slice, bool] | None] = {
    "inference": None,
    "all": (slice(None), False),
    "first": (slice(1), False),
    "last": (slice(-1, None), False),
    "twice": (slice(None), True),
}


def _outcome(
    fn: Program, a: torch.Tensor, x: torch.Tensor, of_a: bool, backward: tuple[slice, bool] | None
) -> list[Any]:
    """What is seen of a call: results and gradients, up to the first error and its text."""
    x, a = x.clone().requires_grad_(backward is not None), a.clone().requires_grad_(of_a and backward is not None)
    seen: list[Any] = []
    try:
        made = fn(a, x)
        made = made if isinstance(made, tuple) else (made,)
        seen += [one.detach().clone() for one in made]
        if backward is not None:
            which, again = backward
            loss = sum(one.pow(2).sum() for one in made[which])
            leaves = [one for one in (x, a) if one.requires_grad]
            gradients = torch.autograd.grad(loss, leaves, create_graph=again, allow_unused=True)
            seen += gradients
            if again:
                loss = sum(one.pow(2).sum() for one in gradients if one is not None)
                seen += torch.autograd.grad(loss, [x], allow_unused=True)
    except RuntimeError as error:
        seen.append((type(error).__name__, str(error)))
    return seen


_PARTS = ("in one of two results", "in backward of one result", "eigenvectors")
CASES = [(name, backward) for name in PROGRAMS for backward in ("inference", "all")]
CASES += [(name, backward) for name in _PARTS for backward in ("first", "last", "twice")]


@pytest.mark.parametrize(("name", "backward"), CASES)
def test_errors_and_results_are_eagers(name: str, backward: str) -> None:
    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    for of_a in (False, True) if backward in ("all", "last") else (False,):
        dynajit.reset()
        compiled = dynajit.compile(PROGRAMS[name])
        for a in MATRICES:
            expected = _outcome(PROGRAMS[name], a, x, of_a, BACKWARDS[backward])
            found = _outcome(compiled, a, x, of_a, BACKWARDS[backward])
            assert [type(one) for one in found] == [type(one) for one in expected]
            for ours, theirs in zip(found, expected, strict=True):
                if isinstance(theirs, torch.Tensor):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
                else:
                    assert ours == theirs


def test_prints_once_in_the_half_where_eager_prints(capfd: pytest.CaptureFixture[str]) -> None:
    class Prints(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            torch.ops.aten._print("forward")
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            torch.ops.aten._print("backward")
            return gradient * 2

    def fn(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._print("before")
        return Prints.apply(x.sin()).cos()  # type: ignore[no-untyped-call, no-any-return]

    compiled = dynajit.compile(fn)
    told = []
    for each in (fn, compiled, compiled):
        x = torch.ones(3, requires_grad=True)
        result = each(x)
        before = capfd.readouterr().out
        result.sum().backward()
        told.append((before, capfd.readouterr().out))
    assert told[0] == told[2]
    assert told[0] == told[1]


def test_a_graph_with_checks_is_autograds_own_node() -> None:
    a = (torch.eye(3) * 2).requires_grad_()
    loss = dynajit.compile(lambda a: torch.linalg.inv(a).sum())(a)
    assert loss.grad_fn is not None and loss.grad_fn.name() == "DynajitBackward"
