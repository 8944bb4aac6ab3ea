"""Operators that only move elements, and those made of them: in kernels, with what comes before and after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton_harness
from helpers import check, trace

from dynajit.loopir.lower_graph import lower
from dynajit.schedule.fuse import Group, fuse
from dynajit.schedule.loops import build_kernel
from dynajit.testing import assert_same

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "diag_embed": (torch.diag_embed, (3, 5)),
    "diag_embed across": (lambda x: torch.diag_embed(x, 0, 0, 2), (3, 5)),
    "diag": (lambda x: torch.ops.aten.diagonal_copy(x, 1), (4, 6)),
    "diagonal": (lambda x: x.diagonal(-1, 0, 2) + 1, (4, 3, 6)),
    "diagonal above": (lambda x: x.diagonal(2, -1, -2) + 1, (4, 3, 6)),
    "rot90": (torch.rot90, (4, 6)),
    "rot90 twice": (lambda x: torch.rot90(x, 2, (0, 2)), (4, 3, 6)),
    "rot90 back": (lambda x: torch.rot90(x, -1, (2, 0)), (4, 3, 6)),
    "rot90 around": (lambda x: torch.rot90(x, 4), (4, 6)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (2, 12, 3, 5)),
    "pixel_shuffle of one image": (lambda x: F.pixel_shuffle(x, 3), (9, 2, 2)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (2, 3, 4, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3), (2, 6, 4, 5)),
    "unfold": (lambda x: x.unfold(1, 3, 2) * 2, (4, 9)),
    "unfold all": (lambda x: x.unfold(-1, 9, 1) * 2, (4, 9)),
    "unfold parts": (lambda x: x.unfold(0, 2, 2).sum(-1), (4, 9)),
    "eye": (lambda x: x @ torch.eye(9) + torch.eye(4, 9), (4, 9)),
}
NUMBERS = ["logaddexp", "logaddexp2", "hypot", "signbit", "aminmax", "std_mean", "round", "cross"]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def sample(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 100 - 50).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if name != "eye"])
def test_cpu(name: str, dtype: torch.dtype) -> None:
    function, shape = CASES[name]
    x = sample(shape, dtype)
    check(function, x, externs=0)
    if dtype is torch.float32:
        check(lambda x: function(x * 2).abs() + 1, x, kernels=1, externs=0)
        check(function, x.transpose(0, -1).contiguous().transpose(0, -1), externs=0)


@pytest.mark.parametrize(("offset", "dims"), [(2, (0, 2)), (-1, (-1, -2))])
def test_beside_the_diagonal_is_a_call(offset: int, dims: tuple[int, int]) -> None:
    check(lambda x: torch.diag_embed(x, offset, *dims), torch.randn(3, 5), externs=1)


def test_eye() -> None:
    function, shape = CASES["eye"]
    check(function, sample(shape, torch.float32), kernels=2, externs=1)
    check(lambda x: x + torch.eye(4, dtype=torch.int64), torch.ones(4, 4), externs=0)


@pytest.mark.parametrize("name", [name for name in CASES if name != "eye"])
def test_gpu_text(name: str) -> None:
    function, shape = CASES[name]
    triton_harness.check(function, sample(shape, torch.float32), externs=0)


@pytest.mark.parametrize("name", NUMBERS)
def test_gpu_text_of_numbers(name: str) -> None:
    x, y = torch.randn(9, 50), torch.randn(9, 50)
    functions: dict[str, Callable[..., Any]] = {
        "signbit": lambda x, y: torch.signbit(x),
        "aminmax": lambda x, y: torch.aminmax(x, dim=1),
        "std_mean": lambda x, y: torch.std_mean(x * y, 1),
        "round": lambda x, y: torch.round(x + y, decimals=1),
        "cross": lambda x, y: torch.linalg.cross(x[:3], y[3:6], dim=0),
    }
    triton_harness.check(functions.get(name) or getattr(torch, name), x, y, externs=0, rtol=1e-5, atol=1e-5)


def test_an_alias_of_the_input() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part, windows = x.diagonal(1), x.unfold(0, 2, 1)
        part.add_(1)
        return part, windows, x.diagonal() * 2

    assert_same(f, torch.arange(20.0).reshape(4, 5), graphs=1, breaks=0, backend="codegen")


def test_sizes_that_vary() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.diag_embed(x), torch.rot90(x), x.unfold(1, 2, 1) + 1, x.diagonal() + 1, torch.aminmax(x)[1]

    for rows in (3, 4, 5):
        assert_same(f, torch.arange(rows * 6.0).reshape(rows, 6), breaks=0, dynamic=True, backend="codegen")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.diag_embed(x, 0, 1, 1),
        lambda x: torch.rot90(x, 1, (0, 0)),
        lambda x: F.pixel_shuffle(x[None], 3),
        lambda x: F.pixel_unshuffle(x[None], 4),
        lambda x: x.unfold(1, 10, 1),
        lambda x: x.diagonal(0, 1, 1),
        lambda x: torch.aminmax(x[:, :0]),
        lambda x: torch.eye(-1),
        lambda x: F.soft_margin_loss(x, x[:, :2]),
    ],
)
def test_refused_as_in_eager(function: Callable[..., Any]) -> None:
    assert_same(function, torch.ones(4, 6), backend="codegen")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_losses_and_their_gradients(reduction: str, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = F.soft_margin_loss(x, y, reduction=reduction) + F.mse_loss(x, y, reduction=reduction)
        return loss, *torch.autograd.grad(loss.sum(), x)

    x, y = torch.linspace(-3, 3, 40).to(dtype).requires_grad_(), torch.linspace(1, -2, 40).to(dtype)
    assert_same(f, x, y, backend="codegen")


def test_loops_run_along_what_fills_vectors() -> None:
    """Neither a block of a pixel shuffle nor a window of `fold` does."""
    for function, given in (
        (lambda x: F.pixel_shuffle(x.tanh(), 3), torch.randn(2, 18, 26, 26)),
        (lambda x: F.fold(x.tanh(), (78, 78), 3, stride=3), torch.randn(2, 18, 676)),
    ):
        check(function, given, kernels=1, externs=0)
        program = lower(trace(function, given), "test")
        schedule = fuse(program)
        (group,) = schedule.units
        assert isinstance(group, Group)
        assert [axis.size for axis in build_kernel(group, schedule.inlined).inner] == [26]
