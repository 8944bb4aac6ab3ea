"""Processes of a group that train for some minutes, against eager mode: random sizes, recompiles, resets, checkpoints.

    python tests/processes/soak.py [--minutes 30] [--processes 4] [--seed 0]

Each process trains a model under DistributedDataParallel, and calls plain collectives, eagerly and compiled, with sizes
that vary from step to step and rank to rank. Losses and parameters have to stay equal within the rounding of a step,
those of all ranks the same. Now and then everything compiled is dropped, on one rank or on all of them, and the
compiled model goes on from a checkpoint of the eager one. At the end memory must not have grown since the first third
by more than 64 MB. Exits with 1, and says on which rank and at which step, where something differs.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import io
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dynajit

MOST_GROWTH = 64 << 20  # bytes
WIDTH = 32


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)])


def exchanged(x: torch.Tensor) -> torch.Tensor:
    """Sums over the ranks, of which one is waited for late."""
    total = x.sum(0)
    work = dist.all_reduce(total, async_op=True)
    other = x.sin().mean(0)
    dist.all_reduce(other)
    work.wait()
    parts = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.amax(0))
    return total + other + sum(parts)


def memory() -> int:
    """Bytes that the process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def soak(rank: int, folder: str, count: int, minutes: float, seed: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count, timeout=datetime.timedelta(minutes=5)
    )
    together, alone = random.Random(seed), random.Random(f"{seed} {rank}")
    modules = {"eager": model(), "compiled": model()}
    wrapped = {how: DistributedDataParallel(module) for how, module in modules.items()}
    calls = {"eager": wrapped["eager"], "compiled": dynajit.compile(wrapped["compiled"])}
    steps = {"eager": exchanged, "compiled": dynajit.compile(exchanged)}
    optimizers = {how: torch.optim.SGD(module.parameters(), lr=0.01) for how, module in modules.items()}
    begin, early, step = time.monotonic(), 0, 0
    ended = torch.zeros(())
    while not ended:
        rows = alone.choice((1, 2, 3, 5, 8, 13, alone.randrange(1, 64)))
        data = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
        if together.random() < 0.02 or alone.random() < 0.01:
            dynajit.reset()  # on all ranks, or on this one
        losses = {}
        for how in ("eager", "compiled"):
            loss = calls[how](data).square().mean() + steps[how](data).square().mean()
            loss.backward()
            losses[how] = loss.detach()
            optimizers[how].step()
            optimizers[how].zero_grad()
        same(rank, step, "loss", losses["compiled"], losses["eager"])
        for (name, one), other in zip(
            modules["compiled"].named_parameters(), modules["eager"].parameters(), strict=True
        ):
            same(rank, step, name, one, other)
            first = one.detach().clone()
            dist.broadcast(first, 0)
            same(rank, step, f"{name} of rank 0", one, first, 0.0)
        if together.random() < 0.1:
            file = io.BytesIO()
            torch.save(modules["eager"].state_dict(), file)
            file.seek(0)
            modules["compiled"].load_state_dict(torch.load(file))
        spent = time.monotonic() - begin
        if not early and spent > 20 * minutes:
            gc.collect()
            early = memory()
        step += 1
        ended = torch.tensor(float(spent > 60 * minutes))
        dist.all_reduce(ended)
    gc.collect()
    grown = memory() - early
    print(
        f"rank {rank}: {step} steps, memory {memory() >> 20} MB, {grown / 2**20:+.1f} MB since the first third",
        flush=True,
    )
    dist.destroy_process_group()
    if grown > MOST_GROWTH:
        sys.exit(1)


def same(rank: int, step: int, what: str, one: torch.Tensor, other: torch.Tensor, rtol: float = 1e-3) -> None:
    if not torch.allclose(one, other, rtol=rtol, atol=rtol * 1e-2):
        far = (one - other).abs().max().item()
        raise AssertionError(f"rank {rank}, step {step}: {what} differs by {far:.2e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = (folder, options.processes, options.minutes, options.seed)
        torch.multiprocessing.spawn(soak, given, nprocs=options.processes)


if __name__ == "__main__":
    main()
