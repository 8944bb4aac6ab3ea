"""DistributedDataParallel over two processes: each form of a program gives eager's losses and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import Ranks, counted
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dynajit

STEPS = 20


class Model(nn.Module):
    """Blocks with buffers, and a branch that only calls that ask for it take."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU()) for _ in range(3))
        self.extra = nn.Linear(16, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.extra(x).tanh() if extra else x)


def batch(rank: int, step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * part + rank)
    return torch.randn(8, 16, generator=generator)


def plain(model: Any, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(rank, step)).square().mean()
    loss.backward()
    return loss


def accumulated(model: Any, rank: int, step: int) -> torch.Tensor:
    with model.no_sync():
        first = plain(model, rank, step)
    return first + plain(model, rank, step + 1)


def several_forwards(model: Any, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = sum(model(batch(rank, step, part)).square().mean() for part in range(3))  # type: ignore
    loss.backward()
    return loss


def without_extra(model: Any, rank: int, step: int) -> torch.Tensor:
    loss: torch.Tensor = model(batch(rank, step), extra=step % 2 == 0).square().mean()
    loss.backward()
    return loss


def autocast(model: Any, rank: int, step: int) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        out = model(batch(rank, step))
    loss: torch.Tensor = out.float().square().mean()
    loss.backward()
    return loss


def compressed(model: Any, rank: int, step: int) -> torch.Tensor:
    if step == 0:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    return plain(model, rank, step)


def by_place(model: Any, rank: int, step: int) -> torch.Tensor:
    """What becomes of each gradient depends on its place in its bucket: on the order in which they come."""
    if step == 0:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def scaled(future: Any) -> torch.Tensor:
            mean: torch.Tensor = future.value()
            return mean * torch.linspace(0.5, 1.5, mean.numel())

        model.register_comm_hook(None, lambda _, bucket: allreduce_hook(None, bucket).then(scaled))  # type: ignore
    return plain(model, rank, step)


# name: a step, the wrapper's options, frames compiled in all
FORMS: dict[str, tuple[Callable[..., torch.Tensor], dict[str, Any], int]] = {
    "plain": (plain, {}, 1),
    "bucket views": (plain, {"gradient_as_bucket_view": True}, 1),
    "static graph": (plain, {"static_graph": True}, 1),
    "no_sync": (accumulated, {}, 1),
    "several forwards": (several_forwards, {"broadcast_buffers": False}, 1),
    "unused parameters": (without_extra, {"find_unused_parameters": True}, 2),
    "autocast": (autocast, {}, 1),
    "comm hook": (compressed, {}, 1),
    "by place": (by_place, {}, 1),
}


def trained(rank: int, form: str, how: str) -> tuple[Any, Any]:
    """Losses, and the last gradients and parameters; then graphs, breaks, recompiles, and captures after step 2."""
    step, options, _ = FORMS[form]
    torch.manual_seed(0)
    model: nn.Module = Model()
    inner = dynajit.compile(model) if how == "inside" else model
    wrapped: Any = DistributedDataParallel(inner, bucket_cap_mb=0.001, **options)
    call = dynajit.compile(wrapped) if how == "outside" else wrapped
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, found = [], []
    with counted() as counts:
        for number in range(STEPS):
            loss = step(call, rank, number)
            optimizer.step()
            losses.append(loss.item())
            # a parameter that no rank used has no gradient at first, and keeps one of zeros later
            found = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            optimizer.zero_grad()
            if number == 1:
                early = len(counts.seen)
    buffers = [buffer.clone() for buffer in model.buffers()]
    results = losses, found, [p.detach().clone() for p in model.parameters()], buffers
    return results, (*counts.totals(), len(counts.seen) - early)


@pytest.mark.parametrize("how", ["outside", "inside"])
@pytest.mark.parametrize("form", FORMS)
def test_form(two: Ranks, form: str, how: str) -> None:
    expected = two.run(trained, form, "eager")
    actual = two.run(trained, form, how)
    tolerance = {"rtol": 2e-2, "atol": 2e-3} if form in ("autocast", "comm hook") else {"rtol": 1e-4, "atol": 1e-5}
    for (one, _), (other, counts) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, **tolerance)
        graphs = FORMS[form][2]
        assert counts == (graphs, 0, graphs - 1, 0)
    gradients = [answer[0][1] for answer in actual]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)  # all ranks have the mean


class WithLoss(Model):
    """Gives the loss beside its results, as models of libraries do."""

    def forward(self, x: torch.Tensor, extra: bool = True) -> Any:
        y = super().forward(x, extra)
        return y, y.square().mean(), y.sin()


def with_loss(rank: int, how: str) -> tuple[Any, int]:
    """Losses and the last gradients; then how often eager mode had to do what a graph did not."""
    torch.manual_seed(0)
    wrapped: Any = DistributedDataParallel(WithLoss(), bucket_cap_mb=0.001)
    call = dynajit.compile(wrapped) if how == "outside" else wrapped
    dynajit.counters["reruns"].clear()
    losses = []
    for step in range(4):
        wrapped.zero_grad()
        y, loss, other = call(batch(rank, step))
        (loss if step < 2 else loss + y.mean() * other.sum()).backward()
        losses.append(loss.detach())
    return (losses, [p.grad for p in wrapped.parameters()]), sum(dynajit.counters["reruns"].values())


def test_loss_beside_other_results(two: Ranks) -> None:
    expected, actual = (two.run(with_loss, how) for how in ("eager", "outside"))
    for (one, _), (other, reruns) in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
        assert reruns == 0


def uneven(rank: int, how: str) -> list[float]:
    torch.manual_seed(0)
    wrapped: Any = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)))
    call = dynajit.compile(wrapped) if how == "outside" else wrapped
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    losses = []
    with wrapped.join():
        for step in range(4 + 2 * rank):
            losses.append(plain(call, rank, step).item())
            optimizer.step()
            optimizer.zero_grad()
    return losses


def test_ranks_with_fewer_batches_join(two: Ranks) -> None:
    for one, other in zip(two.run(uneven, "eager"), two.run(uneven, "outside"), strict=True):
        assert other == pytest.approx(one, rel=1e-4)
