"""Programs of torch.distributed over two gloo processes: eager, dynajit and torch.compile.

    python benchmarks/distributed.py [--save] [--only WORDS]

Each program trains, or computes, for 20 steps in both processes, eagerly and with each compiler. A row says how far
losses, gradients and parameters are from eager's, how many graphs, breaks and recompiles there were, what was compiled
after the second step, and a step's milliseconds (the median of the last 12, the slower rank's). torch.compile's graphs
are those that its backend got, of which its DDP optimizer makes several of one.
"""

import argparse
import datetime
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import side_by_side as sbs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dynajit
from dynajit.report import records
from dynajit.report.explain import ExplainReport

STEPS, TIMED = 20, 12
SECONDS = datetime.timedelta(seconds=60)  # of a collective
WIDTH, BLOCKS, ROWS = 256, 4, 64
Compile = Callable[[Any], Any]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(BLOCKS)])


def batch(step: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * part + dist.get_rank())
    return torch.randn(ROWS, WIDTH, generator=generator)


def backward(call: Any, step: int, part: int = 0) -> torch.Tensor:
    loss: torch.Tensor = call(batch(step, part)).square().mean()
    loss.backward()
    return loss.detach()


def accumulated(call: Any, step: int) -> torch.Tensor:
    with call.no_sync():
        first = backward(call, step, 1)
    return first + backward(call, step)


def several(call: Any, step: int) -> torch.Tensor:
    loss: torch.Tensor = call(batch(step)).square().mean() + call(batch(step, 1)).square().mean()
    loss.backward()
    return loss.detach()


def data_parallel(compile: Compile, inside: bool = False, **options: Any) -> tuple[nn.Module, Any]:
    module = model()
    wrapped = DistributedDataParallel(compile(module) if inside else module, bucket_cap_mb=1, **options)
    return module, wrapped if inside else compile(wrapped)


def sharded(compile: Compile) -> tuple[nn.Module, Any]:
    from torch.distributed.fsdp import fully_shard

    module = model()
    for block in module:
        fully_shard(block)
    fully_shard(module)
    return module, compile(module)


def tensor_parallel(compile: Compile) -> tuple[nn.Module, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    module, mesh = model(), init_device_mesh("cpu", (2,))
    for block in module:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return module, compile(module)


def reduces(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() * 2
    dist.all_reduce(y)
    return y / dist.get_world_size() + 1


def works(x: torch.Tensor) -> torch.Tensor:
    parts = [x.sin() * 2, x.cos(), x * x]
    handles = [dist.all_reduce(part, async_op=True) for part in parts]
    other = x.exp().sum(1)
    for handle in handles:
        handle.wait()
    return parts[0] + parts[1] + parts[2] + other[:, None]


def gathers(x: torch.Tensor) -> torch.Tensor:
    out, part = x.new_empty(2 * ROWS, WIDTH), x.new_empty(ROWS, WIDTH)
    dist.all_gather_single(out, x.sin())
    dist.reduce_scatter_single(part, out * 2)
    dist.all_to_all_single(x, part)
    return part + x


def plain(fn: Any, compile: Compile) -> tuple[nn.Module, Any]:
    return nn.Module(), compile(fn)


def called(call: Any, step: int) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        result: torch.Tensor = call(batch(step))
    return result.sum()


# name: what makes the module and what is called, and what a step is
PROGRAMS: dict[str, tuple[Callable[[Compile], tuple[nn.Module, Any]], Callable[[Any, int], torch.Tensor]]] = {
    "compile(DDP(m))": (data_parallel, backward),
    "DDP(compile(m))": (lambda compile: data_parallel(compile, inside=True), backward),
    "DDP, no_sync": (data_parallel, accumulated),
    "DDP, static_graph": (lambda compile: data_parallel(compile, static_graph=True), backward),
    "DDP, find_unused_parameters": (lambda compile: data_parallel(compile, find_unused_parameters=True), backward),
    "DDP, two forwards": (data_parallel, several),
    "FSDP2, per block": (sharded, backward),
    "tensor parallel": (tensor_parallel, backward),
    "all_reduce": (lambda compile: plain(reduces, compile), called),
    "all_reduce, async_op": (lambda compile: plain(works, compile), called),
    "gather, scatter, all_to_all": (lambda compile: plain(gathers, compile), called),
}


class Counter:
    """What a compiler made so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[records.CompileRecord] = []
        self.backend: Any = None
        if name == "torch.compile":
            from torch._dynamo.testing import CompileCounterWithBackend

            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            self.backend = CompileCounterWithBackend("inductor")

    def compile(self, target: Any) -> Any:
        if self.name == "dynajit":
            return dynajit.compile(target)
        return torch.compile(target, backend=self.backend) if self.backend is not None else target

    def made(self) -> int:
        return self.backend.frame_count if self.backend is not None else sum(not each.skipped for each in self.seen)

    def counts(self) -> tuple[int, int]:
        """Graphs and breaks."""
        if self.backend is not None:
            return self.backend.frame_count, sum(torch._dynamo.utils.counters["graph_break"].values())
        report = ExplainReport(self.seen)
        return report.graph_count, report.graph_break_count


def one(program: str, compiler: str) -> dict[str, Any]:
    """One program with one compiler: what it computed, counts and times."""
    make, step = PROGRAMS[program]
    counter = Counter(compiler)
    times, losses, early = [], [], 0
    with records.listen(counter.seen.append):
        module, call = make(counter.compile)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05) if list(module.parameters()) else None
        for number in range(STEPS):
            dist.barrier()
            begin = time.perf_counter()
            losses.append(step(call, number).item())
            times.append(time.perf_counter() - begin)
            gradients = [_local(p.grad) for p in module.parameters()]
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            early = counter.made() if number == 1 else early
    results = [torch.tensor(losses), *gradients, *[_local(p) for p in module.parameters()]]
    late = counter.made() - early
    return {"results": results, "counts": counter.counts(), "late": late, "times": times[-TIMED:]}


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().clone()


def work(rank: int, store: str, out: str, program: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=SECONDS)
    rows: dict[str, Any] = {}
    expected: list[torch.Tensor] = []
    for compiler in ("eager", "dynajit", "torch.compile"):
        try:
            found = one(program, compiler)
        except Exception as error:  # a row of the table: the other rank raises, too, or the group's time-out comes
            rows[compiler] = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:80]}"}
            break
        results = found.pop("results")
        expected = expected or results
        found["far"] = max(
            float((a - b).abs().max() / (a.abs().max() + 1e-12)) for a, b in zip(expected, results, strict=True)
        )
        rows[compiler] = found
    torch.save(rows, f"{out}/{rank}.pt")
    dist.destroy_process_group()


def cells(rows: list[dict[str, Any]], compiler: str) -> list[str]:
    """Difference, graphs, breaks, compiled later, milliseconds."""
    found = [row.get(compiler, {"error": "not reached"}) for row in rows]
    failed = [each["error"] for each in found if "error" in each]
    if failed:
        print(f"  {compiler}: {failed[0]}")
        return ["raises", "", "", "", ""]
    milliseconds = max(statistics.median(each["times"]) for each in found) * 1e3
    if compiler == "eager":
        return [f"{milliseconds:.2f}"]
    far = max(each["far"] for each in found)
    graphs, breaks = (max(each["counts"][at] for each in found) for at in (0, 1))
    return [f"{far:.0e}", str(graphs), str(breaks), str(max(each["late"] for each in found)), f"{milliseconds:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/distributed.md")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    options = parser.parse_args()
    print(sbs.machine())
    what = ("difference", "graphs", "breaks", "late", "ms")
    header = ["program", "eager ms", *(f"{who} {each}" for who in ("dynajit", "torch.compile") for each in what)]
    table = sbs.Table(header, max(PROGRAMS, key=len))
    print("\n".join(table.lines))
    for program in PROGRAMS:
        if options.only in program:
            with tempfile.TemporaryDirectory() as folder:
                torch.multiprocessing.spawn(work, (f"{folder}/store", folder, program), nprocs=2)
                rows = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]
            parts = [cells(rows, who) for who in ("eager", "dynajit", "torch.compile")]
            print(table.add([program, *parts[0], *parts[1], *parts[2]]), flush=True)
    if options.save:
        how = "python benchmarks/distributed.py --save"
        body = (
            "Two gloo processes with a thread each, 20 steps. `difference`: the largest of losses, last gradients and "
            "parameters, relative to each tensor's largest number. `late`: compiled after the second step.\n\n"
            + str(table)
        )
        print("written:", sbs.save("distributed", "torch.distributed", body, how))


if __name__ == "__main__":
    main()
