"""Modules whose parameters are spread over two processes: eager's losses, gradients and parameters."""

from __future__ import annotations

from pathlib import Path
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


def wrap_fully(model: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({Block})
    return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=torch.device("cpu"))


# how a model is spread, graphs, and breaks: at each hook of a fully sharded module
FORMS: dict[str, tuple[Any, tuple[int, int]]] = {
    "fully_shard": (shard_fully, (2, 1)),
    "FullyShardedDataParallel": (wrap_fully, (2, 1)),
    "fully_shard, recomputed": (shard_recomputed, (2, 1)),
    "parallelize_module": (shard_tensors, (1, 0)),
}


def trained(rank: int, form: str, how: str) -> tuple[Any, tuple[int, int, int]]:
    """Losses, local parts of the last gradients and of parameters; then graphs, breaks, and captures after step 2."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    model = FORMS[form][0](blocks) or blocks
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


def saved_and_loaded(rank: int, folder: str, how: str) -> tuple[Any, list[str]]:
    """Steps before and after the state is saved, of the model that goes on and of one that loads it; and its names."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def make() -> tuple[Any, Any]:
        model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
        shard_fully(model)
        call = dynajit.compile(model) if how == "compiled" else model
        return call, torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(call: Any, optimizer: Any, number: int) -> float:
        loss = call(torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * number + rank))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    first, second = make(), make()
    losses = [step(*first, number) for number in range(2)]
    state = get_state_dict(*first)
    dcp.save({"model": state[0], "optimizer": state[1]}, checkpoint_id=folder)
    loaded = get_state_dict(*second)
    dcp.load({"model": loaded[0], "optimizer": loaded[1]}, checkpoint_id=folder)
    set_state_dict(*second, model_state_dict=loaded[0], optim_state_dict=loaded[1])
    for number in range(2, 4):
        losses.append(step(*first, number))
        assert step(*second, number) == losses[-1]
    pairs = list(zip(first[0].parameters(), second[0].parameters(), strict=True))
    assert all(torch.equal(local(one), local(other)) for one, other in pairs)
    return (losses, [local(one) for one, _ in pairs]), [*state[0], *state[1]["state"]]


def test_checkpoint(two: Ranks, tmp_path: Path) -> None:
    """torch.distributed.checkpoint of a compiled module and its optimizer, by eager's names."""
    expected = two.run(saved_and_loaded, str(tmp_path / "eager"), "eager")
    actual = two.run(saved_and_loaded, str(tmp_path / "compiled"), "compiled")
    for (one, names), (other, found) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        assert found == names
