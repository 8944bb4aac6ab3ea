"""Parts of inputs that are written: the rest of the input is not copied, and everything is seen as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.loopir.lower_graph import lower
from dynajit.schedule.fuse import Group, fuse
from dynajit.testing import assert_same

torch.manual_seed(0)


def copied(x: Tensor, r: Tensor) -> Tensor:
    x[3].copy_(r * 2)
    return x[3]


def updated_twice(x: Tensor, r: Tensor) -> Tensor:
    return x[3].mul_(2).add_(r)


def part_of_a_part(x: Tensor, r: Tensor) -> Tensor:
    x[1:3, 2] = r[:2]
    x[1:3, 2] += 1
    return r.sum()


def two_that_overlap(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    x[:, 0] = r[0]
    x[0].mul_(2)
    return x[0], x[:, 0]


def exchanged(x: Tensor, r: Tensor) -> Tensor:
    t = x[0].clone()
    x[0] = x[1]
    x[1] = t
    return t


def one_from_another(x: Tensor, r: Tensor) -> Tensor:
    x[1] = x[0]
    x[2] = x[1]
    x[0] = x[2] * 2
    return r + 1


def read_between(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    x[0] = r
    y = x.sum()
    x[1] = x[0] + y
    return y, r


def value_and_part(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    x[2] = r
    return r, x[2]


def of_what_is_made_here(x: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.zeros_like(x)
    z[3] = r
    return z[3], z


def elsewhere_than_it_is_read(x: Tensor, r: Tensor) -> Tensor:
    x[0] = x[1:].sum(0)
    x[1] = x[0]
    return x[0] + x[1]


def transposed(x: Tensor, r: Tensor) -> Tensor:
    x[0].t().copy_(x[1])
    return x[0]


def a_number(x: Tensor, r: Tensor) -> Tensor:
    x[:, 1] = 3
    x[0, ::2] = x[1, ::2]
    return r * 2


def steps_and_last(x: Tensor, r: Tensor) -> Tensor:
    x[2:5:2].mul_(2)
    x[-1].copy_(r)
    return x[-1]


PROGRAMS = (
    *(copied, updated_twice, part_of_a_part, two_that_overlap, exchanged, one_from_another, read_between),
    *(value_and_part, of_what_is_made_here, elsewhere_than_it_is_read, transposed, a_number, steps_and_last),
)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64])
def test_as_in_eager(program: Callable[..., Any], dtype: torch.dtype) -> None:
    x, r = (10 * torch.randn(8, 16, 16)).to(dtype), (10 * torch.randn(16, 16)).to(dtype)
    assert_same(program, x, r, graphs=1, breaks=0, backend="codegen", rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_are_eagers(program: Callable[..., Any]) -> None:
    x, r = torch.randn(8, 16, 16), torch.randn(16, 16, requires_grad=True)
    assert_same(program, x, r, backend="codegen", rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("program", PROGRAMS)
def test_aliases_and_versions_are_eagers(program: Callable[..., Any]) -> None:
    def seen(function: Callable[..., Any]) -> list[Any]:
        x, r = torch.randn(8, 16, 16), torch.randn(16, 16)
        before = x._version
        results = function(x, r)
        tensors = [x, r, *(results if isinstance(results, tuple) else (results,))]
        starts = [t.untyped_storage().data_ptr() for t in tensors]
        return [[one == two for one in starts for two in starts], x._version > before]

    compiled = dynajit.compile(program)
    for _ in range(2):
        assert seen(compiled) == seen(program)


@pytest.mark.parametrize("program", [copied, updated_twice, part_of_a_part, exchanged])
def test_nothing_is_as_large_as_the_input(program: Callable[..., Any]) -> None:
    with torch.no_grad():
        x, r = torch.randn(8, 16, 16), torch.randn(16, 16)
        captured = make_fx(torch.func.functionalize(lambda x, r: (program(x, r) * 1,)), tracing_mode="fake")(x, r)
    units = fuse(lower(captured, "test")).units
    assert all(tensor.numel < x.numel() for unit in units if isinstance(unit, Group) for tensor in unit.stored)
