"""Programs of torch.distributed over two gloo processes: eager, dynajit and torch.compile.

    python benchmarks/distributed.py [--save] [--only WORDS] [--overlap]

Each program trains, or computes, for 20 steps in both processes, eagerly and with each compiler. A row says how far
losses, gradients and parameters are from eager's, how many graphs, breaks and recompiles there were, what was compiled
after the second step, and a step's milliseconds (the median of the last 12, the slower rank's). torch.compile's graphs
are those that its backend got, of which its DDP optimizer makes several of one.

The second table (`--overlap`: that one alone) is of DistributedDataParallel with 12 blocks. Its overlap is, in traces
of the profiler's, the share of the time in which gradients are on their way in which a node of autograd's computes.
"""

import datetime
import json
import re
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
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

STEPS, TIMED, TRACED = 20, 12, 5
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


def model(blocks: int = BLOCKS) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(blocks)])


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


def data_parallel(
    compile: Compile, inside: bool = False, blocks: int = BLOCKS, **options: Any
) -> tuple[nn.Module, Any]:
    module = model(blocks)
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


def spans(events: list[Any]) -> list[tuple[float, float]]:
    """Where at least one of the events is, as begins and ends in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted((each["ts"], each["ts"] + each["dur"]) for each in events):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def overlap(trace: Path) -> float:
    """The share of the time in which gradients are on their way in which a node of autograd's computes."""
    events = [each for each in json.loads(trace.read_text())["traceEvents"] if each.get("ph") == "X"]
    sent = spans([each for each in events if each["name"] == "gloo:all_reduce"])
    nodes = spans([each for each in events if re.fullmatch(r"\w+Backward\d*", each["name"])])
    total = sum(end - begin for begin, end in sent)
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in sent for b in nodes) / total


def twelve_blocks(rank: int, store: str, out: str, compiler: str) -> None:
    """Milliseconds of a step of the second table's program, and its overlap in some traces."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=SECONDS)
    module, call = data_parallel(Counter(compiler).compile, blocks=12)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    times, shares = [], []
    for number in range(3 * STEPS + TRACED):
        traced = number >= 3 * STEPS
        dist.barrier()
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            if traced
            else nullcontext() as found
        ):
            begin = time.perf_counter()
            backward(call, number)
            times.append(time.perf_counter() - begin)
        if found is not None:
            trace = Path(out) / f"trace{rank}.json"
            found.export_chrome_trace(str(trace))
            shares.append(overlap(trace))
        optimizer.step()
        optimizer.zero_grad()
    torch.save((statistics.median(times[STEPS : 3 * STEPS]) * 1e3, statistics.median(shares)), f"{out}/{rank}.pt")
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
    parser = sbs.argument_parser(__doc__)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/distributed.md")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--overlap", action="store_true", help="the second table alone")
    options = parser.parse_args()
    print(sbs.machine())
    if not options.overlap:
        first = programs(options.only)
    second = overlaps()
    if options.save and not options.overlap:
        how = "python benchmarks/distributed.py --save"
        body = (
            "Two gloo processes with a thread each, 20 steps. `difference`: the largest of losses, last gradients and "
            "parameters, relative to each tensor's largest number. `late`: compiled after the second step.\n\n"
            f"{first}\n\nDistributedDataParallel, 12 blocks, buckets of 1 MB. `overlap`: the share of the time in "
            "which gradients are on their way in which a node of autograd's still computes, of rank 0's traces.\n\n"
            f"{second}"
        )
        print("written:", sbs.save("distributed", "torch.distributed", body, how))


def spawned(fn: Callable[..., None], *args: str) -> list[Any]:
    """What each of two processes saves."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(fn, (f"{folder}/store", folder, *args), nprocs=2)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


def overlaps() -> sbs.Table:
    table = sbs.Table(["compiler", "ms", "overlap"], "torch.compile")
    print("\n".join(table.lines))
    for compiler in ("eager", "dynajit", "torch.compile"):
        rows = spawned(twelve_blocks, compiler)
        print(table.add([compiler, f"{max(ms for ms, _ in rows):.2f}", f"{rows[0][1]:.0%}"]), flush=True)
    return table


def programs(only: str) -> sbs.Table:
    what = ("difference", "graphs", "breaks", "late", "ms")
    header = ["program", "eager ms", *(f"{who} {each}" for who in ("dynajit", "torch.compile") for each in what)]
    table = sbs.Table(header, max(PROGRAMS, key=len))
    print("\n".join(table.lines))
    for program in PROGRAMS:
        if only in program:
            rows = spawned(work, program)
            parts = [cells(rows, who) for who in ("eager", "dynajit", "torch.compile")]
            print(table.add([program, *parts[0], *parts[1], *parts[2]]), flush=True)
    return table


if __name__ == "__main__":
    main()
