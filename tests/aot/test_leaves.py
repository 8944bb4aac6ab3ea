"""Leaves of the autograd graph that a program makes inside: every factory with `requires_grad=True`, parameters, and
tensors that are told so later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynajit
from dynajit.testing import assert_same

BACKENDS = ("eager", "aot_eager", "codegen")

# What each factory is called with. Those of torch that take `requires_grad` and aren't here fail the test.
GIVEN: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    **dict.fromkeys(("empty", "ones", "zeros", "rand", "randn"), lambda x: (3,)),
    **dict.fromkeys(("ones_like", "zeros_like", "rand_like", "randn_like", "empty_like"), lambda x: (x,)),
    **dict.fromkeys(("linspace", "logspace"), lambda x: (0, 1, 3)),
    **dict.fromkeys(("arange", "eye"), lambda x: (3,)),
    **{f"{name}_window": lambda x: (3,) for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")},
    "range": lambda x: (0, 2),
    "tensor": lambda x: ([1.0, 2.0, 3.0],),
    "full": lambda x: ((3,), 0.5),
    "full_like": lambda x: (x, 0.5),
    "empty_strided": lambda x: ((3,), (1,)),
    "empty_permuted": lambda x: ((3,), (0,)),
    "randint": lambda x: (5, (3,)),
    "randint_like": lambda x: (x, 5),
    "randperm": lambda x: (3,),
    "asarray": lambda x: (x.detach().clone(),),
}
# sparse tensors, tensors of memory of others, files: no graph holds them
OTHERS = {"from_file", "frombuffer", "nested_tensor", "as_nested_tensor"}
METHODS = {
    **dict.fromkeys(("new_ones", "new_zeros", "new_empty"), ((3,),)),
    "new_full": ((3,), 0.5),
    "new_tensor": ([1.0, 2.0, 3.0],),
    "new_empty_strided": ((3,), (1,)),
}


def _factories() -> list[str]:
    found = []
    for name in dir(torch):
        text = str(getattr(getattr(torch, name), "__doc__", ""))
        if not name.startswith("_") and callable(getattr(torch, name)) and "requires_grad (bool" in text:
            found.append(name)
    return [name for name in found if not name.startswith("sparse_") and name not in OTHERS]


def _of_factory(name: str) -> Callable[..., Any]:
    def program(x: Tensor) -> Any:
        made = getattr(torch, name)(*GIVEN[name](x), dtype=torch.float32, requires_grad=True)
        made.data.fill_(0.5)  # some are uninitialised
        return made * x, made

    return program


def _of_method(name: str) -> Callable[..., Any]:
    def program(x: Tensor) -> Any:
        made = getattr(x, name)(*METHODS[name], requires_grad=True)
        made.data.fill_(0.5)
        return made * x, made

    return program


def _under_no_grad(x: Tensor) -> Any:
    with torch.no_grad():
        w = torch.ones(3, requires_grad=True)
    return w * x, w.is_leaf, w.requires_grad


def _parameter(x: Tensor) -> Any:
    w = torch.nn.Parameter(x.detach() + 1)
    return w * x, w


def _told_later(x: Tensor) -> Any:
    w = x.detach().clone().requires_grad_()
    return w * x, w


def _attribute(x: Tensor) -> Any:
    w = torch.ones(3)
    w.requires_grad = True
    return w * x, w


def _no_more_at_the_end(x: Tensor) -> Any:
    w = torch.ones(3, requires_grad=True)
    y = w * x
    w.requires_grad_(False)
    return y, w


def _backward_inside(x: Tensor) -> Any:
    w = torch.ones(3, requires_grad=True)
    (w * x.detach()).sum().backward()
    return w.grad


def _grad_inside(x: Tensor) -> Any:
    w = torch.full((3,), 0.5, requires_grad=True)
    (found,) = torch.autograd.grad((w * w * x).sum(), w, create_graph=True)
    return found, found.sum()


def _module_made_inside(x: Tensor) -> Any:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    loss = layer(x).sum()
    loss.backward()
    return layer.weight.grad, loss.detach()


def _over_a_break(x: Tensor) -> Any:
    w = torch.ones(3, requires_grad=True)
    y = w * x
    dynajit.graph_break()
    (y * w).sum().backward()
    return w.grad, w


PROGRAMS = (
    *(_under_no_grad, _parameter, _told_later, _attribute, _no_more_at_the_end, _backward_inside, _grad_inside),
    *(_module_made_inside, _over_a_break),
)


def _check(program: Callable[..., Any], backend: str) -> None:
    for grad in (False, True):
        assert_same(program, torch.rand(3).requires_grad_(grad), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", _factories())
def test_factory(name: str, backend: str) -> None:
    _check(_of_factory(name), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", METHODS)
def test_method(name: str, backend: str) -> None:
    _check(_of_method(name), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.lstrip("_"))
def test_program(program: Callable[..., Any], backend: str) -> None:
    _check(program, backend)


def test_leaves_have_their_gradients_under_inductor(capfd: pytest.CaptureFixture[str]) -> None:
    compiled = dynajit.compile(lambda: torch.ones(2, requires_grad=True) * 2, backend="inductor")
    assert compiled().requires_grad
