"""Graphs behind a break that write an input in place, with gradients: autograd hears of it, the node is our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import dynajit

BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "codegen"])


def _added(t: Tensor, y: Tensor) -> Tensor:
    t.add_(1)
    return t


def _leaky(t: Tensor, y: Tensor) -> Tensor:
    F.leaky_relu(t, 0.2, inplace=True)
    return t * y


def _exp(t: Tensor, y: Tensor) -> Tensor:
    t.exp_()
    return t.sum() + y


def _copied(t: Tensor, y: Tensor) -> Tensor:
    """What is returned has the new values, too."""
    made = y * 2
    t.copy_(made)
    return made


def _two(t: Tensor, y: Tensor) -> Tensor:
    t.mul_(y)
    t[0] = 1
    return t.sin()


def _program(write: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        t = x * 2
        dynajit.graph_break()
        return write(t, y), t

    return f


def _passes(f: Callable[..., Any], places: tuple[int, ...], created: bool) -> list[Any]:
    """What each of several backward passes gives, or the start of its error."""
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    y = torch.linspace(1, 2, 12).view(3, 4).requires_grad_()
    results, found = f(x, y), list[Any]()
    found.extend(each.detach().clone() for each in results)
    for place in places:
        try:
            grads = torch.autograd.grad(results[place].sum(), (x, y), create_graph=created, allow_unused=True)
            found.append([None if each is None else each.detach() for each in grads])
            if created and grads[0] is not None and grads[0].requires_grad:
                found.extend(torch.autograd.grad(grads[0].square().sum(), (x, y), allow_unused=True))
        except RuntimeError as error:
            found.append(str(error)[:60])
    return found


@BACKENDS
@pytest.mark.parametrize("places", [(0, 0), (1, 1), (0, 1), (1, 0)])
@pytest.mark.parametrize("write", [_added, _leaky, _exp, _copied, _two])
def test_several_backward_passes(write: Any, places: tuple[int, ...], backend: str) -> None:
    """From the result and from what was written: what was used up is, and no more."""
    f = _program(write)
    compiled = dynajit.compile(f, backend=backend)
    for _ in range(2):
        found, wanted = _passes(compiled, places, False), _passes(f, places, False)
        assert [each for each in found if isinstance(each, str)] == [each for each in wanted if isinstance(each, str)]
        assert [type(each) for each in found] == [type(each) for each in wanted]
        for one, other in zip(found, wanted, strict=True):
            if not isinstance(one, str):
                torch.testing.assert_close(one, other)


@BACKENDS
@pytest.mark.parametrize("write", [_leaky, _exp, _two])
def test_differentiated_again(write: Any, backend: str) -> None:
    f = _program(write)
    torch.testing.assert_close(_passes(dynajit.compile(f, backend=backend), (0,), True), _passes(f, (0,), True))


def test_a_write_of_what_no_graph_gave_is_differentiated_again() -> None:
    found = []
    for write in (_two, dynajit.compile(_two, backend="codegen")):
        x, y = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_(), torch.ones(3, 4, requires_grad=True)
        (grad,) = torch.autograd.grad(write(x.sin(), y).sum(), x, create_graph=True)
        found.append([grad.detach(), *torch.autograd.grad(grad.square().sum(), (x, y))])
    torch.testing.assert_close(found[1], found[0])


def test_the_word_of_a_write_too_many() -> None:
    """Of eager's operation, though another node stands there."""
    errors = []
    for f in (_program(_exp), dynajit.compile(_program(_exp), backend="codegen")):
        result, written = f(torch.ones(3, 4, requires_grad=True), torch.ones(3, 4))
        with torch.no_grad():
            written.add_(1)
        with pytest.raises(RuntimeError) as caught:
            result.sum().backward()
        errors.append(str(caught.value))
    assert errors[1] == errors[0]


def _bytes_kept(f: Callable[..., Any]) -> int:
    x, y = torch.randn(500, 500, requires_grad=True), torch.randn(500, 500, requires_grad=True)
    f(x, y)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = f(x, y)
    del kept
    return sum(event.self_cpu_memory_usage for event in seen.key_averages())


@pytest.mark.parametrize("write", [_added, _leaky, _exp, _two])
def test_what_was_written_is_not_kept(write: Any) -> None:
    """Unless eager keeps it; a mask of a byte an element may come on top."""
    f = _program(write)
    assert _bytes_kept(dynajit.compile(f, backend="codegen")) <= _bytes_kept(f) + 260_000


def test_hooks_that_come_late_are_not_called_without_a_gradient() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        t = x * 2
        dynajit.graph_break()
        t.add_(1)
        return t, y * 2  # type: ignore[return-value]

    for run in (f, dynajit.compile(f, backend="codegen")):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        result = run(x, y)[0]
        y.register_hook(lambda grad: grad * 2)
        result.sum().backward()
        assert y.grad is None and x.grad is not None


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


@BACKENDS
@pytest.mark.parametrize("read", [lambda t, made: made, lambda t, made: t * 1, lambda t, made: t * made])
def test_a_function_marks_an_input_dirty(read: Callable[[Tensor, Tensor], Tensor], backend: str) -> None:
    """AOTAutograd copied the new value into the input without a history: the Function's backward did not run."""

    def f(t: Tensor) -> Tensor:
        return read(t, _Doubled.apply(t))

    found = []
    for run in (f, dynajit.compile(f, backend=backend)):
        x = torch.arange(3.0, requires_grad=True)
        run(x * 1).sum().backward()
        found.append(x.grad)
    assert found[0].tolist() == found[1].tolist()
