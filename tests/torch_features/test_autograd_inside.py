"""Programs that look into autograd: what it saves, tangents from outside, gradients that nobody uses."""

from __future__ import annotations

import types
import unittest
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import dynajit

BACKENDS = ("eager", "aot_eager", "codegen")


def _tangent(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    primal, tangent = forward_ad.unpack_dual(x)
    return primal * 2, None if tangent is None else tangent * 3


def _tangent_of_a_result(x: torch.Tensor) -> torch.Tensor | None:
    return forward_ad.unpack_dual(x.sin() * 2).tangent


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [_tangent, _tangent_of_a_result])
@pytest.mark.parametrize("dual_first", [False, True])
def test_tangents_from_outside_are_unpacked(backend: str, program: Callable[..., Any], dual_first: bool) -> None:
    compiled = dynajit.compile(program, backend=backend)
    x, tangent = torch.rand(3), torch.rand(3)
    with forward_ad.dual_level():
        for is_dual in (dual_first, not dual_first, True, False):
            given = forward_ad.make_dual(x, tangent) if is_dual else x
            torch.testing.assert_close(compiled(given), program(given))


@pytest.mark.parametrize("used", [False, True])
def test_gradients_that_are_refused_are_refused_where_nobody_uses_them(used: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        loss = checkpoint(torch.exp, x, use_reentrant=True).sum()
        gradients = torch.autograd.grad(loss, (x,))
        return gradients if used else 1

    for function in (program, dynajit.compile(program, backend="eager")):
        with pytest.raises(RuntimeError, match="is incompatible with"):
            function(torch.ones(2, requires_grad=True))


def test_hooks_unpack_what_is_saved_once_for_each_reading() -> None:
    unpacked: list[int] = []

    def unpack(saved: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return saved

    def program(result: torch.Tensor) -> torch.Tensor:
        return result.grad_fn._saved_result * 2  # type: ignore[union-attr]

    with saved_tensors_hooks(lambda saved: saved, unpack):
        result = torch.ones(2, requires_grad=True).exp()
    compiled = dynajit.compile(program, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(compiled(result), result * 2)
    assert len(unpacked) == 3


def test_detaching_leaves_views_their_base() -> None:
    def program(x: torch.Tensor) -> tuple[bool, ...]:
        y = x * 1
        view = y.narrow(0, 1, 1)
        y.detach_()
        return y.requires_grad, view.requires_grad, view.grad_fn is not None, view._base is y

    x = torch.ones(2, requires_grad=True)
    assert dynajit.compile(program, backend="eager")(x) == program(x) == (False, True, True, True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_see_what_nobody_uses(backend: str) -> None:
    packed: list[int] = []

    def pack(saved: torch.Tensor) -> torch.Tensor:
        packed.append(1)
        return saved

    def program(x: torch.Tensor) -> int:
        x.sin()
        return x.shape[0]

    with saved_tensors_hooks(pack, lambda saved: saved):
        for function in (program, dynajit.compile(program, backend=backend)):
            packed.clear()
            assert [function(torch.ones(2, requires_grad=True)) for _ in range(2)] == [2, 2]
            assert len(packed) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents_that_there_are_not_are_refused(backend: str) -> None:
    def program(x: torch.Tensor) -> int:
        torch.igamma(x, x)
        return x.shape[0]

    x = torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)
        for function in (program, dynajit.compile(program, backend=backend)):
            with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)forward AD|derivative"):
                function(dual)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_view", [False, True])
def test_inputs_with_a_history_where_warnings_are_errors(backend: str, is_view: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    x = torch.ones(3, requires_grad=True).exp()
    given = x[1:] if is_view else x
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The .grad attribute", UserWarning)
        torch.testing.assert_close(dynajit.compile(program, backend=backend)(given), program(given))


def test_gradients_that_are_batched() -> None:
    scale = dynajit.compile(lambda gradient: gradient * 3, backend="eager")

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return scale(gradient)  # type: ignore[no-any-return]

    x = torch.ones(2, requires_grad=True)
    dynajit.counters.clear()
    (found,) = torch.autograd.grad(Scaled.apply(x), x, torch.eye(2), is_grads_batched=True)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, torch.eye(2) * 3)
    assert not dynajit.counters["internal_errors"]


def test_hooks_are_refused_inside_of_hooks() -> None:
    """The line raises, and further hooks are refused from then on. What follows breaks the graph, where the state that
    was there before is put back, and made again."""
    case = unittest.TestCase()

    def program(x: torch.Tensor) -> tuple[torch.Tensor, str | None]:
        with (
            saved_tensors_hooks(lambda saved: saved, lambda saved: saved),
            case.assertRaisesRegex(RuntimeError, "not now"),
            disable_saved_tensors_hooks("not now"),
        ):
            x = x * 2
        return x * 3, torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()

    compiled = dynajit.compile(program, backend="eager")
    dynajit.counters.clear()
    for _ in range(2):
        found = []
        for function in (program, compiled):
            value, refusal = function(torch.ones(2, requires_grad=True))
            torch._C._autograd._saved_tensors_hooks_enable()
            found.append((value.tolist(), refusal))
        assert found[0] == found[1]
    assert not dynajit.counters["internal_errors"]


#: what the Function below reads
_WEIGHTS = types.SimpleNamespace(first=torch.nn.Parameter(torch.full((2,), 3.0)), second=torch.full((2,), 5.0))


class _Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: Any) -> torch.Tensor:
        ctx.save_for_backward(x, weights.second)
        return x * _WEIGHTS.first.exp() - torch.stack([weights.second, _WEIGHTS.first]).sum()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        x, saved = ctx.saved_tensors
        return gradient * x * saved, None


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_read_tensors_from_outside(backend: str) -> None:
    """In the graph; written and swapped between calls they are read as they are then."""
    compiled = dynajit.compile(
        lambda x: _Reading.apply(x.cos(), _WEIGHTS).sin(),  # type: ignore[no-untyped-call]
        backend=backend,
        fullgraph=True,
    )
    dynajit.counters.clear()
    swapped = torch.nn.Parameter(_WEIGHTS.second), _WEIGHTS.first.detach()
    for step in range(6):
        if step == 2:
            _WEIGHTS.first.data.add_(1)
        if step == 4:
            _WEIGHTS.first, _WEIGHTS.second = swapped
        x = torch.linspace(0, 1, 2).requires_grad_(step % 2 == 1)
        y = compiled(x)
        expected = _Reading.apply(x.cos(), _WEIGHTS).sin()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(y, expected)
        if step % 2:
            torch.testing.assert_close(*(torch.autograd.grad(out.sum(), x) for out in (y, expected)))
    assert dynajit.counters["frames"]["captured"] <= 2
