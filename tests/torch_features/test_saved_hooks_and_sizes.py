"""Hooks for saved tensors, legacy constructors that take a size, quantized tensors, and modules of torch.fx."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit


def test_hooks_that_change_saved_tensors_see_what_eager_saves() -> None:
    def f(x: Tensor) -> Tensor:
        return (x * x).sin() * x

    compiled = dynajit.compile(f)

    def gradient(fn: Any, packed: list[tuple[int, ...]]) -> Tensor:
        def pack(saved: Tensor) -> Tensor:
            packed.append(tuple(saved.shape))
            return saved

        x = torch.linspace(0.1, 2, 4).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved * 2):
            y = fn(x)
        return torch.autograd.grad(y.sum(), x)[0]

    compiled(torch.ones(4, requires_grad=True))
    with torch.autograd.graph.save_on_cpu():  # as deep a stack of hooks, and compiled
        compiled(torch.ones(4, requires_grad=True))
    eagerly: list[tuple[int, ...]] = []
    saved: list[tuple[int, ...]] = []
    torch.testing.assert_close(gradient(compiled, saved), gradient(f, eagerly))
    assert len(saved) == len(eagerly) > 0


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_hooks_that_the_function_enters_see_what_eager_saves(backend: str) -> None:
    w = torch.linspace(-1, 1, 4).requires_grad_()

    def f(x: Tensor, told: list[Any]) -> Tensor:
        def pack(saved: Tensor) -> Tensor:
            told.append(("pack", saved.tolist()))
            return saved * 2

        def unpack(saved: Tensor) -> Tensor:
            told.append(("unpack", saved.tolist()))
            return saved

        y = x.cos() * 2
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            z = (w * y).sin().exp() * y
        with torch.autograd.graph.save_on_cpu():
            z = z.square() * w
        return (z * 3).sum()

    run = dynajit.compile(f, backend=backend)
    before = dynajit.counters()["recompiles"]
    for scale in (1.0, 2.0, 3.0, 4.0):
        x, results = torch.arange(4.0) * scale, []
        for fn in (f, run):
            told: list[Any] = []
            value = fn(x, told)
            results.append((value, torch.autograd.grad(value, w)[0], told))
        (value, gradient, told), (its_value, its_gradient, its_told) = results
        torch.testing.assert_close((its_value, its_gradient), (value, gradient))
        assert [kind for kind, _ in its_told] == [kind for kind, _ in told] and told
        for (_, found), (_, wanted) in zip(its_told, told, strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))
    assert dynajit.counters()["recompiles"] == before  # what runs under hooks is compiled once


def test_an_exception_under_hooks_takes_them_off() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved):
            if x.sum() > 2:
                raise ValueError("too much")
            return x * 2

    run = dynajit.compile(f, backend="eager")
    assert torch.equal(run(torch.ones(2)), torch.ones(2) * 2)
    for _ in range(2):
        with pytest.raises(ValueError, match="too much"):
            run(torch.ones(3))
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_new_with_a_size_is_a_tensor_of_that_size() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new(x.shape).fill_(2.0), x.new(x.size()[:1]).zero_()

    for got, want in zip(dynajit.compile(f, fullgraph=True)(torch.ones(4, 3)), f(torch.ones(4, 3)), strict=True):
        torch.testing.assert_close(got, want)


def test_laplace_draws_what_eager_draws() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.distributions.Laplace(x, 1.0).rsample()

    torch.manual_seed(3)
    want = f(torch.zeros(5))
    torch.manual_seed(3)
    assert torch.equal(dynajit.compile(f, backend="eager")(torch.zeros(5)), want)


def test_quantized_tensors_are_eagers() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        q = torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8)
        return q, q.int_repr() + 1

    got, want = dynajit.compile(f)(torch.arange(4.0)), f(torch.arange(4.0))
    assert got[0].dtype is torch.qint8
    assert torch.equal(got[0].dequantize(), want[0].dequantize())
    assert torch.equal(got[1], want[1])


def test_graph_modules_are_compiled_in_one_graph() -> None:
    module = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    x = torch.randn(2, 3)
    torch.testing.assert_close(dynajit.compile(module, fullgraph=True)(x), module(x))

    def f(x: Tensor) -> Tensor:
        return copied(x).sin()

    copied = copy.deepcopy(module)
    torch.testing.assert_close(dynajit.compile(f, fullgraph=True)(x), f(x))
