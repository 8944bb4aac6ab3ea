"""Training graphs that a part without gradients is in: no wrapper of torch's around them."""

from __future__ import annotations

import warnings

import torch
from torch import nn

import dynajit
from dynajit.testing import assert_same


class Rotated(nn.Module):
    """Computes its angles without gradients, as rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            angle = torch.arange(8.0).cos() + x.detach().mean()
        y = self.linear(x) * angle
        return y.sum(), y


def test_a_graph_with_a_part_without_gradients_is_autograds_own_node() -> None:
    torch.manual_seed(0)
    model, x = Rotated(), torch.randn(4, 8, requires_grad=True)
    expected = model(x)[0]
    expected.backward()
    gradients = [x.grad, *(each.grad for each in model.parameters())]
    x.grad = None
    model.zero_grad()
    loss, y = dynajit.compile(model)(x)
    assert loss.grad_fn is not None and loss.grad_fn.name() == "DynajitBackward"
    assert y.requires_grad
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip([x.grad, *(each.grad for each in model.parameters())], gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_that_the_graph_turns_on_itself() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return (x * 2).sin()

    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        expected, made = fn(x), dynajit.compile(fn)(x)
    assert made.requires_grad == expected.requires_grad
    ours, theirs = (torch.autograd.grad(each.sum(), x)[0] for each in (made, expected))
    torch.testing.assert_close(ours, theirs)


def test_a_graph_that_ends_in_another_grad_mode_leads_only_where_gradients_go() -> None:
    """A node that kept the one of an input without a gradient would know that input by the shape it had."""

    def fn(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y = x * 0.5
        (z * 2).sum()
        torch.set_grad_enabled(False)
        torch.mul(x, y, out=z)
        return y

    for call in (fn, dynajit.compile(fn)):
        x, z = torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=True)
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that out= is given another size
            y = call(x, z)
            assert not torch.is_grad_enabled() and y.requires_grad
        (y.sum() + z.sum()).backward()
        assert x.grad is not None and x.grad.unique().tolist() == [0.5]
        assert z.grad is not None and z.grad.tolist() == [[1.0] * 3] * 3


def test_a_step_that_returns_its_loss_detached_is_compiled() -> None:
    """A detached tensor is no view to autograd, so it may be made where an optimizer has turned gradients on again."""

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    found = []
    for compile_it in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.Adam(model.parameters())
        call = dynajit.compile(step) if compile_it else step
        x = torch.randn(4, 8)
        losses = [call(x) for _ in range(4)]
        assert not any(each.requires_grad or each._is_view() for each in losses)
        found.append([*losses, *model.parameters()])
    torch.testing.assert_close(found[1], found[0])
    graphs = dynajit.explain(step)(x).to_dict()["graphs"]
    operations = [op for graph in graphs for code in graph["code"] for k in code["kernels"] for op in k["operations"]]
    assert any("sqrt" in operation for operation in operations)


def test_equal_operations_with_several_results_have_memory_of_their_own() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sort(-1).values for _ in range(2)]

    assert_same(f, torch.rand(3, requires_grad=True), backend="codegen", graphs=1)
