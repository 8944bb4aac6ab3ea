"""Several gradients of a compiled graph at once: `is_grads_batched`, vectorized jacobians, `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.autograd.functional import hessian, jacobian

import dynajit

Compile = Callable[[Any], Any]


def _sums(x: Tensor) -> Tensor:
    return (x.sin() * x).cumsum(0)


def _two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x @ w), (x * w).sum(1)


def _written(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sin()


def _dropout(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(x, 0.5) * x


def _x(size: int = 3) -> Tensor:
    return torch.linspace(-1, 1, size).requires_grad_()


def _w() -> Tensor:
    return torch.linspace(0.1, 1, 9).reshape(3, 3).requires_grad_()


def _all_at_once(compiled: Compile) -> Any:
    x = _x()
    return grad(compiled(_sums)(x), x, torch.eye(3), is_grads_batched=True)


def _with_a_history(compiled: Compile) -> Any:
    x, w = _x(), _w()
    return grad(compiled(_two)(x, w)[0], (x, w), torch.eye(3), is_grads_batched=True, create_graph=True)


def _of_several_results(compiled: Compile) -> Any:
    x, w = _x(), _w()
    return grad(compiled(_two)(x, w), (x, w), (torch.eye(3), torch.eye(3)), is_grads_batched=True)


def _and_one_after(compiled: Compile) -> Any:
    x = _x()
    y = compiled(_sums)(x)
    first = grad(y, x, torch.eye(3), is_grads_batched=True, retain_graph=True)
    return *first, *grad(y, x, torch.ones(3))


def _twice_without_keeping(compiled: Compile) -> Any:
    x = _x()
    y = compiled(_sums)(x)
    grad(y, x, torch.eye(3), is_grads_batched=True)
    with pytest.raises(RuntimeError, match="second time"):
        grad(y, x, torch.eye(3), is_grads_batched=True)
    return x


def _jacobian(compiled: Compile) -> Any:
    return jacobian(compiled(_sums), _x().detach(), vectorize=True)  # type: ignore[no-untyped-call]


def _hessian(compiled: Compile) -> Any:
    return hessian(lambda x: compiled(_sums)(x).sum(), _x().detach(), vectorize=True)  # type: ignore[no-untyped-call]


def _vmap(compiled: Compile) -> Any:
    x = _x()
    y = compiled(_sums)(x)
    return torch.func.vmap(lambda each: grad(y, x, each, retain_graph=True)[0])(torch.eye(3))


def _vmap_in_vmap(compiled: Compile) -> Any:
    x = _x()
    y = compiled(_sums)(x)
    one = torch.func.vmap(lambda each: grad(y, x, each, retain_graph=True)[0])
    return torch.func.vmap(one)(torch.eye(3).expand(2, 3, 3))


def _of_a_written_input(compiled: Compile) -> Any:
    leaf = _x()
    return grad(compiled(_written)(leaf * 1), leaf, torch.eye(3), is_grads_batched=True)


def _of_statistics(compiled: Compile) -> Any:
    norm = torch.nn.BatchNorm1d(3)
    x = torch.linspace(-1, 1, 12).sin().reshape(4, 3).requires_grad_()
    y = compiled(norm)(x)
    return *grad(y.flatten(), x, torch.eye(12), is_grads_batched=True), norm.running_mean


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize(
    "program",
    [
        *(_all_at_once, _with_a_history, _of_several_results, _and_one_after, _twice_without_keeping, _jacobian),
        *(_hessian, _vmap, _vmap_in_vmap, _of_a_written_input, _of_statistics),
    ],
)
def test_gradients_are_eagers(program: Callable[[Compile], Any], backend: str) -> None:
    expected = program(lambda function: function)
    dynajit.reset()
    found = program(lambda function: dynajit.compile(function, backend=backend))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("vmap", [torch.func.vmap, None])
def test_random_numbers_are_those_of_the_call(vmap: Any, backend: str) -> None:
    x = torch.ones(100, requires_grad=True)
    y = dynajit.compile(_dropout, backend=backend)(x)
    if vmap is None:
        (found,) = grad(y, x, torch.eye(100), is_grads_batched=True)
    else:
        found = vmap(lambda each: grad(y, x, each, retain_graph=True)[0])(torch.eye(100))
    assert torch.equal(found.any(0), y != 0)
