"""One process of several that want the same kernels: it compiles a model, and prints a line of JSON on what it did.

`python shared_compiles.py compile`: results are eager's. `... make KEY SECONDS LOG`: one entry, which takes so long,
and a line in LOG by whoever makes it. `... group LOG`: as a rank of a group of torch.distributed, with its own folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import dynajit
from dynajit.report.counters import counters
from dynajit.runtime import load, remote_cache, store

torch.set_num_threads(1)
compiles: list[str] = []


def count_compiles() -> None:
    compile_source = load._compile

    def counted(chain: object, source: str, output: Path) -> None:
        compiles.append(output.name)
        compile_source(chain, source, output)  # type: ignore[arg-type]

    load._compile = counted  # type: ignore[assignment]


def compile_model() -> bool:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    x = torch.randn(4, 8)
    with torch.no_grad():
        same = torch.allclose(dynajit.compile(model)(x), model(x), atol=1e-5)
    y = torch.randn(6, 8, requires_grad=True)
    dynajit.compile(lambda t: (t.sin() * t).sum())(y).backward()
    expected = y.detach().clone().requires_grad_()
    (expected.sin() * expected).sum().backward()
    return same and torch.allclose(y.grad, expected.grad, atol=1e-5)  # type: ignore[arg-type]


def make_entry(key: str, seconds: float, log: Path) -> bool:
    def make(path: Path) -> None:
        with log.open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        path.write_bytes(b"made")

    return store.get_or_make(key, ".so", make).read_bytes() == b"made"


def main() -> None:
    count_compiles()
    print("ready", flush=True)
    sys.stdin.readline()
    if sys.argv[1] == "make":
        same = make_entry(sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
    elif sys.argv[1] == "group":
        import torch.distributed as dist

        dist.init_process_group("gloo")
        rank = dist.get_rank()
        with dynajit.config.patch(cache_dir=f"{sys.argv[2]}.{rank}"):
            same = make_entry("ab" * 32, 1.0, Path(sys.argv[2])) and compile_model()
            remote_cache.flush(20)
            dist.barrier()  # its store is rank 0's
        dist.destroy_process_group()
    else:
        same = compile_model()
    remote_cache.flush(20)
    print(json.dumps({"same": same, "compiles": len(compiles), **{k: dict(v) for k, v in counters.items()}}))


main()
