"""Steps of torch's optimizers on parameters that are spread over two processes: eager's parameters and states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks, counted
from test_sharded import local, shard_fully, shard_tensors
from torch import nn

import dynajit

STEPS = 5
FORMS = {"fully_shard": shard_fully, "parallelize_module": shard_tensors}

OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {}),
    "SGD, momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    "SGD, lists": ("SGD", {"momentum": 0.9, "foreach": True}),
    "Adam": ("Adam", {"weight_decay": 0.1}),
    "Adam, amsgrad": ("Adam", {"amsgrad": True}),
    "AdamW": ("AdamW", {}),
    "AdamW, lists": ("AdamW", {"foreach": True}),
    "AdamW, a tensor": ("AdamW", {"lr": torch.tensor(0.01), "foreach": False}),
    "Adagrad": ("Adagrad", {}),
    "Adadelta": ("Adadelta", {}),
    "Adamax": ("Adamax", {}),
    "ASGD": ("ASGD", {}),
    "NAdam": ("NAdam", {}),
    "RAdam": ("RAdam", {}),
    "RMSprop": ("RMSprop", {"momentum": 0.5, "centered": True}),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def stepped(rank: int, form: str, name: str, how: str) -> tuple[Any, tuple[int, int]]:
    """Losses, local parts of parameters and of what the optimizer keeps; breaks, and captures after the second step."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    FORMS[form](model)
    kind, options = OPTIMIZERS[name]
    optimizer = getattr(torch.optim, kind)(model.parameters(), **{"lr": 0.01, **options})

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    call = dynajit.compile(step) if how == "compiled" else step
    losses = []
    with counted() as counts:
        for index in range(STEPS):
            loss = model(torch.randn(4, 6, generator=torch.Generator().manual_seed(index))).square().mean()
            loss.backward()
            losses.append(loss.item())
            call()
            if index == 1:
                early = len(counts.seen)
    assert all(parameter.grad is None for parameter in model.parameters())
    kept = [[local(part) for part in optimizer.state[p].values() if part is not None] for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    results = losses, [local(p) for p in model.parameters()], kept, versions
    return results, (counts.totals()[1], len(counts.seen) - early)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step(two: Ranks, form: str, name: str) -> None:
    expected = two.run(stepped, form, name, "eager")
    actual = two.run(stepped, form, name, "compiled")
    for (one, _), (other, counts) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other[:3], one[:3], rtol=1e-4, atol=1e-5)
        assert counts == (0, 0)
