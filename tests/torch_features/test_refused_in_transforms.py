"""Calls inside of `torch.func`'s transforms that the transform may refuse, or that read what it wraps: as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from dynajit.testing import assert_same

_OUTER = torch.ones(3)
_ARRAY = numpy.arange(3.0)

_CALLS: dict[str, Callable[[Tensor], object]] = {
    "requires_grad_": lambda x: x.requires_grad_(),
    "requires_grad_(False)": lambda x: x.requires_grad_(False),
    "requires_grad_ of a result": lambda x: x.sin().requires_grad_(),
    "requires_grad_ of an outer tensor": lambda x: _OUTER.requires_grad_(False),
    "retain_grad": lambda x: x.sin().retain_grad(),
    "deepcopy": lambda x: copy.deepcopy(x),
    "deepcopy of an outer tensor": lambda x: x * copy.deepcopy(_OUTER),
    "numpy": lambda x: x.detach().numpy(),
    "asarray": lambda x: numpy.asarray(x.detach()),
    "numpy of an outer tensor": lambda x: _OUTER.numpy(),
    "an outer array": lambda x: x * torch.from_numpy(_ARRAY).float(),
    "an outer array's dtype": lambda x: x * (2 if _ARRAY.dtype == numpy.float64 else 3),
    "checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
    "checkpoint, reentrant": lambda x: checkpoint(torch.sin, x, use_reentrant=True),
    "a tensor of numbers": lambda x: torch.tensor([x.detach()[0], 1.0, 2.0]),
    "a list that is written": lambda x: torch._foreach_add_([x.sin()], [x]),
}

_TRANSFORMS: dict[str, Callable[[Callable[[Tensor], object], Tensor], object]] = {
    "vmap": lambda call, x: vmap(_used(call))(torch.stack([x, x + 1])),
    "grad": lambda call, x: grad(lambda x: _used(call)(x).sum())(x),
    "jvp": lambda call, x: jvp(_used(call), (x,), (x + 1,)),
}


def _used(call: Callable[[Tensor], object]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        found = call(x)
        return x.sin() * found if isinstance(found, Tensor) else x.sin()

    return function


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated", "ignore:Converting a tensor")
@pytest.mark.parametrize("transform", _TRANSFORMS)
@pytest.mark.parametrize("call", _CALLS)
def test_as_in_eager(call: str, transform: str) -> None:
    assert_same(lambda x: _TRANSFORMS[transform](_CALLS[call], x), torch.tensor([0.5, -1.0, 1.0]), backend="eager")


def test_a_tensor_of_numbers_has_no_tangent() -> None:
    def program(x: Tensor) -> object:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, x + 1)
            made = torch.tensor([dual.sum(), 1.0])
            return tuple(forward_ad.unpack_dual(made)), tuple(forward_ad.unpack_dual(made * dual.sum()))

    assert_same(program, torch.tensor([1.0, 2.0]), backend="eager")
