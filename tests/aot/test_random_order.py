"""Random numbers for tensors that are not contiguous: the same ones, at the same places, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynajit
from dynajit.testing import assert_same

LAYOUTS = {
    "contiguous": lambda: torch.ones(2, 3, 4, 5),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.ones(4, 3, 2, 5).transpose(0, 2),
    "strided": lambda: torch.ones(2, 3, 4, 10)[..., ::2],
}


def draws(x: torch.Tensor) -> tuple[Any, ...]:
    return (
        F.dropout(x, 0.5),
        F.dropout(x.transpose(1, 2), 0.3),
        torch.empty_like(x).bernoulli_(0.4),
        torch.bernoulli(x, 0.4),
        torch.bernoulli(x * 0.5),
        torch.empty_like(x).uniform_(),
        torch.rand_like(x),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("grad", [False, True])
def test_draws_are_where_eager_has_them(layout: str, backend: str, grad: bool) -> None:
    x = LAYOUTS[layout]().requires_grad_(grad)
    torch.manual_seed(3)
    wanted = draws(x)
    torch.manual_seed(3)
    found = dynajit.compile(draws, backend=backend)(x)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.stride() == other.stride()


def test_draws_of_which_the_graph_looks_at_the_dtype_or_the_shape_alone() -> None:
    x = torch.ones(3, requires_grad=True)
    assert_same(lambda x: x.type_as(torch.randperm(3)[:1]), x, backend="codegen")
    assert_same(lambda x: (x * 2, x.view_as(F.dropout(x, 0.5))), x, backend="codegen")


def test_a_draw_into_an_input_beside_another_written_input() -> None:
    def f(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        written = x * 2
        with torch.no_grad():
            print()
            positive = x > 0
            z.uniform_(0, 1)
        written.mul_(2)
        return positive

    x, z = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    assert_same(f, x, z, backend="codegen", breaks=1)


def test_a_draw_that_is_written_over() -> None:
    def f(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        z.uniform_(0, 1)
        z.zero_()
        return x * 2

    assert_same(f, torch.ones(3, requires_grad=True), torch.ones(3), backend="codegen")


def _draws_over_what_it_filled(x: torch.Tensor, mask: torch.Tensor) -> Any:
    y = (x * 2).t()
    y.masked_fill_(mask, 0.5)
    z = (x + 1).t()
    z.index_fill_(0, torch.tensor([1]), 3.0)
    return F.dropout(y, 0.5), F.dropout(z, 0.5), torch.rand_like(y)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("gradients", [False, True])
def test_draws_over_memory_that_functional_graphs_lay_out_anew(gradients: bool, backend: str) -> None:
    x = torch.arange(12.0).reshape(3, 4).requires_grad_(gradients)
    assert_same(_draws_over_what_it_filled, x, x.detach().t() > 5, backend=backend)


@pytest.mark.parametrize("backend", ["eager", "codegen"])
def test_draws_beside_a_transposed_leaf(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        y = F.dropout(x, 0.5)
        leaf = x.t().detach().requires_grad_()
        (leaf * leaf).sum().backward()
        return y, leaf.grad

    assert_same(f, torch.ones(3, 4), backend=backend)


@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_tensors_whose_dimensions_change_in_place(backend: str, draws: bool, inside: bool) -> None:
    """What an operation is run on while compiling has the dimensions that the graph's last one gave it."""

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.clone() if inside else x
        y.t_()
        y.mul_(2)
        y.unsqueeze_(0)
        return y + torch.rand_like(y) if draws else y + 1

    assert_same(program, torch.arange(12.0).reshape(3, 4), backend=backend, repeat=1)


@pytest.mark.parametrize(
    "laid_out", [lambda n: torch.ones(n, n).t(), lambda n: torch.ones(2, n, n + 1).permute(2, 0, 1)]
)
@pytest.mark.parametrize("dynamic", [None, True, False])
def test_draws_in_the_order_of_memory_where_sizes_vary(laid_out: Any, dynamic: bool | None) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5)

    compiled = dynajit.compile(f, dynamic=dynamic)
    for size in (1, 3, 5, 7):
        x = laid_out(size)
        torch.manual_seed(0)
        wanted = f(x), torch.rand(1)
        torch.manual_seed(0)
        torch.testing.assert_close((compiled(x), torch.rand(1)), wanted)
