"""Kernels whose symbolic sizes have the names that come first: what a kernel calls its own arrays and places differs.

torch numbers the symbol of a size by a hash of where it comes from, so a clash of names is a matter of luck elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import dynajit


def clip_loss(x: Tensor, y: Tensor) -> Tensor:
    logits = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t()
    places = torch.arange(len(logits))
    return F.cross_entropy(logits, places) + F.cross_entropy(logits.t(), places)


def two_norms(x: Tensor, y: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * F.softmax(y, -1) + torch.softmax(x * y, 0)


def many_sums(x: Tensor, y: Tensor) -> Any:
    return x.half().sum(-1), (x * y).sum(-1), x.amax(-1), y.cumsum(-1), torch.var(x, -1)


def negative_places(x: Tensor, y: Tensor) -> Tensor:
    places = y.argsort(-1) - x.shape[-1]
    return x[torch.arange(len(x))[:, None], places] * x.shape[0] + y.scatter_add(-1, y.argsort(-1), y)


@pytest.mark.filterwarnings("error:dynajit")
@pytest.mark.parametrize("fn", [clip_loss, two_norms, many_sums, negative_places])
def test_like_eager(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any]) -> None:
    def first_number(self: Any, source_name: str) -> int:
        number = len(self.unique_ids)
        self.unique_ids.add(number)
        return number

    monkeypatch.setattr(ShapeEnv, "_generate_unique_id", first_number, raising=False)
    torch.manual_seed(0)
    compiled = dynajit.compile(fn, dynamic=True)
    for rows in (4, 5, 3):
        tensors = [torch.randn(rows, 3 * rows + 2, requires_grad=True) for _ in range(2)]
        outcomes = []
        for program in (fn, compiled):
            results = program(*tensors)
            total = sum(part.sum() for part in (results if isinstance(results, tuple) else (results,)))
            outcomes.append((results, torch.autograd.grad(total, tensors)))
        torch.testing.assert_close(outcomes[1], outcomes[0], rtol=2e-3, atol=1e-4)
