"""Recurrent networks: dropout between layers, drawn as eager draws it; long ones are one call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynajit
from dynajit.testing import assert_same

OPTIONS: list[dict[str, Any]] = [{}, {"batch_first": True, "bidirectional": True}, {"bias": False}, {"proj_size": 2}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_dropout_between_layers(kind: Any, options: dict[str, Any]) -> None:
    if "proj_size" in options and kind is not torch.nn.LSTM:
        options = {"nonlinearity": "relu"} if kind is torch.nn.RNN else {}
    torch.manual_seed(0)
    network = kind(4, 4, 2, dropout=0.5, **options)

    def fn(x: torch.Tensor) -> Any:
        out, state = network(x)
        return out, state, torch.rand(1)

    assert_same(fn, torch.randn(3, 2, 4), repeat=1, graphs=1, breaks=0, backend="aot_eager", rtol=1e-5, atol=1e-6)


class Tagger(torch.nn.Module):
    """Something before a long recurrent network and something after it; both of its results are used."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.network = kind(4, 4, **options)
        self.head = torch.nn.Linear(8 if options.get("bidirectional") else 4, 3)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor) -> Any:
        out, state = self.network(torch.relu(self.embed(ids)) * scale)
        state = state[0] if isinstance(state, tuple) else state
        return torch.log_softmax(self.head(out), -1), state * scale, state


def trained(model: Any, call: Any, *args: torch.Tensor) -> list[Any]:
    """Results, the gradients of all parameters and inputs, and the next random number."""
    torch.manual_seed(1)
    inputs = [value.detach().clone().requires_grad_(value.requires_grad) for value in args]
    model.zero_grad()
    results = call(*inputs)
    if torch.is_grad_enabled():
        sum((result * (place + 1)).sum() for place, result in enumerate(results)).backward()
    gradients = [value.grad for value in (*model.parameters(), *inputs)]
    return [*results, *gradients, torch.rand(1)]


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2, "dropout": 0.5, "bidirectional": True, "batch_first": True}], ids=str
)
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_long_ones(kind: Any, options: dict[str, Any], trains: bool) -> None:
    torch.manual_seed(0)
    model = Tagger(kind, **options).train(trains)
    args = torch.randint(0, 10, (70, 3)), torch.rand(1, requires_grad=True)
    with torch.set_grad_enabled(trains):
        expected = trained(model, model, *args)
        torch.testing.assert_close(trained(model, dynajit.compile(model, fullgraph=True), *args), expected)


def test_what_comes_before_a_long_one_is_written_in_eager_order() -> None:
    torch.manual_seed(0)
    network = torch.nn.GRU(4, 4)

    def fn(x: torch.Tensor, count: torch.Tensor) -> Any:
        y = x + count
        count.add_(1)
        return network(y)[0] * count, count

    args = torch.randn(70, 2, 4, requires_grad=True), torch.ones(1)
    expected = trained(network, fn, *args)
    torch.testing.assert_close(trained(network, dynajit.compile(fn, fullgraph=True), *args), expected)


@pytest.mark.parametrize("trains", [True, False])
def test_long_one_is_one_call(trains: bool) -> None:
    network, x = torch.nn.GRU(4, 4), torch.randn(100, 1, 4)
    with torch.set_grad_enabled(trains):
        explained = dynajit.explain(lambda: network(x * 2)[0].sum())()
    called = [name for graph in explained.graph_records for code in graph.code for name in code.extern]
    assert called == ([] if trains else ["gru"])
