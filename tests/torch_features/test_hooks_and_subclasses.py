"""Hooks on gradients, subclasses of tensors, arrays and generators: right beside breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dynajit
from dynajit.testing import compare

Program = Callable[..., Any]


def leaf() -> torch.Tensor:
    return torch.ones(2, 3, requires_grad=True)


def module_hook_registered_inside() -> Program:
    model, calls = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), []

    def f(x: torch.Tensor) -> Any:
        calls.append(1)
        if len(calls) == 2:
            model[0].register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
        if len(calls) == 3:
            model[0].register_forward_hook(lambda module, args, result: result * 2)
        model(x).sum().backward()
        return x.grad

    return f


def hook_of_all_modules() -> Program:
    model = nn.Linear(3, 3)

    def f(x: torch.Tensor) -> Any:
        register = nn.modules.module.register_module_full_backward_hook
        handle = register(lambda module, into, out: (into[0] * 2,))
        y = model(x)
        handle.remove()
        y.sum().backward()
        return x.grad

    return f


def module_hooks() -> Program:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[0].register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
    model[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))

    def f(x: torch.Tensor) -> Any:
        model.zero_grad()
        model(x).sum().backward()
        return x.grad, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    return f


def tensor_hooks() -> Program:
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        y.retain_grad()
        y.sin().sum().backward()
        return x.grad, y.grad, y.retains_grad

    return f


def arrays_share_memory() -> Program:
    def f(x: torch.Tensor) -> Any:
        values = x.detach().clone()
        array = values.numpy()
        values.add_(1)
        array *= 2
        return values + 1, torch.from_numpy(np.sin(array)), torch.from_numpy(array) * 2

    return f


def generators() -> Program:
    own = torch.Generator()

    def f(x: torch.Tensor) -> Any:
        own.manual_seed(3)
        torch.manual_seed(5)
        return torch.randn(3, generator=own) + x, torch.rand(2), torch.randperm(4, generator=own)

    return f


PROGRAMS = (
    module_hook_registered_inside,
    hook_of_all_modules,
    module_hooks,
    tensor_hooks,
    arrays_share_memory,
    generators,
)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_program(make: Callable[[], Program], backend: str) -> None:
    outcomes = []
    for wrap in (lambda fn: fn, dynajit.compile(backend=backend)):
        torch.manual_seed(0)
        fn = wrap(make())
        outcomes.append([fn(leaf()) for _ in range(4)])
    compare(outcomes[1], outcomes[0], exact=False)


class Noted(torch.Tensor):
    """A tensor that carries a note from operation to operation."""

    note: Any

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, Noted):
            result.note = next((arg.note for arg in args if isinstance(arg, Noted)), None)
        return result


def noted() -> Noted:
    made = torch.ones(3).as_subclass(Noted)
    made.note = "a note"
    return made


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_subclass_with_torch_function(backend: str) -> None:
    def f(x: Any, z: torch.Tensor) -> Any:
        y = torch.sin(x) + (z * 2).exp()
        return y.note, type(y) is Noted, y.as_subclass(torch.Tensor)

    compiled = dynajit.compile(f, backend=backend)
    for _ in range(2):
        compare(compiled(noted(), torch.ones(3)), f(noted(), torch.ones(3)), exact=False)
