"""`tensor.data = other`: in the graph; the tensor keeps its identity, gradient and history, and shares memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.testing import CompileCounter, compare


def averaged(p: Tensor, q: Tensor) -> None:
    p.data = p.data * 0.9 + q.data * 0.1
    p.data = p.data + 1


def exchanged(p: Tensor, q: Tensor) -> None:
    p.data, q.data = q.data, p.data


def shared(p: Tensor, q: Tensor) -> None:
    p.data = q


def written_behind(p: Tensor, q: Tensor) -> Any:
    p.data = q
    with torch.no_grad():
        p.add_(1)
        return q * 2, p.shape, p.dtype, p.requires_grad


def used_with_gradients(p: Tensor, q: Tensor) -> Tensor:
    y = p * 2
    p.data = q.data
    return y + p * 3


def of_another_shape(p: Tensor, q: Tensor) -> Any:
    p.data = q.expand(2, 3)
    return p.shape, p.is_contiguous(), p.detach().sum(0)


def of_another_dtype(p: Tensor, q: Tensor) -> Any:
    p.data = q.double()
    return p.dtype, p.detach() * 2


def view_of_the_old_memory(p: Tensor, q: Tensor) -> Any:
    old = p.detach().view(-1)
    p.data = q.data
    old += 5
    return old, p.detach() + 0


def one_behind_the_other(p: Tensor, q: Tensor) -> None:
    q.data = q.data * 2
    p.data = q
    q.data = q.data * 3


def set_twice(p: Tensor, q: Tensor) -> Tensor:
    p.data = p.data * 0.9
    y = p.sin()
    p.data = q.detach() + 1
    return y * p


def scaled_then_used(p: Tensor, q: Tensor) -> Tensor:
    for each in (p, q):
        each.data = each.data * 2
    with torch.no_grad():
        p.mul_(3)
    return p.sin() * q + p


def written_scaled_written(p: Tensor, q: Tensor) -> Tensor:
    with torch.no_grad():
        p.add_(q)
    p.data = p.data * 2
    with torch.no_grad():
        p.add_(1)
    return p * 2


def stepped_then_averaged(p: Tensor, q: Tensor) -> None:
    """As an optimizer, and an average over processes behind it."""
    with torch.no_grad():
        torch._foreach_add_([p, q], 1.0)
        p.mul_(3)
    for each in (p, q):
        each.data = (p.data + q.data) / 2


def into_each_other(p: Tensor, q: Tensor) -> Tensor:
    p.data, q.data = q.data, p.data
    return p.sin() * q


def of_a_local(p: Tensor, q: Tensor) -> Any:
    y = p.clone()
    z = y * 3
    y.data = q.detach() * 3
    y.data.mul_(2)
    assert y.requires_grad == p.requires_grad
    return y.cos() + z


def of_a_local_that_leaves(p: Tensor, q: Tensor) -> Any:
    y = p * 1
    y.data = q.data
    return y


def of_another_shape_with_gradients(p: Tensor, q: Tensor) -> Any:
    y = (p * 1)[None]
    y.data = q.data
    return y.shape, q * 2


def kept_beside(p: Tensor, q: Tensor) -> Tensor:
    old = p.data
    p.data = p.data * 2
    return (old * q).sin()


def read_before(p: Tensor, q: Tensor) -> Tensor:
    y = p.sin() * q
    p.data = p.data * 2
    return y


def to_itself(p: Tensor, q: Tensor) -> Tensor:
    y = p.sin()
    p.data = p
    return y * p


PROGRAMS: dict[Callable[[Tensor, Tensor], Any], int] = {
    averaged: 1,
    exchanged: 1,
    shared: 1,
    written_behind: 1,
    used_with_gradients: 2,
    of_another_shape: 1,
    of_another_dtype: 1,
    view_of_the_old_memory: 1,
    one_behind_the_other: 1,
    set_twice: 3,
    stepped_then_averaged: 1,
    scaled_then_used: 1,
    written_scaled_written: 1,
    into_each_other: 2,
    to_itself: 1,
    kept_beside: 2,
    read_before: 1,
    of_a_local: 2,
    of_a_local_that_leaves: 1,
    of_another_shape_with_gradients: 1,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_data_is_set(program: Callable[[Tensor, Tensor], Any], backend: str, grad: bool) -> None:
    def run(fn: Callable[[Tensor, Tensor], Any]) -> list[Any]:
        seen: list[Any] = []
        for _ in range(2):
            p, q = torch.ones(3), torch.arange(3.0)
            if grad:
                p, q = nn.Parameter(p), nn.Parameter(q)
            elif program is kept_beside:
                q = nn.Parameter(q)
            alias = p.detach()
            result = fn(p, q)
            if isinstance(result, Tensor) and result.requires_grad:
                result.sum().backward()
            seen += [result, p, q, p.grad, q.grad, alias, type(p), p.is_leaf]
            seen += [p.data_ptr() == q.data_ptr(), p.data_ptr() == alias.data_ptr()]
        return seen

    counter = CompileCounter()
    dynajit.compile(program, backend=counter)(*(torch.ones(3, requires_grad=grad) for _ in "pq"))
    assert counter.frame_count == (PROGRAMS[program] if grad else 1)
    dynajit.reset()
    compare(run(dynajit.compile(program, backend=backend)), run(program), exact=False)


@pytest.mark.parametrize("other", [torch.ones(3, dtype=torch.int64), torch.ones(3).to_sparse(), 3.0])
def test_what_torch_refuses(other: Any) -> None:
    def f(p: Tensor, other: Any) -> None:
        p.data = other

    errors = []
    for run in (f, dynajit.compile(f, backend="eager")):
        with pytest.raises((RuntimeError, TypeError)) as error:
            run(torch.ones(3, requires_grad=True), other)
        errors.append((type(error.value), str(error.value)))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
def test_what_data_gives_is_a_tensor_of_its_own(backend: str, grad: bool) -> None:
    x = torch.ones(3, requires_grad=grad)
    data, other = dynajit.compile(lambda x: (x.data, x * 2), backend=backend)(x)
    assert data is not x and data.data_ptr() == x.data_ptr() and not data.requires_grad and other.requires_grad == grad


def then_used(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    p = nn.Parameter(torch.ones(3), requires_grad=grad)
    p.data = (x * 2).to(dtype)
    return p, (p * 3).sum()


def then_left(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    p = nn.Parameter(torch.ones(3), requires_grad=grad)
    p.data = (x * 2).to(dtype)
    return p, None


def then_a_break(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    p = nn.Parameter(torch.ones(3), requires_grad=grad)
    p.data = (x * 2).to(dtype)
    print(end="")
    return p, (p * 3).sum()


def then_set_again(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    p = nn.Parameter(torch.ones(3), requires_grad=grad)
    p.data = (x * 2).to(dtype)
    p.data = p.data[:2] + 1
    return p, (p * 3).sum()


def then_written(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    p = nn.Parameter(torch.ones(3), requires_grad=grad)
    old = p.data
    p.data = (x * 2).to(dtype)
    with torch.no_grad():
        p.mul_(2)
    old.add_(1)
    return p, (p.view(3, 1) * old).sum()


def then_another_flag(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    p = nn.Parameter(torch.ones(3), requires_grad=grad)
    p.data = (x * 2).to(dtype)
    p.requires_grad_(not grad)
    return p, (p * 3).sum()


def without_gradients(x: Tensor, dtype: torch.dtype, grad: bool) -> Any:
    with torch.no_grad():
        p = nn.Parameter(torch.ones(3), requires_grad=grad)
        p.data = (x * 2).to(dtype)
        y = p * 3
    return p, (p * y).sum()


MADE_INSIDE = [then_used, then_left, then_a_break, then_set_again, then_written, then_another_flag, without_gradients]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("program", MADE_INSIDE)
def test_of_a_parameter_made_inside(program: Callable[..., Any], backend: str, dtype: torch.dtype, grad: bool) -> None:
    def run(fn: Callable[..., Any]) -> list[Any]:
        p, y = fn(torch.arange(3.0), dtype, grad)
        if y is not None and y.requires_grad:
            y.backward()
        return [p, y, type(p), p.dtype, p.is_leaf, p.requires_grad, p.grad]

    compare(run(dynajit.compile(program, backend=backend)), run(program), exact=False)
    assert not dynajit.counters["internal_errors"]


def test_a_result_of_another_shape_leaves_with_its_history() -> None:
    def f(p: Tensor, q: Tensor) -> Any:
        y = (p * 1)[None]
        y.data = q.data
        return y, q * 2

    p, q = torch.ones(3, requires_grad=True), torch.arange(3.0)
    ours, theirs = dynajit.compile(f, backend="eager")(p, q), f(p, q)
    compare([*ours, type(ours[0].grad_fn)], [*theirs, type(theirs[0].grad_fn)])
