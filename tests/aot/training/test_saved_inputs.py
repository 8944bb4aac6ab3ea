"""What backward keeps of a graph: inputs that the graph writes, nothing at all, and graphs that can't be expressed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynajit


def _power(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    dynajit.graph_break()
    x **= 2
    return x


def _reshaped(x: torch.Tensor) -> torch.Tensor:
    x = x * 1
    dynajit.graph_break()
    x.unsqueeze_(0)
    return torch.nn.functional.silu(x)


@pytest.mark.parametrize("f", [_power, _reshaped])
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
def test_input_that_is_written_and_needed(f: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    (wanted,) = torch.autograd.grad(f(x).sum(), x)
    (found,) = torch.autograd.grad(dynajit.compile(f, backend=backend)(x).sum(), x)
    torch.testing.assert_close(found, wanted)


def test_backward_that_keeps_nothing_runs_twice() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, y * 3]

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    a, b = dynajit.compile(f, backend="codegen")(x, y)
    a.sum().backward()
    b.sum().backward()
    assert x.grad is not None and y.grad is not None
    assert x.grad.tolist() == [2] * 3 and y.grad.tolist() == [3] * 3


def test_backward_that_keeps_something_does_not() -> None:
    x = torch.randn(3, requires_grad=True)
    result = dynajit.compile(lambda x: x.sin(), backend="codegen")(x).sum()
    result.backward()
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()


def test_number_that_a_decomposition_refuses() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, x, x, value=0.5)

    x = torch.tensor([True, False])
    try:
        wanted: object = f(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as found:
            dynajit.compile(f, backend="codegen")(x)
        assert str(found.value) == str(error)
    else:
        assert torch.equal(dynajit.compile(f, backend="codegen")(x), wanted)  # type: ignore[arg-type]


def _bias(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x + bias).sin().sum(),)


def _result(x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x + bias
    return (y * 2).sin().sum(), y


@pytest.mark.parametrize("f", [_bias, _result])
@pytest.mark.parametrize("size", [3, 1 << 17])
def test_what_eager_does_not_keep_may_be_written(f: Callable[..., tuple[torch.Tensor, ...]], size: int) -> None:
    gradients = []
    x, bias = torch.randn(size), torch.randn(size)
    for call in (f, dynajit.compile(f, backend="codegen")):
        given = x.clone().requires_grad_(), bias.clone().requires_grad_()
        total, *others = call(*given)
        with torch.no_grad():
            for tensor in (*given, *others):
                tensor.zero_()
        total.backward()
        gradients.append([tensor.grad for tensor in given])
    torch.testing.assert_close(gradients[1], gradients[0])
