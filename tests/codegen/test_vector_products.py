"""Batches of products with vectors, and products of two vectors, are kernels on CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dynajit
from tests.codegen.helpers import check

CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "matrix, column": (lambda a, b: torch.bmm(a, b.unsqueeze(-1)).squeeze(-1) + 1, ((5, 7, 33), (5, 33))),
    "row, matrix": (lambda a, b: torch.bmm(b.unsqueeze(1), a).squeeze(1) * 2, ((5, 33, 70), (5, 33))),
    "wide": (lambda a, b: torch.bmm(b.unsqueeze(1), a), ((2, 3, 2100), (2, 3))),
    "long": (lambda a, b: torch.bmm(a, b.unsqueeze(-1)), ((2, 3, 9000), (2, 9000))),
    "turned matrix": (lambda a, b: torch.bmm(a.mT, b.unsqueeze(-1)).relu(), ((5, 33, 7), (5, 33))),
    "row, turned matrix": (lambda a, b: torch.bmm(b.unsqueeze(1), a.mT), ((5, 7, 33), (5, 33))),
    "one number each": (lambda a, b: torch.einsum("bi,bi->b", a, b), ((6, 50), (6, 50))),
    "outer": (lambda a, b: torch.einsum("bi,bj->bij", a, b) + 1, ((4, 9), (4, 17))),
    "outer, one": (lambda a, b: a.unsqueeze(1) @ b.unsqueeze(0), ((9,), (17,))),
    "einsum": (lambda a, b: torch.einsum("bdn,bn->bd", a, b), ((3, 12, 16), (3, 16))),
    "state of a recurrence": (
        lambda a, b: ((a * 0.9 + b[:, :, None] * b[:, None]) @ b[..., None])[..., 0],
        ((3, 20, 20), (3, 20)),
    ),
    "expanded": (lambda a, b: torch.bmm(a, b.expand(len(a), 8, 1)), ((4, 3, 8), (8, 1))),
    "added": (lambda a, b: torch.baddbmm(a[:, :, :1], a, b.unsqueeze(-1), beta=0.5, alpha=2), ((4, 6, 6), (4, 6))),
    "a layer of one input": (lambda a, b: torch.nn.functional.linear(a, b[:, :1], b[:, 1]), ((11, 1), (6, 2))),
    "nothing to add up": (lambda a, b: torch.bmm(a, b), ((3, 4, 0), (3, 0, 1))),
}


def given(name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(shape, dtype=dtype) for shape in CASES[name][1])


def close(actual: Tensor, expected: Tensor, exact: Tensor) -> None:
    assert (actual.shape, actual.stride(), actual.dtype) == (expected.shape, expected.stride(), expected.dtype)
    if actual.numel():
        errors = [float((one.double() - exact).abs().max()) for one in (actual, expected)]
        room = 16 * torch.finfo(actual.dtype).eps * float(exact.abs().max())
        assert errors[0] <= 2 * errors[1] + room


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_value(name: str, dtype: torch.dtype) -> None:
    function, _ = CASES[name]
    args = given(name, dtype)
    with torch.no_grad():
        close(dynajit.compile(function, fullgraph=True)(*args), function(*args), function(*(x.double() for x in args)))


@pytest.mark.parametrize("name", CASES)
def test_with_varying_sizes(name: str) -> None:
    function, shapes = CASES[name]
    compiled = dynajit.compile(function, fullgraph=True, dynamic=True)
    for more in (0, 1):
        args = tuple(torch.randn([size + more * (size == shapes[0][0]) for size in shape]) for shape in shapes)
        with torch.no_grad():
            close(compiled(*args), function(*args), function(*(x.double() for x in args)))


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    function, _ = CASES[name]
    args = given(name, torch.float32)
    grads = []
    for step in (function, dynajit.compile(function, fullgraph=True)):
        leaves = [x.clone().requires_grad_() for x in args]
        step(*leaves).square().sum().backward()
        grads.append([x.grad for x in leaves])
    exact = [x.double().requires_grad_() for x in args]
    function(*exact).square().sum().backward()
    for expected, actual, reference in zip(*grads, [x.grad for x in exact], strict=True):
        close(actual, expected, reference)


@pytest.mark.parametrize("name", ["matrix, column", "row, matrix", "outer", "state of a recurrence"])
def test_one_kernel(name: str) -> None:
    check(CASES[name][0], *given(name, torch.float32), kernels=1, externs=0, rtol=1e-4, atol=1e-5)


def test_bias_that_counts_nothing_may_hold_anything() -> None:
    def add(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.baddbmm(bias, a, b, beta=0)

    args = (torch.full((2, 3, 1), math.nan), torch.randn(2, 3, 4), torch.randn(2, 4, 1))
    torch.testing.assert_close(dynajit.compile(add)(*args), add(*args))


def test_what_is_no_number_stays_so() -> None:
    function = CASES["matrix, column"][0]
    a, b = given("matrix, column", torch.float32)
    a[0, 1, 2], a[1, 0, 0], b[2, 3] = math.nan, math.inf, -math.inf
    torch.testing.assert_close(dynajit.compile(function)(a, b), function(a, b), equal_nan=True)
