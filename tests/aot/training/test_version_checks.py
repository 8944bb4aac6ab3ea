"""A backward pass fails where eager's does: what eager's operations keep was written, or has been used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu
from torch.utils.checkpoint import checkpoint

import dynajit


@pytest.fixture(params=[False, True], ids=["eager", "codegen"])
def compiled(request: pytest.FixtureRequest) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """The function, or what it is compiled to: eager's outcome is the one that is tested for."""
    return (lambda f: dynajit.compile(f, backend="codegen")) if request.param else (lambda f: f)


def test_written_result_that_eager_keeps(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x = torch.randn(3, requires_grad=True)
    result = compiled(lambda x: torch.relu(x * 3))(x)  # of which a mask is enough
    result.mul_(2)
    written = (
        r"modified by an inplace operation: \[torch.FloatTensor \[3\]\], which is output 0 of Relu\w*, is at version"
    )
    with pytest.raises(RuntimeError, match=written):
        result.sum().backward()


def test_written_input_with_a_history(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x, factor = torch.randn(3, requires_grad=True).sin(), torch.randn(3, requires_grad=True)
    result = compiled(lambda x, factor: x * factor)(x, factor)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(
        RuntimeError, match=r"\[3\]\], which is output 0 of Sin\w*, is at version 1; expected version 0"
    ):
        result.sum().backward()


def test_input_that_the_graph_writes_and_eager_keeps(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x = torch.randn(3, requires_grad=True) * 2
    relu_ = compiled(lambda x: torch.relu_(x))
    relu_(x)
    relu_(x)
    with pytest.raises(RuntimeError, match=r"which is output 0 of \w+, is at version 2; expected version 1 instead"):
        x.sum().backward()


def test_input_that_the_graph_writes(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    leaf = torch.ones(3, requires_grad=True)
    x, other = leaf * 2, leaf * 2
    relu_ = compiled(lambda x: torch.relu_(x))
    relu_(x)
    relu_(other)
    with torch.no_grad():
        other.add_(1)
    x.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2.0] * 3


def test_written_weight_that_eager_keeps(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x, weight = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    result = compiled(lambda x, weight: x * weight)(x, weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match=r"\[torch.FloatTensor \[3\]\] is at version 1; expected version 0 instead"):
        result.sum().backward()


def test_written_result_that_eager_keeps_not(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x = torch.randn(3, requires_grad=True)
    result = compiled(lambda x: x * 3)(x)
    result.mul_(2)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0] * 3


def test_write_that_another_result_needs(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    kept, other = compiled(lambda x, y: (torch.relu(x * 3), y * 3))(x, y)
    with torch.no_grad():
        kept.mul_(2)
    other.sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [3.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_statistics_of_two_calls(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    norm = torch.nn.BatchNorm1d(3)
    f = compiled(lambda x: norm(x))
    x = torch.randn(4, 3, requires_grad=True)
    first = f(x)
    (first + f(x * 2)).sum().backward()
    assert x.grad is not None


def test_second_pass_where_eager_keeps_a_number(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    result = compiled(lambda x: x * 2)(torch.randn(3, requires_grad=True))
    result.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        result.sum().backward()


def test_second_pass_where_eager_keeps_nothing(compiled: Callable[..., Callable[..., Tensor]]) -> None:
    x = torch.randn(3, requires_grad=True)
    result = compiled(lambda x: x + 1)(x)
    result.sum().backward()
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("how", ["inside", "outside", "without gradients"])
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_statistics_of_batch_norms_are_not_counted(backend: str, how: str) -> None:
    x, z = torch.randn(5, 4, 3), torch.randn(5, 4, 3)

    def run(compile: Callable[..., Any]) -> Any:
        norm = torch.nn.BatchNorm1d(4)

        def both(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            norm.eval()
            first = norm(x)
            norm.train()
            return first, norm(z)

        if how == "inside":
            first, second = compile(both)(x, z)
        else:
            compiled = compile(norm)
            norm.eval()
            first = compiled(x)
            norm.train()
            with torch.set_grad_enabled(how == "outside"):
                second = compiled(z)
        ((first**3).sum() + (second**3).sum()).backward()
        buffers = [*norm.buffers()]
        return first, second, [p.grad for p in norm.parameters()], buffers, [b._version for b in buffers]

    torch.testing.assert_close(
        run(lambda f: dynajit.compile(f, backend=backend)), run(lambda f: f), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    "write", [lambda x: leaky_relu(x, 0.2, inplace=True), lambda x: leaky_relu(x, 0.2, True), torch.relu_]
)
def test_a_write_behind_a_region(write: Callable[..., Tensor], compiled: Callable[..., Callable[..., Tensor]]) -> None:
    """Of what a checkpointed region gave: the write is none of the graph's that the rest is compiled to."""

    def f(x: Tensor) -> Tensor:
        y: Tensor = checkpoint(torch.sin, x, use_reentrant=False)
        write(y)
        return y.square()

    x, y = (torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2))
    compiled(f)(x).sum().backward()
    f(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
