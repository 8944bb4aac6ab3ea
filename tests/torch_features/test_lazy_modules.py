"""Modules whose layers make their parameters at the first call, under `fullgraph=True`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynajit
from dynajit.outcomes import compare
from dynajit.report import records


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.LazyConv2d(4, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.more = nn.ModuleList([nn.LazyLinear(3), nn.LazyLinear(2)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x * 2).relu()).flatten(1)
        for layer in self.more:
            y = layer(nn.functional.dropout(y)).sin()
        return y


def trained(compiler: Callable[[nn.Module], Any]) -> list[Any]:
    torch.manual_seed(0)
    model = Net()
    run = compiler(model)
    results = []
    for _ in range(4):
        y = run(torch.randn(2, 3, 6, 6))
        y.sum().backward()
        results.append(y.detach())
    gradients = [parameter.grad for parameter in model.parameters()]
    kinds = [(type(part), len(part._forward_pre_hooks)) for part in model.modules()]
    return [results, gradients, model.state_dict(), kinds]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_only_the_first_call_has_breaks(fullgraph: bool) -> None:
    seen: list[Any] = []
    marks = []

    def compiled(model: nn.Module) -> Any:
        fn = dynajit.compile(model, fullgraph=fullgraph, backend="eager")

        def run(x: Tensor) -> Any:
            marks.append(len(seen))
            return fn(x)

        return run

    with records.listen(seen.append):
        compare(trained(compiled), trained(lambda model: model))
    assert {broken.kind for record in seen[: marks[1]] for broken in record.breaks} == {"first-call"}
    assert [len(record.graphs) for record in seen[marks[1] :]] == [1]
    assert not any(record.breaks for record in seen[marks[1] :])


def test_another_break_is_an_error_all_the_same() -> None:
    layer = nn.LazyLinear(2)

    def call(x: Tensor) -> Tensor:
        y = layer(x)
        return y if y.sum() > 0 else y.sin()

    with pytest.raises(dynajit.exc.Unsupported, match="a branch depends on"):
        dynajit.compile(call, fullgraph=True)(torch.ones(2, 3))
