"""`options={"freezing": True}`: constants of weights alone, seen to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynajit
from dynajit.aot import compile_joint, decompositions
from dynajit.aot.inference import freezing

FREEZE = {"freezing": True}


def _network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, padding=1),
        nn.BatchNorm2d(12, affine=False),
        nn.Hardswish(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 10),
        nn.GELU(),
        nn.Linear(10, 3, bias=False),
    ).eval()
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net


def _same(net: nn.Module, compiled: Callable[..., Any], x: torch.Tensor) -> None:
    actual, expected = compiled(x), net(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert actual.stride() == expected.stride()


def test_changed_weights_are_seen() -> None:
    net, x = _network(), torch.randn(2, 3, 17, 17)
    compiled = dynajit.compile(net, options=FREEZE, fullgraph=True)
    with torch.no_grad():
        _same(net, compiled, x)
        _same(net, compiled, x)
        net[0].weight.mul_(2)
        _same(net, compiled, x)
        net[1].running_mean.add_(1)
        _same(net, compiled, x)
        net[8].weight.data = torch.randn_like(net[8].weight)
        _same(net, compiled, x)
        net[8].weight = nn.Parameter(torch.randn(10, 48))
        _same(net, compiled, x)
        net.load_state_dict({name: value * 2 for name, value in net.state_dict().items()})
        _same(net, compiled, x)


def test_batch_norms_are_gone() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Any], phase: str) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def backend(gm: torch.fx.GraphModule, inputs: list[Any], **_: Any) -> Callable[..., Any]:
        weights = freezing.weights_of(gm, inputs)
        compile_fn = freezing.frozen(keep, weights, len(inputs))
        folded = freezing.fold_batch_norm(gm, weights)
        return compile_joint(folded, inputs, compile_fn, decompositions.for_codegen())

    net, x = _network(), torch.randn(2, 3, 17, 17)
    with torch.no_grad():
        _same(net, dynajit.compile(net, backend=backend), x)
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert not any("rsqrt" in name or "batch_norm" in name for name in called), called
    if torch._C._has_mkldnn:
        assert called.count("mkldnn._convolution_pointwise.default") == 2, called
        assert "aten.relu.default" not in called, called


def test_training_is_as_ever() -> None:
    net = _network()
    compiled = dynajit.compile(net, options=FREEZE)
    x = torch.randn(2, 3, 17, 17)
    compiled(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    net(x).sum().backward()
    for actual, parameter in zip(expected, net.parameters(), strict=True):
        torch.testing.assert_close(actual, parameter.grad, rtol=1e-3, atol=1e-4)


def test_results_that_are_weights() -> None:
    """What the user gets of a weight is the weight's memory, and what was computed from it is the user's own."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 5))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            self.calls += 1
            doubled = self.weight * 2
            return self.weight.t(), doubled, doubled.t(), x @ doubled.t(), self.calls * 3

    net = Net()
    compiled = dynajit.compile(net, options=FREEZE, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 5)
            turned, doubled, view, product, calls = compiled(x)
            assert turned.data_ptr() == net.weight.data_ptr()
            assert doubled.data_ptr() == view.data_ptr()
            torch.testing.assert_close(doubled, net.weight * 2)
            torch.testing.assert_close(product, x @ (net.weight * 2).t())
            assert calls == net.calls * 3
            doubled.zero_()
    assert net.calls == 3


@pytest.mark.parametrize("dynamic", [None, True])
def test_other_sizes(dynamic: bool | None) -> None:
    net = _network()
    compiled = dynajit.compile(net, options=FREEZE, dynamic=dynamic)
    with torch.no_grad():
        for size in (17, 19, 23):
            _same(net, compiled, torch.randn(2, 3, size, size))
    with torch.inference_mode():
        _same(net, compiled, torch.randn(2, 3, 17, 17))


def test_layouts_of_results() -> None:
    """Convolutions of packed weights give channels last; the user sees what eager gives."""
    net = _network()[:3]
    compiled = dynajit.compile(net, options=FREEZE)
    with torch.no_grad():
        _same(net, compiled, torch.randn(2, 3, 9, 9))
        _same(net, compiled, torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last))
        _same(net, compiled, torch.randn(1, 3, 9, 9))
