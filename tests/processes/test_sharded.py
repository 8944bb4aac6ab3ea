"""Modules whose parameters are spread over two processes: eager's losses, gradients and parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Ranks, counted
from torch import nn

import dynajit

STEPS = 6
BLOCKS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def shard_fully(model: nn.Sequential) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))  # else it is of GPUs where there are any, which gloo knows little of
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def shard_tensors(model: nn.Sequential) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def shard_recomputed(model: nn.Sequential) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for at, block in enumerate(model):
        model[at] = checkpoint_wrapper(block)
    shard_fully(model)


# how a model is spread, graphs, and breaks: at each hook of a fully sharded module
FORMS = {
    "fully_shard": (shard_fully, (2, 1)),
    "fully_shard, recomputed": (shard_recomputed, (2, 1)),
    "parallelize_module": (shard_tensors, (1, 0)),
}


def trained(rank: int, form: str, how: str) -> tuple[Any, tuple[int, int, int]]:
    """Losses, local parts of the last gradients and of parameters; then graphs, breaks, and captures after step 2."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    FORMS[form][0](model)
    call = dynajit.compile(model) if how == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, gradients = [], []
    with counted() as counts:
        for step in range(STEPS):
            same = form == "parallelize_module"  # its ranks have one batch between them
            generator = torch.Generator().manual_seed(10 * step + (0 if same else rank))
            loss = call(torch.randn(8, 16, generator=generator)).square().mean()
            loss.backward()
            losses.append(loss.item())
            gradients = [local(p.grad) for p in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
            if step == 1:
                early = len(counts.seen)
    results = losses, gradients, [local(p) for p in model.parameters()]
    return results, (*counts.totals()[:2], len(counts.seen) - early)


def local(tensor: Any) -> torch.Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().clone()


@pytest.mark.parametrize("form", FORMS)
def test_form(two: Ranks, form: str) -> None:
    expected = two.run(trained, form, "eager")
    actual = two.run(trained, form, "compiled")
    for (one, _), (other, counts) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        assert counts == (*FORMS[form][1], 0)
