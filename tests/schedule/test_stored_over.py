"""Kernels that store over what they read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import dynajit
from dynajit.codegen import generate
from dynajit.loopir.lower_graph import forget, lower
from dynajit.schedule.fuse import fuse


def _taken(fn: Callable[..., Any], *args: torch.Tensor, backward: bool = False) -> int:
    """How many tensors are stored over others."""
    try:
        program = lower(make_fx(fn, tracing_mode="fake")(*args), "test")
        schedule = fuse(program)
        before = len(schedule.stored_in)
        generate.store_over(program, schedule, backward=backward)
        return len(schedule.stored_in) - before
    finally:
        forget()


x, w, b = torch.randn(6, 8), torch.randn(8, 16), torch.randn(16)


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        pytest.param(lambda x, w, b: (torch.relu(x @ w + b),), 1, id="an activation of a product"),
        pytest.param(lambda x, w, b: (F.gelu(x.view(2, 3, 8) @ w) @ w.t(),), 1, id="seen through a view"),
        pytest.param(lambda x, w, b: (F.gelu(x.view(2, 3, 8) @ w),), 1, id="returned in another shape"),
        pytest.param(
            lambda x, w, b: (lambda y: (y, y.view(-1)))(F.gelu(x.view(2, 3, 8) @ w)), 0, id="returned with a view"
        ),
        pytest.param(lambda x, w, b: ((x @ w).t().contiguous() + 1,), 0, id="in another order"),
        pytest.param(lambda x, w, b: ((x @ w).relu(), x @ w + 1), 2, id="each its own product"),
        pytest.param(lambda x, w, b: (lambda y: (y, y.relu()))(x @ w), 0, id="the product is returned"),
        pytest.param(lambda x, w, b: (lambda y: (y.relu(), y @ y.t()))(x @ w), 0, id="a later call reads it"),
        pytest.param(
            lambda x, w, b: (lambda y, z: (y + z, y * z + y))((x @ w).exp().tan(), (x @ w + b).exp().tan()),
            3,
            id="several results of what is computed once",
        ),
        pytest.param(lambda x, w, b: (x.relu(),), 0, id="an input"),
        pytest.param(lambda x, w, b: (torch.roll(x @ w, 1, 1) + 1,), 0, id="read elsewhere"),
        pytest.param(lambda x, w, b: ((x @ w).softmax(1),), 1, id="rows"),
        pytest.param(lambda x, w, b: ((x @ w + b).log_softmax(0),), 1, id="columns"),
        pytest.param(lambda x, w, b: (F.layer_norm(x @ w, (16,)) * b,), 1, id="rows that are read three times"),
        pytest.param(
            lambda x, w, b: (lambda y: (y.exp(), y - y.exp().sum(1, keepdim=True)))(x @ w), 1, id="read in a later loop"
        ),
        pytest.param(
            lambda x, w, b: (lambda y: ((y - y.amax(1, keepdim=True)) @ y.t(),))(x @ w), 0, id="rows that a call reads"
        ),
        pytest.param(lambda x, w, b: ((x @ w).sum(1),), 0, id="a row's value"),
        pytest.param(lambda x, w, b: (torch.flip(x @ w, (1,)).softmax(1),), 0, id="rows read elsewhere"),
    ],
)
def test_what_is_stored_over(fn: Callable[..., Any], count: int) -> None:
    assert _taken(fn, x, w, b) == count


def test_gradients_may_be_views_of_what_they_are_stored_over() -> None:
    def one(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.gelu(x.view(2, 3, 8) @ w).view(6, 4, 4),)

    def both(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = F.gelu(x.view(2, 3, 8) @ w)
        return made, made.view(6, 4, 4)

    assert (_taken(one, x, w, backward=True), _taken(one, x, w), _taken(both, x, w, backward=True)) == (1, 0, 0)


def test_results_stay_what_they_are() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.relu(x @ w + b)
        second = F.gelu((first @ w.t()).view(2, 3, 8)) * 2
        third = (second.view(6, 8) @ w).t() + 1
        return first, second, third, (x @ w + torch.roll(x @ w, 1, 0)).sin()

    compiled = dynajit.compile(fn)
    for _ in range(3):
        expected, made = fn(x, w, b), compiled(x, w, b)
        for ours, theirs in zip(made, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
            assert ours.stride() == theirs.stride() and ours._base is None


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("columns", [5, 33, 700])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_memory_changes_no_bit(
    rows: int, columns: int, dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, two, three, four = (x @ (w * n) for n in (1, 0.5, 2, 3))
        early = one.exp()
        later = one - early.sum(dim, keepdim=True)
        half, over = two.softmax(dim), three.log_softmax(dim)
        centred = four - four.mean(dim, keepdim=True)
        spread = centred.var(dim, correction=0, keepdim=True)
        five, six = x @ w.sin(), (x @ w.cos()).sigmoid().tan()
        return early, later, half, over, over.mean(dim), F.softplus(centred) * spread, five + six, five * six + five

    args = torch.randn(rows, 8).to(dtype), torch.randn(8, columns).to(dtype)
    ours = dynajit.compile(fn)(*args)
    dynajit.reset()
    monkeypatch.setattr(generate, "store_over", lambda *given, **options: None)
    for one, other in zip(ours, dynajit.compile(fn)(*args), strict=True):
        assert torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_a_result_of_another_shape_than_the_memory_is_no_view() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (x.view(2, 3, 8) @ w).sin() + b

    compiled = dynajit.compile(fn)
    with torch.no_grad():
        for _ in range(2):
            given = torch.randn(6, 8)
            made = compiled(given, w, b)
            torch.testing.assert_close(made, fn(given, w, b))
            assert made._base is None and not made._is_view() and made.untyped_storage().nbytes() == 6 * 16 * 4
            made.resize_(3, 5)  # the memory is its own
    layer = torch.nn.Linear(8, 16)
    trained = dynajit.compile(lambda x: (layer(x) + 1).sin())
    loss = trained(torch.randn(2, 3, 8))
    assert not loss._is_view()
    loss.sum().backward()
    assert layer.weight.grad is not None
