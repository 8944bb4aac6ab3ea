"""Recurrent networks that train: dropout between layers, drawn as eager draws it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
