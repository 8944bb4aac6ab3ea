"""Programs on two NVIDIA GPUs: split models, threads with a GPU each, processes that exchange tensors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynajit

sys.path.append(str(Path(__file__).parents[1] / "processes"))

import ranks
import test_coalescing
import test_list_collectives
import test_rank_collectives

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
MODES = [None, "reduce-overhead"]


class Split(nn.Module):
    """Half of the layers on each GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU()).to("cuda:0")
        self.second = nn.Sequential(nn.Linear(64, 16), nn.Dropout(0.3)).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to("cuda:1")).relu()


def trained(module: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], device: str) -> list[Any]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.cuda.manual_seed_all(3)
    found: list[Any] = []
    for step in range(4):
        x = torch.linspace(-1, step + 1, 8 * 32, device=device).reshape(8, 32)
        optimizer.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    states = [torch.cuda.get_rng_state(index).tolist() for index in range(2)]
    return [found, [parameter.detach().cpu() for parameter in module.parameters()], states]


@pytest.mark.parametrize("mode", MODES)
def test_model_on_both(mode: str | None) -> None:
    torch.manual_seed(0)
    module = Split()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    expected = trained(module, module, "cuda:0")
    module.load_state_dict(state)
    actual = trained(module, dynajit.compile(module, mode=mode), "cuda:0")
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_another_than_the_current(mode: str | None) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 8)).to("cuda:1")
    state = {name: value.clone() for name, value in module.state_dict().items()}
    expected = trained(module, module, "cuda:1")
    module.load_state_dict(state)
    actual = trained(module, dynajit.compile(module, mode=mode), "cuda:1")
    assert torch.cuda.current_device() == 0
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_one_function_on_each(mode: str | None) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1).cumsum(0) * 2

    compiled = dynajit.compile(fn, mode=mode, fullgraph=True)
    failures: list[str] = []

    def work(index: int) -> None:
        with torch.cuda.device(index), torch.cuda.stream(torch.cuda.Stream()):
            for round in range(30):
                x = torch.randn(64, 64, device="cuda")
                w = torch.randn(64, 64, device="cuda")
                result = compiled(x, w)
                if result.device.index != index or not torch.allclose(result, fn(x, w), rtol=1e-3, atol=1e-3):
                    failures.append(f"GPU {index}, round {round}")

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def in_process(rank: int, port: int, mode: str | None, folder: str) -> None:
    """One of two processes: gradients of a compiled model under DistributedDataParallel, and a sum in the graph."""
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_reduce
    from torch.nn.parallel import DistributedDataParallel

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    found = {}
    for name in ("eager", "inside", "outside"):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
        inner = dynajit.compile(module, mode=mode) if name == "inside" else module
        whole: Any = DistributedDataParallel(inner, device_ids=[rank])
        call = dynajit.compile(whole, mode=mode) if name == "outside" else whole
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for step in range(4):
            x = torch.linspace(rank, step + 1, 8 * 32, device="cuda").reshape(8, 32)
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
        found[name] = [parameter.detach().cpu() for parameter in module.parameters()]

    def summed(x: torch.Tensor) -> torch.Tensor:
        return all_reduce(x * 2 + rank, "sum", dist.group.WORLD) / 2

    x = torch.linspace(0, 1, 1000, device="cuda")
    found["sum"] = [summed(x).cpu()]
    found["compiled sum"] = [dynajit.compile(summed, mode=mode, fullgraph=True)(x).cpu()]
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("mode", MODES)
def test_processes_that_exchange_gradients(mode: str | None, tmp_path: Any) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(in_process, args=(port, mode, str(tmp_path)), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name in ("inside", "outside"):
            torch.testing.assert_close(found[name], found["eager"], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(found["compiled sum"], found["sum"])


# NCCL refuses tensors in another order than their memory's, and may not have ended where `asynchronous` asks. What one
# process sends to another stays outside of graphs.
_NOT_OF_NCCL = (test_rank_collectives.transposed, test_rank_collectives.asynchronous)
COLLECTIVES = [
    *(program for program in test_rank_collectives.PROGRAMS if program not in _NOT_OF_NCCL),
    *test_list_collectives.PROGRAMS,
    *test_coalescing.PROGRAMS,
]


@pytest.fixture(scope="module")
def two(tmp_path_factory: Any) -> Iterator[ranks.Ranks]:
    """Two processes of one group, a GPU each."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    made = ranks.Ranks(tmp_path_factory.mktemp("groups"), backend="nccl")
    yield made
    made.stop()


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("fn", COLLECTIVES)
def test_collectives_in_one_graph(two: ranks.Ranks, fn: Any, backend: str) -> None:
    assert two.run(ranks.compared, fn, backend) == [(1, 0, 0)] * 2
