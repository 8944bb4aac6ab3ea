"""Programs under what starts the processes of a job: they run unchanged, and one of them reports."""

from __future__ import annotations

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


def launched(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program under a launcher. `PROGRAM` in the command stands for its path."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    port = str(free_port())
    named = [{"PROGRAM": str(script), "PORT": port}.get(part, part) for part in command]
    paths = {"PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **paths, **variables}
    done = subprocess.run(
        [sys.executable, *named], cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    told = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert told == [f"rank {rank} of 2: {2 * STEPS} losses, True" for rank in range(2)]
    return done


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
