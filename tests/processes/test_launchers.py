"""Programs under what starts the processes of a job: they run unchanged, and one of them reports."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from remote_servers_for_tests import free_port

ROOT = Path(__file__).parents[2]
STEPS = 3
PROGRAM = f"""
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import dynajit

def train(rank):
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    losses = []
    for wrap in (lambda module: module, dynajit.compile):
        torch.manual_seed(0)
        model = wrap(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range({STEPS}):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + rank))).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[{STEPS}:], losses[:{STEPS}])
    total = dynajit.compile(lambda x: dist.all_reduce(x) or x)(torch.stack(losses))
    sys.stdout.write(f"rank {{rank}} of {{dist.get_world_size()}}: {{len(losses)}} losses, {{bool(total[0] > 0)}}\\n")
    dist.destroy_process_group()
    # Gloo's workers may still let go of tensors, which ends a process that is finalizing (pytorch/pytorch#190489).
    time.sleep(1)

if __name__ == "__main__":
    if sys.argv[1:] == ["spawn"]:
        torch.multiprocessing.spawn(train, nprocs=2)
    else:
        train(int(os.environ["RANK"]))
"""


# what accelerate prepares, and what Lightning's trainer fits: both before and after it is compiled
ACCELERATED = f"""
import sys, torch
import dynajit
from accelerate import Accelerator

torch.set_num_threads(1)

def train(first, then):
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = first(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()))
    data = torch.utils.data.DataLoader(torch.arange({2 * STEPS} * 32.0).reshape(-1, 8).sin(), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
    model, losses = then(model), []
    for x in data:
        loss = model(x).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean())
    return torch.stack(losses)
"""
FITTED = f"""
import sys, torch
import dynajit, lightning

torch.set_num_threads(1)

class Module(lightning.LightningModule):
    def __init__(self, wrap):
        super().__init__()
        torch.manual_seed(0)
        self.net = wrap(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()))
        self.losses = []

    def training_step(self, x, number):
        loss = self.net(x).square().mean()
        self.losses.append(loss.detach().clone())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def train(first, then):
    module = Module(first)
    data = torch.utils.data.DataLoader(torch.arange({2 * STEPS} * 32.0).reshape(-1, 8).sin(), batch_size=4)
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet).fit(then(module), data)
    return torch.stack(module.losses)
"""
COMPARED = """
import torch.distributed as dist

same = lambda module: module
expected = train(same, same)
for first, then in ((dynajit.compile, same), (same, dynajit.compile)):
    losses = train(first, then)
    torch.testing.assert_close(losses, expected)
counted = dynajit.counters()
fine = counted["unique_graphs"] > 0 and counted["graph_break_events"] == 0
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: {2 * len(losses)} losses, {fine}\\n")
dist.destroy_process_group()
"""


def launched(folder: Path, *command: str, program: str = PROGRAM, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program under a launcher. `PROGRAM` in the command stands for its path."""
    script = folder / "program.py"
    script.write_text(program)
    port = str(free_port())
    named = [{"PROGRAM": str(script), "PORT": port}.get(part, part) for part in command]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    paths = {"PYTHONPATH": path, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **paths, **variables}
    done = subprocess.run(
        [sys.executable, *named], cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    told = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert told == [f"rank {rank} of 2: {2 * STEPS} losses, True" for rank in range(2)]
    return done


def installed(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "PORT")


def test_torchrun(tmp_path: Path) -> None:
    done = launched(tmp_path, *TORCHRUN, "PROGRAM", DYNAJIT_LOGS="recompiles")
    assert "[rank2]" not in done.stderr


def test_spawn(tmp_path: Path) -> None:
    launched(tmp_path, "PROGRAM", "spawn")


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_reports(tmp_path: Path, rank: int) -> None:
    """Its report has the collectives; the group is gone by then."""
    done = launched(tmp_path, *TORCHRUN, "-m", "dynajit", "explain", "--rank", str(rank), "PROGRAM")
    assert done.stderr.count("Graphs:\n") == 1
    assert done.stderr.count("all_reduce of 24 bytes; beside it: ") == 1


def test_all_ranks_report_if_none_is_named(tmp_path: Path) -> None:
    done = launched(tmp_path, *TORCHRUN, "-m", "dynajit", "explain", "PROGRAM")
    assert done.stderr.count("Graphs:\n") == 2


@installed("accelerate")
def test_accelerate(tmp_path: Path) -> None:
    """As it launches processes with a GPU each, here without: for CPUs it has no launcher but mpirun."""
    command = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
    options = ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "PORT")
    launched(tmp_path, *command, *options, "PROGRAM", program=ACCELERATED + COMPARED, ACCELERATE_USE_CPU="true")


@installed("lightning")
def test_lightning(tmp_path: Path) -> None:
    """Its trainer starts the other process."""
    launched(tmp_path, "PROGRAM", program=FITTED + COMPARED)
