"""Graphs with symbols go the short way to ATen: no AOTAutograd where no gradients are asked for; floats that change are
arguments of kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynajit
from dynajit.aot import autograd
from dynajit.testing import assert_same


@pytest.fixture
def no_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the graph went through AOTAutograd")

    monkeypatch.setattr(autograd, "compile_with_autograd", refuse)


def layer(x: Tensor, w: Tensor, scale: float) -> Any:
    b, t, d = x.shape
    q, k, v = (part.view(b, t, 2, d // 2).transpose(1, 2) for part in F.linear(x, w).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
    return F.layer_norm(x + mixed * scale, (d,)), torch.cat([x, x[:, : t // 2]], 1), torch.arange(t) * b


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_a_model_of_many_sizes(no_autograd: None, backend: str) -> None:
    calls = [(torch.randn(b, t, 8), torch.randn(24, 8), b / 7) for b, t in ((2, 4), (3, 5), (4, 9), (5, 6))]
    assert_same(layer, *calls[0], then=calls[1:], repeat=1, backend=backend, recompiles=1, rtol=1e-4, atol=1e-5)


def every_use(x: Tensor, i: Tensor, s: float, n: int) -> Any:
    y = x * s + i * (s * 2.0) + x / (s + n)
    low = x.bfloat16() * s, x.bfloat16() + s, x.half() - s
    made = torch.full_like(x, s), torch.where(x > s, x, s * 0.5), i + s, i > s
    wide = x.double() * s, x.double() + s / n
    rest = F.leaky_relu(x, s), x**s, torch.add(x, x, alpha=s), x.mean() * (1.0 / n), x * n**0.5, s - x, s / x
    return y.clamp(min=s), low, made, wide, rest


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_floats_that_change(no_autograd: None, backend: str) -> None:
    numbers = [(0.1, 3), (0.7, 4), (1 / 3, 5), (1e-3, 7), (-2.5, 9), (float("inf"), 2)]
    x, i = torch.randn(4, 6), torch.randint(-4, 4, (4, 6))
    calls = [(x, i, s, n) for s, n in numbers]
    # an infinite one has a variant of its own
    assert_same(every_use, *calls[0], then=calls[1:], repeat=1, backend=backend, recompiles=2, rtol=1e-5, atol=1e-6)


def test_a_float_is_not_rounded_on_its_way_to_a_kernel(no_autograd: None) -> None:
    compiled = dynajit.compile(lambda x, s: x * s)
    x = torch.randn(5, dtype=torch.float64)
    for s in (0.1, 1 / 3, 1 / 7):
        assert torch.equal(compiled(x, s), x * s)


def updated(x: Tensor, y: Tensor, rate: float) -> Any:
    x.mul_(1 - rate).add_(y, alpha=rate)
    return x.sum(0), y.view(-1)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_mutated_inputs(no_autograd: None, backend: str) -> None:
    calls = [(torch.randn(n, 3), torch.randn(n, 3), 1 / n) for n in (2, 3, 4, 5)]
    assert_same(updated, *calls[0], then=calls[1:], repeat=1, backend=backend, recompiles=1, rtol=1e-5, atol=1e-6)


def views(x: Tensor) -> Any:
    halves = x.unflatten(1, (2, -1))
    return halves, halves.flatten(0, 1), halves[:, 1].t(), x.view(-1, 2), (halves * 2).flatten(0, 1) + 1


def test_views_of_divided_sizes_share_memory(no_autograd: None) -> None:
    calls = [(torch.randn(n, m),) for n, m in ((3, 4), (4, 6), (5, 10))]
    assert_same(views, *calls[0], then=calls[1:], repeat=1, recompiles=1)


def dropped(x: Tensor) -> Any:
    return F.dropout(x, 0.5, training=True) + torch.rand(x.shape[0], 1)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_random_numbers(backend: str) -> None:
    compiled = dynajit.compile(dropped, backend=backend)
    for size in (4, 5, 6):
        x = torch.ones(size, 3)
        torch.manual_seed(size)
        expected = dropped(x)
        after = torch.get_rng_state()
        torch.manual_seed(size)
        assert torch.equal(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_floats_that_change_in_graphs_with_gradients(backend: str) -> None:
    def f(x: Tensor, s: float) -> Tensor:
        return (x * s).sin() / s + x.sum() * s + x.clamp(max=s) + s**2 * x

    calls = [(torch.rand(3, 4).requires_grad_(), s) for s in (0.5, 0.7, 0.9, 1.1)]

    def gradient(x: Tensor, s: float) -> Any:
        x.grad = None
        y = compiled(x, s) if side else f(x, s)
        y.sum().backward()
        return y.detach(), x.grad

    compiled = dynajit.compile(f, backend=backend)
    dynajit.counters.clear()
    for x, s in calls:
        side = True
        ours = gradient(x, s)
        side = False
        torch.testing.assert_close(ours, gradient(x, s))
    assert dynajit.counters()["recompiles"] == 1
